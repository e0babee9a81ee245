//! Mutants of `windlass run`: the command is dead before another client has the lock.

use super::Mutant;

const WARDEN: &[&str] = &["-p", "windlass-cli", "--test", "cli", "warden::"];

pub(super) const MUTANTS: &[Mutant] = &[
    Mutant {
        breaks: "a nested windlass uses the same names, whatever the config file says",
        file: "windlass-term/src/store.rs",
        from: " || global.origins.config.is_some()",
        to: "",
        caught_by: &[
            "-p",
            "windlass-cli",
            "--test",
            "cli",
            "config::nested_windlass_uses_the_same_names",
        ],
    },
    Mutant {
        breaks: "run: the loss of any of several locks ends the command",
        file: "windlass-cli/src/commands/supervise/leases.rs",
        from: "first_of(reports.collect()).await;",
        to: "first_of(reports.take(1).collect()).await;",
        caught_by: &[
            "-p",
            "windlass-cli",
            "--test",
            "cli",
            "run_several::loss_of_any_lock_kills_the_command::file",
        ],
    },
    Mutant {
        breaks: "run: the command ends before the first of several leases",
        file: "windlass-cli/src/commands/supervise/leases.rs",
        from: "left.min_by_key(",
        to: "left.max_by_key(",
        caught_by: &[
            "-p",
            "windlass-cli",
            "--bin",
            "windlass",
            "lease_that_ends_first_decides",
        ],
    },
    Mutant {
        breaks: "a failed acquire is undone before the process ends",
        file: "windlass-cli/src/commands/acquisition.rs",
        from: "            finish_releases(store).await;\n            Err(error.into())",
        to: "            Err(error.into())",
        caught_by: &[
            "-p",
            "windlass-cli",
            "--test",
            "cli",
            "lock::refused_acquire_leaves_nothing_held",
        ],
    },
    Mutant {
        breaks: "a Ctrl-C from before the fork reaches the command",
        file: "windlass-cli/src/child/warden.rs",
        from: "    Ok((started, signals.take_pending().await))",
        to: "    Ok((started, Vec::new()))",
        caught_by: &[
            "-p",
            "windlass-cli",
            "--bin",
            "windlass",
            "signals_during_the_start_are_returned",
        ],
    },
    Mutant {
        breaks: "run: signals to the process group do not reach the watchdog",
        file: "windlass-cli/src/child/watchdog.rs",
        from: "    setsid()?;\n",
        to: "    let _ = setsid;\n",
        caught_by: WARDEN,
    },
    Mutant {
        breaks: "run: the watchdog kills the command at the deadline",
        file: "windlass-cli/src/child/watchdog.rs",
        from: "() = self.deadline.passed() => self.kill_all(),",
        to: "() = self.deadline.passed() => {}",
        caught_by: WARDEN,
    },
    Mutant {
        breaks: "run: the deadline passes while the machine sleeps",
        file: "windlass-cli/src/child/watchdog.rs",
        from: "TimerfdClockId::Boottime",
        to: "TimerfdClockId::Monotonic",
        caught_by: WARDEN,
    },
    Mutant {
        breaks: "run: the death of windlass ends the command",
        file: "windlass-cli/src/child/watchdog.rs",
        from: "                    self.above = None;\n                    self.kill_all();\n",
        to: "                    self.above = None;\n",
        caught_by: WARDEN,
    },
    Mutant {
        breaks: "run: the death of the warden ends the command",
        file: "windlass-cli/src/child/watchdog.rs",
        from: "                    self.below = None;\n                    self.kill_all();\n",
        to: "                    self.below = None;\n",
        caught_by: WARDEN,
    },
    Mutant {
        breaks: "run: the death of the watchdog ends the command",
        file: "windlass-cli/src/child/warden.rs",
        from: "                    self.channel = None;\n                    self.kill_by(Instant::now());\n",
        to: "                    self.channel = None;\n",
        caught_by: WARDEN,
    },
    Mutant {
        breaks: "run: descendants are found in a namespace with the /proc of the host",
        file: "windlass-cli/src/child/tree.rs",
        from: "    translate(listed, &ids)\n",
        to: "    let _ = translate(Vec::new(), &ids);\n    listed\n",
        caught_by: WARDEN,
    },
    Mutant {
        breaks: "windlass run says why renewals fail",
        file: "windlass-cli/src/commands/supervise/supervisor.rs",
        from: "error.map_or_else(String::new, |error| format!(\" ({error})\"))",
        to: "error.map_or_else(String::new, |_| String::new())",
        caught_by: &[
            "-p",
            "windlass-cli",
            "--test",
            "cli",
            "process_that_blocks_the_file_is_named",
        ],
    },
];

//! Mutants of `windlass run`: the command is dead before another client has the lock.

use super::Mutant;

const WARDEN: &[&str] = &["-p", "windlass-cli", "--test", "cli", "warden::"];

pub(super) const MUTANTS: &[Mutant] = &[
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
        file: "windlass-cli/src/child/deadline_timer.rs",
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
];

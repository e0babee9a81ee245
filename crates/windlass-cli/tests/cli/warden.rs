//! The command is dead before another holder has the lock, whatever stops or kills windlass and its helpers: terminal
//! signals, signals to the whole process group, and the death of any one of the processes.
//!
//! Commands and the next holder append to one file, so its order shows whether both ran at the same time.

#![cfg(target_os = "linux")]

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use windlass_testkit::{TestProcess, eventually_blocking};

use crate::fixture::pty::Pty;
use crate::fixture::{Fixture, LONG, assert_dies, code, signal, wait_for};

/// Appends a line to the file `log` every few milliseconds.
const WRITER: &str = "echo ready $$ >> log; while :; do echo write >> log; sleep 0.005; done";

/// What the next holder does: it says that it runs, and gives a writer that is still alive time to write.
const NEXT: &str = "echo next >> log; sleep 0.5";

/// The lines of the file `log`.
fn log(fixture: &Fixture) -> Vec<String> {
    let text = std::fs::read_to_string(fixture.path("log")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn wait_for_log(fixture: &Fixture, start: &str) -> String {
    let find = || {
        log(fixture)
            .into_iter()
            .find(|line| line.starts_with(start))
    };
    assert!(
        eventually_blocking(LONG, || find().is_some()),
        "no {start}: {:?}",
        log(fixture)
    );
    find().unwrap()[start.len()..].trim().to_owned()
}

/// Asserts that the next holder ran, and that nothing was written since.
fn assert_exclusive(fixture: &Fixture) {
    let log = log(fixture);
    let next = log
        .iter()
        .position(|line| line == "next")
        .expect("the next holder runs");
    let late = log[next..].iter().filter(|line| *line == "write").count();
    assert_eq!(late, 0, "writes after the next holder had the lock");
}

/// Runs `script` in a shell with job control on a terminal of its own, as a user would type it. `$W` is windlass.
fn in_a_terminal(fixture: &Fixture, pty: &Pty, script: &str) -> TestProcess {
    // As `fixture::bare`: the shell must not start with ignored signals.
    let mut shell = Command::new("env");
    shell.args(["--default-signal", "setsid", "--ctty", "--wait"]);
    shell.args(["bash", "-c"]);
    shell.arg(format!("exec >&0 2>&0; set -m; {script}"));
    shell.stdin(pty.terminal());
    spawn_outside(fixture, shell)
}

/// Starts another program in the environment of the fixture; `$W` is windlass.
fn spawn_outside(fixture: &Fixture, mut command: Command) -> TestProcess {
    command.env("W", env!("CARGO_BIN_EXE_windlass"));
    for (name, value) in fixture.command(&[]).get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let stderr = std::fs::File::create(fixture.path("stderr")).unwrap();
    command.current_dir(fixture.folder.path()).stderr(stderr);
    TestProcess::spawn(&mut command).unwrap()
}

/// Ctrl-Z stops windlass for longer than its lease lives.
fn suspended_by_the_terminal(command: &str) {
    let fixture = Fixture::file();
    let mut pty = Pty::new(80, 24);
    std::fs::write(fixture.path("writer"), WRITER).unwrap();
    let script = format!("$W run j --ttl 1s -- {command}; echo left; read line; fg; echo code $?");
    let shell = in_a_terminal(&fixture, &pty, &script);
    wait_for_log(&fixture, "ready");
    let next = fixture.start(&["run", "j", "--", "sh", "-c", NEXT]);
    fixture.wait_for_waiters("j", 1);
    pty.type_in("\x1a");
    pty.wait_for("left");
    assert_eq!(code(&next), 0);
    assert_exclusive(&fixture);
    pty.type_in("\n");
    pty.wait_for("code 79");
    assert_exclusive(&fixture);
    assert_eq!(code(&shell), 0);
}

#[test]
fn ctrl_z_does_not_outlast_the_lease() {
    suspended_by_the_terminal("sh writer");
}

#[test]
fn ctrl_z_does_not_outlast_the_lease_of_a_command_in_its_own_group() {
    // `timeout` makes a group of its own, which the terminal does not stop.
    suspended_by_the_terminal("timeout 60 sh writer");
}

#[test]
fn stopped_process_group_does_not_outlast_the_lease() {
    let fixture = Fixture::file();
    std::fs::write(fixture.path("writer"), WRITER).unwrap();
    let args = [
        "run", "j", "--ttl", "1s", "--", "timeout", "60", "sh", "writer",
    ];
    let run = start_group(&fixture, &args);
    wait_for_log(&fixture, "ready");
    let next = fixture.start(&["run", "j", "--", "sh", "-c", NEXT]);
    fixture.wait_for_waiters("j", 1);
    signal_group(&run, Signal::STOP);
    assert_eq!(code(&next), 0);
    signal_group(&run, Signal::CONT);
    assert_eq!(code(&run), 79);
    assert_exclusive(&fixture);
}

#[test]
fn killed_process_group_takes_other_groups_with_it() {
    let fixture = Fixture::file();
    std::fs::write(fixture.path("writer"), WRITER).unwrap();
    // The lease outlives the test, so only the death of windlass can end the command.
    let args = [
        "run", "j", "--ttl", "10m", "--", "timeout", "60", "sh", "writer",
    ];
    let run = start_group(&fixture, &args);
    let writer = wait_for_log(&fixture, "ready");
    signal_group(&run, Signal::KILL);
    assert_dies(&writer);
}

/// Starts windlass as the leader of a process group, as a shell does.
fn start_group(fixture: &Fixture, args: &[&str]) -> TestProcess {
    use std::os::unix::process::CommandExt as _;
    let mut command = fixture.command(args);
    let stderr = std::fs::File::create(fixture.path("stderr")).unwrap();
    TestProcess::spawn(command.process_group(0).stderr(stderr)).unwrap()
}

fn signal_group(leader: &TestProcess, signal: Signal) {
    kill_process_group(Pid::from_raw(leader.pid() as i32).unwrap(), signal).unwrap();
}

/// The parent of a process.
fn parent(pid: &str) -> String {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name.split_whitespace().nth(1).unwrap().to_owned()
}

/// The processes between windlass and its command, from the top.
fn chain(run: &TestProcess, command: &str) -> Vec<String> {
    let mut chain = Vec::new();
    let mut pid = parent(command);
    while pid != run.pid().to_string() {
        chain.insert(0, pid.clone());
        pid = parent(&pid);
    }
    chain
}

#[test]
fn death_of_any_of_the_processes_ends_the_command() {
    // One dies, two die at once, and one dies while windlass is stopped.
    for (windlass, killed) in [
        (None, vec![0]),
        (None, vec![1]),
        (None, vec![0, 1]),
        (Some(Signal::KILL), vec![]),
        (Some(Signal::KILL), vec![0]),
        (Some(Signal::KILL), vec![1]),
        (Some(Signal::STOP), vec![0]),
        (Some(Signal::STOP), vec![1]),
    ] {
        let fixture = Fixture::file();
        let script = "setsid sh -c 'echo child $$; exec sleep 600' & echo ready $$; wait";
        let run = fixture.start(&["run", "j", "--ttl", "10m", "--", "sh", "-c", script]);
        let command = wait_for(&run, "ready");
        let grandchild = wait_for(&run, "child");
        let chain = chain(&run, &command);
        assert_eq!(chain.len(), 2, "a watchdog and a warden");
        // Stopped first, so that the deaths look simultaneous to what is left.
        let targets: Vec<u32> = killed
            .iter()
            .map(|index: &usize| chain[*index].parse().unwrap())
            .collect();
        for pid in &targets {
            signal(*pid, Signal::STOP);
        }
        if let Some(windlass) = windlass {
            signal(run.pid(), windlass);
        }
        for pid in &targets {
            signal(*pid, Signal::KILL);
        }
        assert_dies(&command);
        assert_dies(&grandchild);
        if windlass == Some(Signal::STOP) {
            run.resume().unwrap();
        }
        if windlass != Some(Signal::KILL) {
            assert_eq!(code(&run), 137, "{killed:?}");
        }
    }
}

#[test]
fn interrupt_reaches_the_command_once() {
    let fixture = Fixture::file();
    let script =
        "trap 'echo got' INT; trap 'exit 7' TERM; echo ready $$; while :; do sleep 0.01; done";
    for to_the_group in [true, false] {
        let run = start_group(&fixture, &["run", "j", "--", "sh", "-c", script]);
        let command = wait_for(&run, "ready");
        match to_the_group {
            true => signal_group(&run, Signal::INT),
            false => signal(run.pid(), Signal::INT),
        }
        wait_for(&run, "got");
        // Longer than a second one could be on its way.
        std::thread::sleep(Duration::from_millis(400));
        signal(command.parse().unwrap(), Signal::TERM);
        assert_eq!(code(&run), 7);
        let got = run
            .stdout_lines()
            .iter()
            .filter(|line| *line == "got")
            .count();
        assert_eq!(got, 1, "to the group: {to_the_group}");
    }
}

#[test]
fn ctrl_c_reaches_the_command_once() {
    let fixture = Fixture::file();
    let mut pty = Pty::new(80, 24);
    let trap = "trap \"echo got >> log\" INT; trap \"exit 7\" TERM; echo ready $$ >> log";
    let command = format!("sh -c '{trap}; while :; do sleep 0.01; done'");
    let shell = in_a_terminal(
        &fixture,
        &pty,
        &format!("$W run j -- {command}; echo code $?"),
    );
    let pid = wait_for_log(&fixture, "ready");
    pty.type_in("\x03");
    wait_for_log(&fixture, "got");
    // Longer than a second one could be on its way.
    std::thread::sleep(Duration::from_millis(400));
    signal(pid.parse().unwrap(), Signal::TERM);
    pty.wait_for("code 7");
    let got = log(&fixture).iter().filter(|line| *line == "got").count();
    assert_eq!(got, 1);
    assert_eq!(code(&shell), 0);
}

#[test]
fn command_can_read_from_the_terminal() {
    let fixture = Fixture::file();
    let mut pty = Pty::new(80, 24);
    let script = "$W run j -- sh -c 'echo ready >> log; read line; echo read $line'; echo code $?";
    let shell = in_a_terminal(&fixture, &pty, script);
    wait_for_log(&fixture, "ready");
    pty.type_in("hello\n");
    pty.wait_for("read hello");
    pty.wait_for("code 0");
    assert_eq!(code(&shell), 0);
}

#[test]
fn deadline_runs_while_the_machine_sleeps() {
    let fixture = Fixture::file();
    let run = fixture.hold("j", &["--ttl", "10m"]);
    let command = wait_for(&run, "ready");
    let watchdog = &chain(&run, &command)[0];
    // Descriptors of a timer show its clock; 7 is CLOCK_BOOTTIME. It is armed before the command starts.
    let folder = Path::new("/proc").join(watchdog).join("fdinfo");
    let timers: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .filter_map(|entry| std::fs::read_to_string(entry.unwrap().path()).ok())
        .filter(|info| info.contains("clockid:"))
        .collect();
    assert_eq!(timers.len(), 1, "{timers:?}");
    assert!(timers[0].contains("clockid: 7\n"), "{timers:?}");
    assert!(!timers[0].contains("it_value: (0, 0)"), "{timers:?}");
    drop(run.take_stdin());
    assert_eq!(code(&run), 0);
}

/// Runs a shell script as the first process of a PID namespace; `$W` is windlass. `None` if that is not allowed here.
fn in_a_namespace(fixture: &Fixture, options: &[&str], script: &str) -> Option<TestProcess> {
    let unshare = [
        &[
            "--user",
            "--map-root-user",
            "--pid",
            "--fork",
            "--kill-child",
        ],
        options,
    ]
    .concat();
    let allowed = Command::new("unshare").args(&unshare).arg("true").status();
    if !allowed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this machine does not allow user namespaces");
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(&unshare).args(["sh", "-c", script]);
    Some(spawn_outside(fixture, command))
}

#[test]
fn grandchildren_die_in_a_namespace_with_the_proc_of_the_host() {
    let fixture = Fixture::file();
    std::fs::write(fixture.path("writer"), WRITER).unwrap();
    // The shell outlives windlass: the end of the first process of a namespace would end all others.
    let script =
        "$W run j --ttl 1500ms -- sh -c 'setsid sh writer & wait'; echo code $?; exec sleep 600";
    let Some(shell) = in_a_namespace(&fixture, &[], script) else {
        return;
    };
    wait_for_log(&fixture, "ready");
    assert_eq!(fixture.run(&["lock", "break", "j"]).code, 0);
    assert_eq!(wait_for(&shell, "code"), "79");
    assert_eq!(fixture.run(&["run", "j", "--", "sh", "-c", NEXT]).code, 0);
    assert_exclusive(&fixture);
}

#[test]
fn command_is_not_run_if_its_descendants_could_not_be_found() {
    let fixture = Fixture::file();
    let script = "mount -t tmpfs none /proc && $W run j -- sh -c 'echo ready >> log'; echo code $?";
    let Some(shell) = in_a_namespace(&fixture, &["--mount"], script) else {
        return;
    };
    assert_eq!(wait_for(&shell, "code"), "125");
    assert!(log(&fixture).is_empty());
    assert!(fixture.stderr().contains("/proc"), "{}", fixture.stderr());
}

/// The group may be stopped before the command has started, and go on when the lease has ended.
#[test]
fn command_does_not_start_after_the_lease() {
    for _ in 0..50 {
        let fixture = Fixture::file();
        let run = fixture.start(&["run", "j", "--ttl", "1s", "--", "touch", "started"]);
        let Some(watchdog) = find_child(&run, "__watchdog") else {
            continue; // It was over too fast.
        };
        if kill_process(watchdog, Signal::STOP).is_err() {
            continue;
        }
        std::thread::sleep(Duration::from_millis(1300)); // beyond the deadline
        if fixture.path("started").exists() {
            continue; // The signal came too late.
        }
        kill_process(watchdog, Signal::CONT).unwrap();
        assert_eq!(code(&run), 79);
        assert!(!fixture.path("started").exists(), "it ran after the lease");
        return;
    }
    panic!("the watchdog was never stopped in time");
}

/// Ctrl-C at any moment of the start ends `run`, with the code of an interrupted command.
#[test]
fn ctrl_c_during_the_start_is_not_lost() {
    for round in 0..20 {
        let fixture = Fixture::file();
        let run = start_group(&fixture, &["run", "j", "--", "sleep", "600"]);
        let watchdog = find_child(&run, "__watchdog").expect("it starts");
        let watchdog = watchdog.as_raw_pid().unsigned_abs();
        while round % 2 == 0 && child_with_argument(watchdog, "__warden").is_none() {
            assert!(run.is_alive(), "{}", fixture.stderr());
        }
        // From the first instruction of the youngest process to some time after the start of the command.
        std::thread::sleep(Duration::from_millis(round / 2 * 3));
        signal_group(&run, Signal::INT);
        assert_eq!(code(&run), 130, "{}", fixture.stderr());
        assert!(!fixture.stderr().contains("failed"), "{}", fixture.stderr());
    }
}

/// The child of a process that has this argument.
fn child_with_argument(parent: u32, argument: &str) -> Option<Pid> {
    let children = std::fs::read_to_string(format!("/proc/{parent}/task/{parent}/children"));
    children.ok()?.split_whitespace().find_map(|child| {
        let words = std::fs::read(format!("/proc/{child}/cmdline")).ok()?;
        let mut words = words.split(|byte| *byte == 0);
        words.find(|word| *word == argument.as_bytes())?;
        Pid::from_raw(child.parse().ok()?)
    })
}

/// Waits for such a child; `None` if the parent has ended.
fn find_child(parent: &TestProcess, argument: &str) -> Option<Pid> {
    let deadline = Instant::now() + LONG;
    while parent.is_alive() {
        if let Some(found) = child_with_argument(parent.pid(), argument) {
            return Some(found);
        }
        assert!(Instant::now() < deadline, "not found");
    }
    None
}

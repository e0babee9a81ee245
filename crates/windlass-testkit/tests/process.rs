//! Child processes that are watched, frozen and killed.

use std::io::{self, Write as _};
use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use windlass_testkit::{TestProcess, eventually_blocking};

const SOON: Duration = Duration::from_secs(5);
const SHORT: Duration = Duration::from_millis(100);

fn shell(script: &str) -> io::Result<TestProcess> {
    TestProcess::spawn(
        Command::new("sh")
            .args(["-c", script])
            .stdin(Stdio::piped()),
    )
}

#[test]
fn lines_are_found_whether_printed_before_or_later() -> io::Result<()> {
    let process = shell("echo first; echo second; read line; echo got $line")?;
    let second = process.wait_for_line(|line| line == "second", SOON);
    assert_eq!(second.as_deref(), Some("second"));
    let first = process.wait_for_line(|line| line.starts_with("fi"), SOON);
    assert_eq!(first.as_deref(), Some("first"));

    assert_eq!(
        process.wait_for_line(|line| line.contains("got"), SHORT),
        None
    );
    let mut stdin = process.take_stdin().expect("stdin is piped");
    stdin.write_all(b"word\n")?;
    let got = process.wait_for_line(|line| line.contains("got"), SOON);
    assert_eq!(got.as_deref(), Some("got word"));
    assert_eq!(process.stdout_lines(), ["first", "second", "got word"]);
    Ok(())
}

#[test]
fn output_of_an_ended_process_is_complete() -> io::Result<()> {
    for _ in 0..20 {
        let process = shell("seq 5000")?;
        while process.is_alive() {
            std::hint::spin_loop();
        }
        assert_eq!(process.stdout_lines().len(), 5000);
    }
    Ok(())
}

#[test]
fn waiting_for_a_line_ends_with_the_output() -> io::Result<()> {
    let process = shell("printf 'no newline, not \\377 UTF-8'")?;
    let start = Instant::now();
    let long = Duration::from_secs(60);
    assert_eq!(process.wait_for_line(|line| line == "never", long), None);
    assert!(start.elapsed() < long / 2);
    assert_eq!(process.stdout_lines(), ["no newline, not \u{fffd} UTF-8"]);
    Ok(())
}

#[test]
fn exit_status_is_awaited() -> io::Result<()> {
    let process = shell("read line; exit 7")?;
    assert!(process.is_alive());
    assert_eq!(process.wait_timeout(SHORT), None);
    drop(process.take_stdin());
    let status = process.wait_timeout(SOON).expect("stdin is closed");
    assert_eq!(status.code(), Some(7));
    assert!(!process.is_alive());
    assert_eq!(process.pause().unwrap_err().kind(), io::ErrorKind::NotFound);
    Ok(())
}

#[test]
fn killed_process_is_dead_immediately() -> io::Result<()> {
    let process = shell("read line")?;
    process.kill9()?;
    assert!(!process.is_alive());
    let status = process.wait_timeout(Duration::ZERO).expect("it is dead");
    assert_eq!(status.signal(), Some(9));
    process.kill9()
}

#[test]
fn paused_process_does_nothing_until_resumed() -> io::Result<()> {
    let process = shell("echo ready; read line; echo done")?;
    process
        .wait_for_line(|line| line == "ready", SOON)
        .expect("it starts");
    process.pause()?;
    drop(process.take_stdin());
    assert_eq!(process.wait_for_line(|line| line == "done", SHORT), None);
    assert!(process.is_alive());
    process.resume()?;
    process
        .wait_for_line(|line| line == "done", SOON)
        .expect("it runs on");
    Ok(())
}

#[test]
#[cfg(target_os = "linux")]
fn busy_process_has_stopped_when_pause_returns() -> io::Result<()> {
    let process = shell("while :; do :; done")?;
    for _ in 0..100 {
        process.pause()?;
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.pid()))?;
        assert!(stat.contains(" T "), "{stat}");
        process.resume()?;
    }
    Ok(())
}

#[test]
fn dropped_process_is_killed() -> io::Result<()> {
    // Writing to a pipe without a reader fails, which shows that the process is gone.
    let process = shell("echo ready; read line")?;
    process
        .wait_for_line(|line| line == "ready", SOON)
        .expect("it starts");
    let mut stdin = process.take_stdin().expect("stdin is piped");
    drop(process);
    assert!(eventually_blocking(SOON, || stdin.write_all(b" ").is_err()));
    Ok(())
}

#[test]
fn missing_program_is_named() {
    let error = TestProcess::spawn(&mut Command::new("/no/such/program")).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("/no/such/program"), "{error}");
}

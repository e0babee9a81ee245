//! `windlass once`: runs a command once per idempotency key; a repeat prints the stored output.

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use serde::Serialize;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use windlass::{Begun, Clock, Coordinator, Finished, Once, OnceGuard, OnceState};
use windlass_term::{
    Advice, Exit, Failure, GlobalArgs, Printer, Signals, quoted, store, unless_interrupted,
};

use super::leases::Leases;
use super::not_started;
use super::status_file::StatusFile;
use super::supervisor::{Deadlines, Supervisor};
use crate::args::{InventoryKind, OnLost, OnceArgs, OnceCommand, OnceCommandArgs};
use crate::child::{ChildCommand, ChildExit};
use crate::commands::wait_report::{Blocker, WaitReport};
use crate::commands::{acquisition, inventory};

/// Limit for reading the rest of stdout after the command has ended: a background process may keep it open forever.
const OUTPUT_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for the release in the background of a dropped attempt, before this process exits.
const RELEASE_PAUSE: Duration = Duration::from_millis(200);
/// Maximum stored output; the rest is for the header line.
const MAX_OUTPUT: usize = Once::MAX_RESULT_BYTES - 64;
const MAGIC: &str = "windlass-once-1";

pub(in crate::commands) async fn once(
    args: OnceCommandArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match (args.command, args.run) {
        (Some(OnceCommand::Show(args)), _) => show(&args.key, global, printer).await,
        (Some(OnceCommand::Forget(args)), _) => forget(&args.key, global, printer).await,
        (Some(OnceCommand::Ls(args)), _) => {
            inventory::ls(&args, &[InventoryKind::Once], global, printer).await
        }
        (None, Some(args)) => run_once(args, global, printer).await,
        (None, None) => unreachable!("clap requires a key and a command, or a subcommand"),
    }
}

async fn run_once(args: OnceArgs, global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let opening = store::open_for(global, args.ttl, printer);
    let store = match unless_interrupted(&mut signals, opening).await {
        Ok(store) => store?,
        Err(exit) => return Ok(exit),
    };
    let ttl = args.ttl.unwrap_or_else(|| store.default_ttl());
    let mut once = store.once(&args.key).retention(args.keep).ttl(ttl);
    once = once.payload(payload(&args));
    if let Some(wait) = args.wait {
        once = once.wait(wait);
    }
    let beginning = async {
        match args.no_wait {
            true => once.try_begin().await,
            false => {
                let report = WaitReport::new(format!("for {}", args.key), printer);
                let running = async || {
                    let running = matches!(once.inspect().await?, OnceState::Started);
                    Ok(Blocker {
                        detail: running.then(|| "it runs elsewhere".to_owned()),
                        waiters: None,
                    })
                };
                report.during(&running, once.begin()).await
            }
        }
    };
    let begun = match unless_interrupted(&mut signals, beginning).await {
        Ok(begun) => begun?,
        Err(exit) => {
            sleep(RELEASE_PAUSE).await;
            return Ok(exit);
        }
    };
    match begun {
        Begun::Again(finished) => repeat(&args, finished, printer),
        Begun::Busy(holder) => {
            acquisition::report_running(&args.key, holder.as_ref(), printer);
            Ok(Exit::NO)
        }
        Begun::Mine(guard) => {
            let more_env = store::command_env(global)?;
            run(&args, &store, more_env, guard, &mut signals, printer).await
        }
    }
}

/// Identifies the command, so that a different command under the same key is detected.
fn payload(args: &OnceArgs) -> Vec<u8> {
    let mut payload = vec![u8::from(args.shell)];
    for word in &args.command {
        payload.extend_from_slice(word.as_bytes());
        payload.push(0);
    }
    payload
}

async fn run(
    args: &OnceArgs,
    store: &Coordinator,
    more_env: Vec<(&'static str, String)>,
    guard: OnceGuard,
    signals: &mut Signals,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let (reader, writer) = std::io::pipe()
        .map_err(|error| Failure::internal(format!("cannot create a pipe: {error}")))?;
    let ttl = args.ttl.unwrap_or_else(|| store.default_ttl());
    let deadlines = Deadlines::new(ttl, args.kill_after);
    let mut words = args.command.iter().cloned();
    let env = [
        ("WINDLASS_ONCE", args.key.clone()),
        ("WINDLASS_FENCE", guard.fence().to_string()),
        ("WINDLASS_STORE_KIND", store.capabilities().kind.to_owned()),
    ];
    let command = ChildCommand {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: env
            .into_iter()
            .chain(more_env)
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        shell: args.shell,
        stdout: Some(writer.into()),
        deadline: Some(Clock::system().now() + deadlines.until_kill(guard.lease().remaining())),
    };
    let running = match command.spawn().await {
        Ok(running) => running,
        Err(error) => {
            // The command did not run, so nothing is recorded.
            guard.forget().await?;
            return Err(not_started(&args.command, args.shell, &error));
        }
    };
    let output = copy_out(reader, printer.clone());
    let mut status = StatusFile::open(None, printer)?;
    let supervisor = Supervisor {
        noun: "key",
        running,
        leases: Leases::one(&args.key, guard.lease()),
        signals,
        status: &mut status,
        printer,
        deadlines,
        on_lost: OnLost::Kill,
        max_time: None,
        kill_after: args.kill_after,
    };
    let outcome = supervisor
        .run()
        .await
        .map_err(|error| Failure::internal(format!("cannot supervise the command: {error}")))?;
    let output = rest_of_output(output).await;
    let done = outcome.ended.filter(|_| outcome.stop_reason.is_none());
    match done {
        Some(ended @ ChildExit::Code(code)) => {
            if code != 0 && !args.keep_failures {
                guard.forget().await?;
                return Ok(Exit::from(ended));
            }
            guard.finish(&pack(ended, output.as_deref())).await?;
            if output.is_none() {
                printer.warn(format_args!(
                    "the output of {} could not be stored: a repeat will not print it",
                    args.key
                ));
            }
            Ok(Exit::from(ended))
        }
        // It was stopped: the next call runs it again.
        _ => {
            drop(guard);
            sleep(RELEASE_PAUSE).await;
            Ok(outcome.exit())
        }
    }
}

/// Forwards stdout as it arrives, and keeps a copy. `None` if it is too long to be stored.
fn copy_out(mut from: std::io::PipeReader, printer: Printer) -> JoinHandle<Option<Vec<u8>>> {
    tokio::task::spawn_blocking(move || {
        let (mut buffer, mut kept) = (vec![0; 64 << 10], Some(Vec::new()));
        loop {
            let count = match from.read(&mut buffer) {
                Ok(0) => return kept,
                Ok(count) => count,
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => return kept,
            };
            printer.out_bytes(&buffer[..count]);
            kept = kept.filter(|kept| kept.len() + count <= MAX_OUTPUT);
            if let Some(kept) = &mut kept {
                kept.extend_from_slice(&buffer[..count]);
            }
        }
    })
}

/// The copy of stdout, once it is complete; `None` if it is not complete in time or too long.
async fn rest_of_output(output: JoinHandle<Option<Vec<u8>>>) -> Option<Vec<u8>> {
    match timeout(OUTPUT_TIMEOUT, output).await {
        Ok(Ok(kept)) => kept,
        _ => None,
    }
}

fn pack(ended: ChildExit, output: Option<&[u8]>) -> Vec<u8> {
    let word = if output.is_some() { "kept" } else { "lost" };
    let mut packed = format!("{MAGIC} {} {word}\n", ended.exit_code()).into_bytes();
    packed.extend_from_slice(output.unwrap_or_default());
    packed
}

fn unpack(packed: &[u8]) -> Option<(u8, Option<&[u8]>)> {
    let end = packed.iter().position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(&packed[..end]).ok()?;
    let [MAGIC, code, word] = head.split(' ').collect::<Vec<_>>()[..] else {
        return None;
    };
    let output = (word == "kept").then_some(&packed[end + 1..]);
    Some((code.parse().ok()?, output))
}

fn repeat(args: &OnceArgs, finished: Finished, printer: &Printer) -> Result<Exit, Failure> {
    let known = match &finished {
        Finished::Done(packed) => unpack(packed),
        Finished::Failed(_) => None,
    };
    let Some((code, output)) = known else {
        return Err(Failure::usage(
            format!("the key {} was recorded by another program", args.key),
            Advice::Hint("use a different key for windlass once".into()),
        ));
    };
    match output {
        Some(output) => printer.out_bytes(output),
        // An error, not a warning: a script must not mistake this for empty output.
        None => printer.error("internal", format_args!(
            "{} has already run, but its output cannot be repeated: it was too long, or did not end with the command",
            args.key
        )),
    }
    // Not in the way of scripts, but nobody shall mistake it for a run of the command.
    printer.note(format_args!(
        "{} has already run; this is a replay of its output and exit code {code}",
        args.key
    ));
    if code != 0 {
        printer.suggest(format_args!("windlass once forget {}", quoted(&args.key)));
    }
    Ok(Exit::from(ChildExit::Code(i32::from(code))))
}

#[derive(Serialize)]
struct OnceAnswer<'a> {
    key: &'a str,
    state: &'static str,
    code: Option<u8>,
    output_bytes: Option<usize>,
}

async fn show(key: &str, global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut answer = OnceAnswer {
        key,
        state: "unknown",
        code: None,
        output_bytes: None,
    };
    let text = match store.once(key).inspect().await? {
        OnceState::Unknown => format!("{key} has not run"),
        OnceState::Finished(finished) => {
            answer.state = "finished";
            let known = match &finished {
                Finished::Done(packed) => unpack(packed),
                Finished::Failed(_) => None,
            };
            match known {
                Some((code, output)) => {
                    answer.code = Some(code);
                    answer.output_bytes = output.map(<[u8]>::len);
                    format!("{key} has run, with exit code {code}")
                }
                None => format!("{key} was recorded by another program"),
            }
        }
        _ => {
            answer.state = "started";
            format!(
                "{key} has begun: it runs, or it was interrupted and the next call runs it again"
            )
        }
    };
    printer.answer(answer.state, &answer, text);
    Ok(match answer.state {
        "finished" => Exit::SUCCESS,
        _ => Exit::NO,
    })
}

#[derive(Serialize)]
struct OnceForgetAnswer<'a> {
    key: &'a str,
    forgotten: bool,
}

async fn forget(key: &str, global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let forgotten = store.once(key).forget().await?;
    let (outcome, text) = match forgotten {
        true => (
            "forgotten",
            format!("{key} is forgotten; the next call runs its command again"),
        ),
        false => ("unknown", format!("{key} has not run")),
    };
    printer.answer(outcome, &OnceForgetAnswer { key, forgotten }, text);
    Ok(match forgotten {
        true => Exit::SUCCESS,
        false => Exit::NO,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_result_can_be_read_back() {
        let packed = pack(ChildExit::Code(3), Some(b"a\nb"));
        assert_eq!(unpack(&packed), Some((3, Some(&b"a\nb"[..]))));
        assert_eq!(unpack(&pack(ChildExit::Code(0), None)), Some((0, None)));
        assert_eq!(unpack(b"receipt 7"), None);
        assert_eq!(unpack(b"x\n"), None);
    }
}

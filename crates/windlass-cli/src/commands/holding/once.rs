//! `windlass once`: a command that runs once for a key; a repeat prints what it printed.

use std::io::Read as _;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, Instant};

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use windlass::{Begun, Coordinator, Finished, MAX_RESULT_BYTES, OnceGuard};

use super::danger::Danger;
use super::not_started;
use super::status::Status;
use super::watch::Watch;
use crate::args::{Global, OnLost, OnceArgs};
use crate::child::{self, Ended, Signals};
use crate::commands::acquiring;
use crate::commands::warn_of_memory;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;
use crate::store;

/// How long to wait for the end of stdout once the command has ended: something it left in the background may hold
/// it open for ever.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Dropping an attempt withdraws it in the background, which ends with this process.
const LEAVING: Duration = Duration::from_millis(200);
/// Room for the line in front of what is kept.
const MOST_KEPT: usize = MAX_RESULT_BYTES - 64;
const MAGIC: &str = "windlass-once-1";

pub(in crate::commands) async fn once(
    args: OnceArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    let opening = store::open_for(global, args.ttl);
    let store = match acquiring::unless_interrupted(&mut signals, opening).await? {
        Ok(store) => store,
        Err(exit) => return Ok(exit),
    };
    warn_of_memory(&store, printer);
    let mut once = store.once(&args.key).keep(args.keep).ttl(args.ttl);
    once = once.payload(payload(&args));
    if let Some(wait) = args.wait {
        once = once.wait(wait);
    }
    let beginning = async {
        match args.no_wait {
            true => Ok(once.try_begin().await?),
            false => Ok(once.begin().await?),
        }
    };
    match acquiring::unless_interrupted(&mut signals, beginning).await? {
        Err(exit) => {
            sleep(LEAVING).await;
            Ok(exit)
        }
        Ok(Begun::Again(finished)) => repeat(&args, finished, printer),
        Ok(Begun::Busy(holder)) => {
            acquiring::report_in_hand(&args.key, holder.as_ref(), printer);
            Ok(Exit::NO)
        }
        Ok(Begun::Mine(guard)) => {
            let more_env = store::for_commands(global)?;
            run(&args, &store, more_env, guard, &mut signals, printer).await
        }
    }
}

/// What the key stands for: another command under the same key is a mistake.
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
        .map_err(|error| Failure::internal(format!("cannot make a pipe: {error}")))?;
    let danger = Danger::new(args.ttl, args.kill_after);
    let mut words = args.command.iter().cloned();
    let env = [
        ("WINDLASS_ONCE", args.key.clone()),
        ("WINDLASS_FENCE", guard.fence().to_string()),
        ("WINDLASS_STORE_KIND", store.capabilities().kind.to_owned()),
    ];
    let command = child::Command {
        program: words.next().unwrap_or_default(),
        args: words.collect(),
        env: env
            .into_iter()
            .chain(more_env)
            .map(|(name, value)| (name.to_owned(), value))
            .collect(),
        shell: args.shell,
        stdout: Some(writer.into()),
        deadline: Some(Instant::now() + danger.until_kill(guard.lease().remaining())),
    };
    let running = match command.spawn().await {
        Ok(running) => running,
        Err(error) => {
            // Nothing was run, so nothing was done.
            guard.forget().await?;
            return Err(not_started(&args.command, args.shell, &error));
        }
    };
    let output = copy_out(reader, printer.clone());
    let mut status = Status::open(None, printer)?;
    let watch = Watch {
        name: &args.key,
        running,
        noun: "key",
        lease: guard.lease(),
        signals,
        status: &mut status,
        printer,
        danger,
        on_lost: OnLost::Kill,
        max_time: None,
        kill_after: args.kill_after,
    };
    let outcome = watch
        .watch()
        .await
        .map_err(|error| Failure::internal(format!("lost sight of the command: {error}")))?;
    let output = last_words(output).await;
    let done = outcome.ended.filter(|_| outcome.cut_short.is_none());
    match done {
        Some(ended @ Ended::Code(code)) => {
            if code != 0 && args.retry_failed {
                guard.forget().await?;
                return Ok(Exit::from(ended));
            }
            guard.finish(&pack(ended, output.as_deref())).await?;
            if output.is_none() {
                printer.warn(format_args!(
                    "what {} printed cannot be kept: a repeat will not print it",
                    args.key
                ));
            }
            Ok(Exit::from(ended))
        }
        // It did not come to its own end: the next one runs it again.
        _ => {
            drop(guard);
            sleep(LEAVING).await;
            Ok(outcome.exit())
        }
    }
}

/// Passes stdout on as it comes, and keeps a copy. `None` if it is too long to be kept.
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
            kept = kept.filter(|kept| kept.len() + count <= MOST_KEPT);
            if let Some(kept) = &mut kept {
                kept.extend_from_slice(&buffer[..count]);
            }
        }
    })
}

async fn last_words(output: JoinHandle<Option<Vec<u8>>>) -> Option<Vec<u8>> {
    match timeout(LAST_WORDS, output).await {
        Ok(Ok(kept)) => kept,
        _ => None,
    }
}

fn pack(ended: Ended, output: Option<&[u8]>) -> Vec<u8> {
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
            format!("{} was done by another program", args.key),
            Advice::Hint("use a key of its own for what windlass once does".into()),
        ));
    };
    match output {
        Some(output) => printer.out_bytes(output),
        // Not a mere warning: a program that reads this must not take it for an output that was empty.
        None => printer.error(format_args!(
            "{} was done before, and what it printed cannot be repeated: it was too long to be kept, or did not end with the command",
            args.key
        )),
    }
    printer.detail(format_args!("{} was done before", args.key));
    Ok(Exit::from(Ended::Code(i32::from(code))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_can_be_read_back() {
        let packed = pack(Ended::Code(3), Some(b"a\nb"));
        assert_eq!(unpack(&packed), Some((3, Some(&b"a\nb"[..]))));
        assert_eq!(unpack(&pack(Ended::Code(0), None)), Some((0, None)));
        assert_eq!(unpack(b"receipt 7"), None);
        assert_eq!(unpack(b"x\n"), None);
    }
}

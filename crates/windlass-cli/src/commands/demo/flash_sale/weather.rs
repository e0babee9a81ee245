//! What befalls a shop.

use std::io::Write as _;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::args::{Fault, FaultKind, word};

/// One purchase, and what comes over the shop meanwhile.
#[derive(Debug)]
pub(super) struct Turn(Option<Fault>);

impl Turn {
    /// The shop has just been given the lock, or whatever it has instead. Does not return if it is to die now.
    pub(super) fn begin(fault: Option<Fault>) -> Turn {
        let turn = Turn(fault);
        if turn.brings(FaultKind::Crash).is_some() {
            // As the kernel would for want of memory, or somebody with a power cord.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        turn
    }

    /// Between reading and writing: slow, or frozen.
    pub(super) async fn between(&self) {
        if let Some(time) = self.brings(FaultKind::Slow) {
            tokio::time::sleep(time).await;
        }
        if let Some(time) = self.brings(FaultKind::Freeze) {
            freeze(time);
        }
    }

    /// After the last look at the lock, before the write.
    pub(super) fn last_moment(&self) {
        if let Some(time) = self.brings(FaultKind::Late) {
            freeze(time);
        }
    }

    /// For how long this fault comes, if it does.
    fn brings(&self, kind: FaultKind) -> Option<Duration> {
        let fault = self.0.filter(|fault| fault.kind == kind)?;
        say(format_args!("fault {}", word(&kind)));
        Some(fault.lasts)
    }
}

/// A line to whoever started the shop.
pub(super) fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // If nobody listens any more, the shop is about to be ended.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Stops the world: a shop has one thread for everything, renewal and all, and this is it.
fn freeze(time: Duration) {
    std::thread::sleep(time);
}

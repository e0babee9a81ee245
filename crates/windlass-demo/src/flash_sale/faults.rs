//! Injects faults into the process of a shop.

use std::io::Write as _;
use std::time::Duration;

use rustix::process::{Signal, getpid, kill_process};

use crate::args::{FaultKind, PlannedFault, value_name};

/// The fault of one purchase, if any.
#[derive(Debug)]
pub(super) struct PurchaseFault(Option<PlannedFault>);

impl PurchaseFault {
    /// Called right after the guard was acquired. Does not return if the fault is a crash.
    pub(super) fn begin(fault: Option<PlannedFault>) -> PurchaseFault {
        let fault = PurchaseFault(fault);
        if fault.duration_if_due(FaultKind::Crash).is_some() {
            // As the out-of-memory killer or a power failure would.
            let _ = kill_process(getpid(), Signal::KILL);
        }
        fault
    }

    /// Called between reading and writing: a slow step, or a suspension.
    pub(super) async fn before_write(&self) {
        if let Some(time) = self.duration_if_due(FaultKind::Slow) {
            tokio::time::sleep(time).await;
        }
        if let Some(time) = self.duration_if_due(FaultKind::Freeze) {
            freeze(time);
        }
    }

    /// Called after the last check of the lock, before the write.
    pub(super) fn at_last_moment(&self) {
        if let Some(time) = self.duration_if_due(FaultKind::Late) {
            freeze(time);
        }
    }

    /// The duration of this kind of fault, if it is due.
    fn duration_if_due(&self, kind: FaultKind) -> Option<Duration> {
        let fault = self.0.filter(|fault| fault.kind == kind)?;
        say(format_args!("fault {}", value_name(&kind)));
        Some(fault.lasts)
    }
}

/// Writes an event line to the process that started the shop.
pub(super) fn say(line: std::fmt::Arguments<'_>) {
    let mut out = std::io::stdout().lock();
    // If the reader is gone, the shop is about to exit.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Suspends the shop: it has one thread for everything, including renewal.
fn freeze(time: Duration) {
    std::thread::sleep(time);
}

//! Acquires a lock or permit: waits in the queue if needed, and leaves the queue when a signal arrives.

use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Attempt, Holder, Released, RetryPolicy};
use windlass_term::{Failure, Printer, Signal, Signals};

use super::request::ClaimRequest;
use super::wait_report::{Blocker, WaitReport};
use crate::humanize;

/// Retries of a waiter while the store is unreachable: a server takes seconds to restart.
pub(super) const RETRY_WHILE_WAITING: RetryPolicy = RetryPolicy::tries(8);

/// Limit for leaving the queue. If that fails, the queue entry expires with its TTL.
pub(super) const RELEASE_TIMEOUT: Duration = Duration::from_secs(1);

/// How long to wait for something that is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WaitLimit {
    None,
    Within(Duration),
    Forever,
}

/// The result of trying to acquire.
#[derive(Debug)]
pub(super) enum Acquisition<H> {
    Held(H),
    Busy(Option<Holder>),
    /// A signal arrived first. Nothing is held, and no queue entry is left.
    Interrupted(Signal),
}

/// Something that can be acquired, waited for in a queue, and released.
pub(super) trait Acquirable: Clone {
    type Guard;

    /// Sets the retry policy for an unreachable store.
    fn retry(self, policy: RetryPolicy) -> Self;

    /// Tries once.
    async fn try_acquire(&self) -> windlass::Result<Attempt<Self::Guard>>;

    /// Waits in the queue for at most `wait`.
    async fn acquire_within(&self, wait: Duration) -> windlass::Result<Attempt<Self::Guard>>;

    /// Waits in the queue.
    async fn acquire(&self) -> windlass::Result<Self::Guard>;

    /// Who holds it, and how many wait.
    async fn blocker(&self) -> windlass::Result<Blocker>;

    /// Releases what `owner` holds, or removes its queue entry.
    async fn release_as(&self, owner: &str) -> windlass::Result<Released>;
}

/// Acquires `request`, which must be set up for `owner`. If it is held and `limit` allows to wait, `on_wait` is called
/// once, and the wait is reported.
pub(super) async fn acquire<A: Acquirable>(
    request: &A,
    owner: &str,
    limit: WaitLimit,
    signals: &mut Signals,
    report: &WaitReport<'_>,
    on_wait: impl FnOnce(Option<&Holder>),
) -> Result<Acquisition<A::Guard>, Failure> {
    let attempt = async {
        // Tried first without queueing, so that the caller can report the holder before it waits.
        let holder = match request.try_acquire().await? {
            Attempt::Busy(holder) if limit != WaitLimit::None => holder,
            answered => return Ok(answered),
        };
        on_wait(holder.as_ref());
        let ask = async || request.blocker().await;
        report.announce(&ask).await;
        let patient = request.clone().retry(RETRY_WHILE_WAITING);
        let waiting = async {
            match limit {
                WaitLimit::Within(wait) => patient.acquire_within(wait).await,
                _ => patient.acquire().await.map(Attempt::Acquired),
            }
        };
        report.during(&ask, waiting).await
    };
    // A block, so that the attempt is dropped here.
    let attempt = {
        tokio::select! {
            biased;
            signal = signals.next() => Err(signal),
            attempt = attempt => Ok(attempt),
        }
    };
    match attempt {
        Ok(Ok(Attempt::Acquired(held))) => Ok(Acquisition::Held(held)),
        Ok(Ok(Attempt::Busy(holder))) => Ok(Acquisition::Busy(holder)),
        Ok(Err(error)) => Err(error.into()),
        Err(signal) => {
            // Dropping the attempt releases it in the background, which this process would not outlive: release it
            // again, and wait for that.
            let _ = timeout(RELEASE_TIMEOUT, request.release_as(owner)).await;
            Ok(Acquisition::Interrupted(signal))
        }
    }
}

#[derive(Serialize)]
struct BusyAnswer<'a> {
    name: &'a str,
    held_by: Option<&'a str>,
    remaining_ms: Option<u64>,
}

/// Reports that it is held: a JSON answer on stdout, or a message on stderr.
pub(super) fn report_busy(
    request: &ClaimRequest,
    name: &str,
    holder: Option<&Holder>,
    printer: &Printer,
) {
    report(name, holder, printer, || busy_text(request, name, holder));
}

/// Reports that a `once` key is already running.
pub(super) fn report_running(name: &str, holder: Option<&Holder>, printer: &Printer) {
    report(name, holder, printer, || match holder {
        Some(holder) => {
            let (owner, remaining) = (humanize::holder(holder), humanize::remaining(holder));
            format!("{name} is held by {owner}, {remaining}")
        }
        None => format!("{name} was held until now"),
    });
}

fn report(name: &str, holder: Option<&Holder>, printer: &Printer, text: impl FnOnce() -> String) {
    if printer.is_json() {
        let busy = BusyAnswer {
            name,
            held_by: holder.map(|holder| holder.owner.as_str()),
            remaining_ms: holder
                .and_then(|holder| holder.remaining)
                .map(humanize::millis),
        };
        printer.answer("busy", &busy, "");
    } else {
        printer.note(text());
    }
}

/// "backup is held by ann (nightly), expires in 12s unless renewed"
fn busy_text(request: &ClaimRequest, name: &str, holder: Option<&Holder>) -> String {
    let Some(holder) = holder else {
        return format!("{name} was held until now");
    };
    let (owner, remaining) = (humanize::holder(holder), humanize::remaining(holder));
    match request {
        ClaimRequest::Permit(..) => format!(
            "{name} has too few free permits; the first to expire belongs to {owner}, {remaining}"
        ),
        ClaimRequest::Read(_) | ClaimRequest::Write(_) if holder.weight > 1 => {
            format!("{name} is write-locked by {owner}, {remaining}")
        }
        // A reader blocks another one if a writer waits between them.
        ClaimRequest::Read(_) => {
            format!("{name} has a waiting writer, and is read-locked by {owner}, {remaining}")
        }
        ClaimRequest::Write(_) => format!("{name} is read-locked by {owner}, {remaining}"),
        ClaimRequest::Lock(_) => format!("{name} is held by {owner}, {remaining}"),
    }
}

//! Tells people what a command waits for: at once on a terminal, after a second in a log, and then every minute.

use std::cell::OnceCell;
use std::convert::Infallible;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use windlass::ErrorKind;
use windlass_term::Printer;

use crate::humanize;

/// When a log gets its first line: most waits are over by then.
const FIRST: Duration = Duration::from_secs(1);
/// How often the store is asked. An outage is reported at once, everything else at each [`INTERVAL`].
const POLL: Duration = Duration::from_secs(5);
const INTERVAL: Duration = Duration::from_secs(60);

/// What a command waits for, as far as the store can tell.
#[derive(Debug, Default)]
pub(super) struct Blocker {
    /// "held by ann (nightly)", "2 of 3 have arrived"
    pub(super) detail: Option<String>,
    /// How many wait in the queue.
    pub(super) waiters: Option<u64>,
}

/// Reports a wait on stderr, unless `-q` was given.
pub(super) struct WaitReport<'a> {
    /// "for backup", "to lead orders"
    goal: String,
    printer: &'a Printer,
    /// Set once a line was printed: how many were ahead, if the store could tell.
    announced: OnceCell<Option<u64>>,
}

impl<'a> WaitReport<'a> {
    pub(super) fn new(goal: impl Into<String>, printer: &'a Printer) -> WaitReport<'a> {
        WaitReport {
            goal: goal.into(),
            printer,
            announced: OnceCell::new(),
        }
    }

    /// Tells a person at a terminal that there will be a wait. To be called before this process joins the queue, so that
    /// all waiters are ahead of it.
    pub(super) async fn announce(&self, ask: &impl AsyncFn() -> windlass::Result<Blocker>) {
        if !self.printer.is_watched() {
            return;
        }
        // A failure does not matter: this is only information.
        let seen = ask().await.unwrap_or_default();
        let mut text = self.waiting(seen.detail);
        if let Some(ahead @ 1..) = seen.waiters {
            text += &format!(", {ahead} ahead");
        }
        self.printer.note(text);
        let _ = self.announced.set(seen.waiters);
    }

    /// Waits, and reports meanwhile what `ask` finds out.
    pub(super) async fn during<T>(
        &self,
        ask: &impl AsyncFn() -> windlass::Result<Blocker>,
        wait: impl Future<Output = T>,
    ) -> T {
        tokio::select! {
            biased;
            done = wait => done,
            never = self.go_on(ask) => match never {},
        }
    }

    async fn go_on(&self, ask: &impl AsyncFn() -> windlass::Result<Blocker>) -> Infallible {
        if self.printer.is_quiet() {
            return std::future::pending().await;
        }
        let began = Instant::now();
        // Later waiters are counted, too, so the number of waiters is only a bound.
        let ahead = self.announced.get().copied().flatten();
        let mut position = ahead.map_or(u64::MAX, |ahead| ahead.saturating_add(1));
        let mut outage: Option<Instant> = None;
        let mut next_line = match self.announced.get() {
            Some(_) => began + INTERVAL,
            None => began + FIRST,
        };
        let mut pause = FIRST;
        loop {
            sleep(pause).await;
            pause = POLL;
            let asked = Instant::now();
            let seen = ask().await;
            let is_due = Instant::now() >= next_line;
            let text = match (seen, outage) {
                (Ok(seen), None) if is_due => {
                    let mut text = self.waiting(seen.detail);
                    if let Some(waiters) = seen.waiters {
                        position = position.min(waiters.max(1));
                        text += &format!(", position {position} in the queue");
                    }
                    text + &format!(", for {}", humanize::duration(began.elapsed()))
                }
                (Ok(_), None) => continue,
                (Ok(seen), Some(_)) => {
                    outage = None;
                    format!("the store answers again; {}", self.waiting(seen.detail))
                }
                (Err(error), None) if is_outage(error.kind()) => {
                    outage = Some(asked);
                    format!("{error}; still waiting {}", self.goal)
                }
                (Err(_), Some(since)) if is_due => format!(
                    "the store has not answered for {}; still waiting {}",
                    humanize::duration(since.elapsed()),
                    self.goal
                ),
                (Err(_), _) => continue,
            };
            self.printer.note(text);
            next_line = Instant::now() + INTERVAL;
        }
    }

    fn waiting(&self, detail: Option<String>) -> String {
        match detail {
            Some(detail) => format!("waiting {}, {detail}", self.goal),
            None => format!("waiting {}", self.goal),
        }
    }
}

fn is_outage(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::Unreachable | ErrorKind::OutcomeUnknown)
}

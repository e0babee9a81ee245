//! Kills processes until none is left, with growing pauses between the searches.

use std::time::Duration;

use rustix::process::Pid;
use tokio::time::Instant;

use super::tree;

/// First and longest pause between two searches for processes to kill. Deaths are reported at once; the searches are for
/// processes that were forked unnoticed, and for those that die slowly.
const FIRST_PAUSE: Duration = Duration::from_millis(5);
const MAX_PAUSE: Duration = Duration::from_millis(200);

/// Number of futile searches after which to leave processes that cannot be killed, when windlass is gone too.
const GIVE_UP_AFTER: u32 = 20;

/// The progress of killing all descendants.
#[derive(Debug)]
pub(super) struct KillLoop {
    pause: Duration,
    /// Number of consecutive searches that found nothing to kill.
    futile: u32,
}

impl Default for KillLoop {
    fn default() -> KillLoop {
        KillLoop {
            pause: FIRST_PAUSE,
            futile: 0,
        }
    }
}

impl KillLoop {
    /// Kills what `find` finds. Returns a process that is left, if none of those left may be killed.
    pub(super) fn sweep(&mut self, find: impl Fn() -> Vec<Pid>) -> Option<Pid> {
        let swept = tree::kill(find);
        let stuck = swept.only_denied();
        // Nothing found: they have died since the last reaping, or they are hidden.
        self.futile = match stuck.is_some() || swept.found.is_empty() {
            true => self.futile + 1,
            false => 0,
        };
        stuck
    }

    /// When to search again.
    pub(super) fn next_sweep(&mut self) -> Instant {
        let next = Instant::now() + self.pause;
        self.pause = MAX_PAUSE.min(self.pause * 2);
        next
    }

    /// Whether it is pointless to continue.
    pub(super) fn is_futile(&self) -> bool {
        self.futile >= GIVE_UP_AFTER
    }
}

//! A verdict for people to read.

use std::collections::BTreeMap;
use std::fmt;

use super::check::{AdmittedWrite, Breach, LockAttempt, Recovery, Verdict};

/// More of them say nothing new.
const BREACHES_SHOWN: usize = 10;

impl Verdict {
    /// Whether nothing happened that must not.
    pub fn is_fine(&self) -> bool {
        self.breaches.is_empty()
    }

    /// How many attempts were granted.
    pub fn grants(&self) -> usize {
        self.attempts.iter().filter(|a| a.granted.is_some()).count()
    }

    /// How many were events of a loss.
    pub fn losses(&self) -> usize {
        self.attempts.iter().filter(|a| a.lost.is_some()).count()
    }

    /// The first moment of the history: times are shown from here.
    fn start(&self) -> u64 {
        let attempts = self.attempts.iter().map(|attempt| attempt.asked);
        let faults = self.recoveries.iter().map(|recovery| recovery.begin);
        attempts.chain(faults).min().unwrap_or(0)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let certainly_held = self
            .attempts
            .iter()
            .filter(|a| a.certainly_held().is_some());
        writeln!(
            f,
            "{}: {} attempts, {} grants, {} certainly held, {} losses reported, {} writes admitted, {} refused",
            self.what,
            self.attempts.len(),
            self.grants(),
            certainly_held.count(),
            self.losses(),
            self.admitted,
            self.refused,
        )?;
        writeln!(f, "  overtaken in the queue: {}", self.overtaken)?;
        let mut kinds: BTreeMap<&str, Vec<&Recovery>> = BTreeMap::new();
        for recovery in &self.recoveries {
            kinds.entry(&recovery.fault).or_default().push(recovery);
        }
        for (kind, all) in kinds {
            let most = |of: &dyn Fn(&Recovery) -> u64| all.iter().map(|r| of(r)).max().unwrap_or(0);
            writeln!(
                f,
                "  {kind}: {} times; nobody served for {} at most; after it, the next grant within {}",
                all.len(),
                Seconds(most(&|r| r.gap)),
                Seconds(most(&|r| r.after.unwrap_or(0))),
            )?;
        }
        if self.is_fine() {
            return write!(f, "  fine: exclusion, fences, gates, loss, recovery");
        }
        let start = self.start();
        for breach in self.breaches.iter().take(BREACHES_SHOWN) {
            writeln!(f, "  BREACH: {}", WithStart(breach, start))?;
        }
        write!(f, "  {} breaches in all", self.breaches.len())
    }
}

/// Nanoseconds as seconds.
struct Seconds(u64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.6} s", self.0 as f64 / 1e9)
    }
}

/// Something, with its times counted from a start.
struct WithStart<T>(T, u64);

impl<T> WithStart<T> {
    fn at(&self, nanos: u64) -> Seconds {
        Seconds(nanos.saturating_sub(self.1))
    }
}

impl fmt::Display for WithStart<&Breach> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.1;
        let pair = |f: &mut fmt::Formatter<'_>, what: &str, a: &LockAttempt, b: &LockAttempt| {
            write!(
                f,
                "{what}\n    {}\n    {}",
                WithStart(a, start),
                WithStart(b, start)
            )
        };
        match self.0 {
            Breach::TwoHolders(a, b) => pair(f, "two held it at one moment", a, b),
            Breach::SameFence(a, b) => pair(f, "two grants have one fence", a, b),
            Breach::FenceWentBack(a, b) => pair(f, "a later grant has a lower fence", a, b),
            Breach::StaleWrite(a, b) => write!(
                f,
                "a stale write was admitted\n    {}\n    {}",
                WithStart(a, start),
                WithStart(b, start)
            ),
            Breach::HeldAfterLoss(a) => {
                write!(
                    f,
                    "held after the loss was reported\n    {}",
                    WithStart(&**a, start)
                )
            }
            Breach::NoRecovery(r) => write!(
                f,
                "nobody was granted it after: {}, from {} to {}",
                r.fault,
                self.at(r.begin),
                self.at(r.end)
            ),
        }
    }
}

impl fmt::Display for WithStart<&LockAttempt> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let LockAttempt { client, number, .. } = self.0;
        write!(f, "{client}#{number}: asked at {}", self.at(self.0.asked))?;
        if let Some((at, fence)) = self.0.granted {
            write!(f, ", granted with fence {fence} at {}", self.at(at))?;
        }
        let others = [
            ("held until", self.0.held),
            ("loss reported at", self.0.lost),
            ("released from", self.0.release_asked),
        ];
        for (what, at) in others {
            if let Some(at) = at {
                write!(f, ", {what} {}", self.at(at))?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for WithStart<&AdmittedWrite> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let AdmittedWrite {
            client,
            gate,
            fence,
            asked,
            answered,
        } = self.0;
        write!(
            f,
            "{client}: fence {fence}, sent to the {gate} at {}, admitted at {}",
            self.at(*asked),
            self.at(*answered)
        )
    }
}

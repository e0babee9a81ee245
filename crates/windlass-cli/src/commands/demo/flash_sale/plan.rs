//! Which sales are held, and what befalls the shops in each.

use std::time::Duration;

use super::selling::POLL;
use super::{FAIR_TTL, FAULT_LASTS, TTL};
use crate::args::{Fault, FaultKind, Guard, word};

/// What befalls the shops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Weather {
    /// Nothing: this is what a test on a developer's machine sees.
    Fair,
    /// A crash, a slow step, a process that stands still.
    Foul,
    /// A process that stands still between its last look at the lock and its write.
    WorstMoment,
}

/// One sale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) guard: Guard,
    pub(super) weather: Weather,
    /// How often those who wait ask again, for a lock that would let them wait in line.
    pub(super) poll: Option<Duration>,
}

impl Plan {
    /// Whether a counter keeps the stock.
    pub(super) fn counts(&self) -> bool {
        self.guard == Guard::Counter
    }

    /// A short name, for keys.
    pub(super) fn slug(&self) -> String {
        let weather = match self.weather {
            Weather::Fair => "fair",
            Weather::Foul => "foul",
            Weather::WorstMoment => "worst",
        };
        let polled = if self.poll.is_some() { "-polled" } else { "" };
        format!("{}-{weather}{polled}", word(&self.guard))
    }

    pub(super) fn is_foul(&self) -> bool {
        self.weather != Weather::Fair
    }

    /// The life of a claim. In fair weather nothing is slow, not even on a machine that is.
    pub(super) fn ttl(&self) -> Duration {
        match self.weather {
            Weather::Fair => FAIR_TTL,
            Weather::Foul | Weather::WorstMoment => TTL,
        }
    }

    /// How long nothing may happen before the sale is stuck for good. A key without an end needs no more than a
    /// moment to be seen; others go on when a claim ends, which is when the store says so: a session of ZooKeeper
    /// may live ten times as long as was asked for. And a busy machine is no fault.
    pub(super) fn patience(&self) -> Duration {
        match (self.weather, self.guard) {
            (Weather::Foul, Guard::Setnx | Guard::SetnxExpire) => Duration::from_secs(3),
            _ => Duration::from_secs(20),
        }
    }

    /// The faults of this sale, one after the other, and early: a stock is soon sold.
    pub(super) fn faults(&self, stock: u32) -> Vec<Fault> {
        let step = (stock / 16).clamp(1, 3);
        let turns = (1..).map(|number| number * step);
        let kinds = self.kinds().iter().copied();
        let fault = |(kind, turn)| Fault {
            kind,
            turn,
            lasts: match kind {
                FaultKind::Crash => Duration::ZERO,
                _ => FAULT_LASTS,
            },
        };
        kinds.zip(turns).map(fault).collect()
    }

    /// What is tried: what the guard before it could not bear, and what it cannot bear itself.
    fn kinds(&self) -> &'static [FaultKind] {
        use FaultKind::{Crash, Freeze, Late, Slow};
        match (self.weather, self.guard) {
            (Weather::Fair, _) | (Weather::Foul, Guard::None | Guard::Mutex) => &[],
            (Weather::WorstMoment, _) => &[Late],
            (Weather::Foul, Guard::Setnx | Guard::SetnxExpire) => &[Crash],
            (Weather::Foul, Guard::SetPx | Guard::Owner) => &[Crash, Slow],
            (Weather::Foul, Guard::Lock) => &[Crash, Slow, Freeze],
            (Weather::Foul, Guard::Fence | Guard::Counter) => &[Crash, Slow, Freeze, Late],
        }
    }
}

/// One line of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Row {
    Guard(Guard),
    /// The lock alone, and the one thing that it cannot bear.
    WorstMoment,
    /// The lock and its fence, for people who poll.
    Polled,
}

impl Row {
    /// What goes into the report when these guards are asked for.
    pub(super) fn all(guards: &[Guard]) -> Vec<Row> {
        let mut rows = Vec::new();
        for &guard in guards {
            rows.push(Row::Guard(guard));
            match guard {
                Guard::Lock => rows.push(Row::WorstMoment),
                Guard::Fence => rows.push(Row::Polled),
                _ => {}
            }
        }
        rows
    }

    pub(super) fn guard(self) -> Guard {
        match self {
            Row::Guard(guard) => guard,
            Row::WorstMoment => Guard::Lock,
            Row::Polled => Guard::Fence,
        }
    }

    /// The name by which scripts know it.
    pub(super) fn name(self) -> String {
        match self {
            Row::Guard(guard) => word(&guard),
            Row::WorstMoment => "lock-worst-moment".to_owned(),
            Row::Polled => "fence-polled".to_owned(),
        }
    }

    /// The sale that is timed, if any.
    pub(super) fn fair(self) -> Option<Plan> {
        match self {
            Row::WorstMoment => None,
            Row::Guard(guard) => Some(plan(guard, Weather::Fair, None)),
            Row::Polled => Some(plan(Guard::Fence, Weather::Fair, Some(POLL))),
        }
    }

    /// The sale that shows what it can bear, if any.
    pub(super) fn foul(self) -> Option<Plan> {
        match self {
            // These need no foul weather to fail, and polling is about speed.
            Row::Guard(Guard::None | Guard::Mutex) | Row::Polled => None,
            Row::Guard(guard) => Some(plan(guard, Weather::Foul, None)),
            Row::WorstMoment => Some(plan(Guard::Lock, Weather::WorstMoment, None)),
        }
    }

    pub(super) fn title(self) -> &'static str {
        match self {
            Row::Guard(Guard::None) => "no guard",
            Row::Guard(Guard::Mutex) => "a mutex in each shop",
            Row::Guard(Guard::Setnx) => "SETNX, no expiry",
            Row::Guard(Guard::SetnxExpire) => "SETNX, then EXPIRE",
            Row::Guard(Guard::SetPx) => "SET NX PX, anybody deletes",
            Row::Guard(Guard::Owner) => "owner deletes, no renewal",
            Row::Guard(Guard::Lock) => "Windlass lock",
            Row::Guard(Guard::Fence) => "Windlass lock + fence",
            Row::Guard(Guard::Counter) => "bounded counter, no lock",
            Row::WorstMoment => "  … at the worst moment",
            Row::Polled => "  … polling each 50 ms",
        }
    }

    /// What it is, and what it cannot bear.
    pub(super) fn story(self) -> &'static str {
        match self {
            Row::Guard(Guard::None) => {
                "Read the stock, make out the bill, write the stock. Whoever reads before another has written sells \
                 the same thing again."
            }
            Row::Guard(Guard::Mutex) => {
                "Each shop lets one buyer at a time read and write. It knows nothing of the other shops: with one shop \
                 it holds, with two it does not."
            }
            Row::Guard(Guard::Setnx) => {
                "The first to set the key has the lock, and deletes it afterwards. A shop that dies in between leaves \
                 it behind for ever."
            }
            Row::Guard(Guard::SetnxExpire) => {
                "A second command gives the key an end. A shop that dies between the two commands never sends it."
            }
            Row::Guard(Guard::SetPx) => {
                "One command sets the key and its end. A shop that is slower than that goes on selling without the \
                 lock, and then deletes the lock of whoever has it now."
            }
            Row::Guard(Guard::Owner) => {
                "Only the owner deletes, in one step. A shop that is slower than the expiry still goes on selling \
                 without the lock."
            }
            Row::Guard(Guard::Lock) => {
                "Renewed while the work lasts, handed on in line, and lost out loud: a shop that stood still learns \
                 that it is too late before it writes."
            }
            Row::WorstMoment => {
                "The one thing that no lock can bear: the process stands still after its last look at the lock, and \
                 before its write. This is what fences are for."
            }
            Row::Guard(Guard::Fence) => {
                "Each grant carries a number that grows. The warehouse refuses a number lower than one it has seen, \
                 whenever the write comes."
            }
            Row::Polled => {
                "The same lock and the same fence, but whoever has to wait asks again each 50 ms instead of waiting in \
                 line. Just as safe; see how much is sold."
            }
            Row::Guard(Guard::Counter) => {
                "One step counts and refuses. Nothing is held, so nothing can be lost; and a buyer who comes again \
                 after a crash gets the same answer."
            }
        }
    }
}

fn plan(guard: Guard, weather: Weather, poll: Option<Duration>) -> Plan {
    Plan {
        guard,
        weather,
        poll,
    }
}

/// A fault must outlast the ttl, or it would show nothing.
const _: () = assert!(FAULT_LASTS.as_millis() > TTL.as_millis() * 3 / 2);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_faults_come_before_the_stock_is_sold() {
        let foul = Row::Guard(Guard::Fence).foul().unwrap();
        for stock in [5, 20, 50, 1000] {
            let faults = foul.faults(stock);
            assert_eq!(faults.len(), 4);
            assert!(faults.iter().all(|fault| (1..stock).contains(&fault.turn)));
            assert!(faults.is_sorted_by_key(|fault| fault.turn));
        }
        assert!(Row::Polled.fair().unwrap().faults(100).is_empty());
    }

    #[test]
    fn nobody_gives_up_on_a_claim_that_will_end() {
        // With ticks of 2 s, no session of ZooKeeper is shorter.
        let longest = Duration::from_secs(4);
        for guard in [Guard::SetPx, Guard::Owner, Guard::Lock, Guard::Fence] {
            let foul = Row::Guard(guard).foul().unwrap();
            assert!(foul.patience() > 2 * (longest + FAULT_LASTS), "{guard:?}");
        }
        let stuck = Row::Guard(Guard::Setnx).foul().unwrap();
        assert!(stuck.patience() > 2 * FAULT_LASTS);
    }
}

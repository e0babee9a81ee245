//! What the warehouse knows: how many are left, what was sold, whose fence was the highest.
//!
//! It does as a table with a column for the fence would: a read is a read, a write is a write, and nothing
//! ties them together. That is the buyers' problem, and the reason for guards.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use crate::args::{Fault, FaultKind};

/// The stock, and every sale that was made of it.
#[derive(Debug)]
pub(super) struct Ledger {
    stock: i64,
    left: i64,
    highest: u64,
    stale: u64,
    sales: Vec<Instant>,
    shipped: HashSet<String>,
    turns: u32,
    /// What is in store for the shops, in the order of turns.
    faults: VecDeque<Fault>,
    /// The process that was told to die.
    doomed: Option<u32>,
}

/// The answer to a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// So many are left.
    Left(i64),
    /// Written down: that is a sale.
    Sold,
    /// A higher fence was here.
    Stale,
}

impl Ledger {
    pub(super) fn new(stock: u32, faults: Vec<Fault>) -> Ledger {
        Ledger {
            stock: i64::from(stock),
            left: i64::from(stock),
            highest: 0,
            stale: 0,
            sales: Vec::new(),
            shipped: HashSet::new(),
            turns: 0,
            faults: faults.into(),
            doomed: None,
        }
    }

    pub(super) fn stock(&self) -> i64 {
        self.stock
    }

    /// How many are left, as far as is written down here.
    pub(super) fn left(&self) -> i64 {
        self.left
    }

    /// When each was sold.
    pub(super) fn sales(&self) -> &[Instant] {
        &self.sales
    }

    /// How many were refused because a higher fence had been here.
    pub(super) fn stale(&self) -> u64 {
        self.stale
    }

    /// Reads, and shows the fence: whoever was before may not write any more.
    pub(super) fn read(&mut self, fence: Option<u64>) -> Answer {
        if self.admits(fence) {
            Answer::Left(self.left)
        } else {
            Answer::Stale
        }
    }

    /// Writes what is left after a sale.
    pub(super) fn write(&mut self, left: i64, fence: Option<u64>) -> Answer {
        if !self.admits(fence) {
            return Answer::Stale;
        }
        self.left = left;
        self.sales.push(Instant::now());
        Answer::Sold
    }

    /// Hands one over to that buyer, who has paid. Asked again, it does nothing more.
    pub(super) fn ship(&mut self, buyer: &str) -> Answer {
        if self.shipped.insert(buyer.to_owned()) {
            self.left -= 1;
            self.sales.push(Instant::now());
        }
        Answer::Sold
    }

    /// A shop has been given the lock, or whatever it has instead: what befalls it now, if anything.
    ///
    /// Nothing more is in store for a process that is about to die: it would not live to see it.
    pub(super) fn turn(&mut self, process: u32) -> Option<Fault> {
        self.turns += 1;
        let due = self.faults.front()?.turn <= self.turns && self.doomed != Some(process);
        let fault = due.then(|| self.faults.pop_front()).flatten()?;
        if fault.kind == FaultKind::Crash {
            self.doomed = Some(process);
        }
        Some(fault)
    }

    fn admits(&mut self, fence: Option<u64>) -> bool {
        match fence {
            Some(fence) if fence < self.highest => {
                self.stale += 1;
                false
            }
            Some(fence) => {
                self.highest = fence;
                true
            }
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_last_counts() {
        let mut ledger = Ledger::new(10, Vec::new());
        assert_eq!(ledger.read(None), Answer::Left(10));
        assert_eq!(ledger.write(9, None), Answer::Sold);
        assert_eq!(ledger.write(9, None), Answer::Sold);
        assert_eq!((ledger.left(), ledger.sales().len()), (9, 2));
    }

    #[test]
    fn who_comes_too_late_is_refused() {
        let mut ledger = Ledger::new(10, Vec::new());
        assert_eq!(ledger.read(Some(1)), Answer::Left(10));
        assert_eq!(ledger.read(Some(2)), Answer::Left(10));
        assert_eq!(ledger.write(9, Some(1)), Answer::Stale);
        assert_eq!(ledger.write(9, Some(2)), Answer::Sold);
        assert_eq!(ledger.read(Some(1)), Answer::Stale);
        assert_eq!((ledger.left(), ledger.sales().len()), (9, 1));
        assert_eq!(ledger.stale(), 2);
    }

    #[test]
    fn each_fault_comes_once() {
        let faults = ["crash@1=0ms", "slow@3=1s"].map(|text| text.parse().unwrap());
        let mut ledger = Ledger::new(10, faults.to_vec());
        assert_eq!(ledger.turn(7), Some(faults[0]));
        assert_eq!(ledger.turn(8), None);
        assert_eq!(ledger.turn(7), None, "it is about to die");
        assert_eq!(ledger.turn(8), Some(faults[1]));
        assert_eq!(ledger.turn(8), None);
    }

    #[test]
    fn a_buyer_is_shipped_to_once() {
        let mut ledger = Ledger::new(10, Vec::new());
        ledger.ship("ann");
        ledger.ship("ann");
        ledger.ship("ben");
        assert_eq!((ledger.left(), ledger.sales().len()), (8, 2));
    }
}

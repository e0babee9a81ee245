//! The data of the warehouse: the stock, the sales, and the highest fencing token.
//!
//! It behaves like a table with a column for the fencing token: reads and writes are separate operations, which is why
//! the shops need a guard.

use std::collections::{HashSet, VecDeque};
use std::time::Instant;

use crate::args::{FaultKind, PlannedFault};

/// The stock and its sales.
#[derive(Debug)]
pub(super) struct Ledger {
    stock: i64,
    left: i64,
    highest: u64,
    stale: u64,
    sales: Vec<Instant>,
    shipped: HashSet<String>,
    purchases: u32,
    /// The faults to inject, in the order of purchases.
    faults: VecDeque<PlannedFault>,
    /// The process that is to crash.
    crashing: Option<u32>,
}

/// The reply to a read or a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WarehouseReply {
    /// Number of items left.
    Left(i64),
    /// The write was accepted, which is a sale.
    Sold,
    /// The fencing token is lower than one seen before.
    Stale,
}

impl Ledger {
    pub(super) fn new(stock: u32, faults: Vec<PlannedFault>) -> Ledger {
        Ledger {
            stock: i64::from(stock),
            left: i64::from(stock),
            highest: 0,
            stale: 0,
            sales: Vec::new(),
            shipped: HashSet::new(),
            purchases: 0,
            faults: faults.into(),
            crashing: None,
        }
    }

    pub(super) fn stock(&self) -> i64 {
        self.stock
    }

    /// Number of items left.
    pub(super) fn left(&self) -> i64 {
        self.left
    }

    /// The time of each sale.
    pub(super) fn sales(&self) -> &[Instant] {
        &self.sales
    }

    /// Number of operations rejected for a stale fencing token.
    pub(super) fn stale(&self) -> u64 {
        self.stale
    }

    /// Reads the stock. A fencing token also shuts out all earlier holders.
    pub(super) fn read(&mut self, fence: Option<u64>) -> WarehouseReply {
        if self.admits(fence) {
            WarehouseReply::Left(self.left)
        } else {
            WarehouseReply::Stale
        }
    }

    /// Writes the stock after a sale.
    pub(super) fn write(&mut self, left: i64, fence: Option<u64>) -> WarehouseReply {
        if !self.admits(fence) {
            return WarehouseReply::Stale;
        }
        self.left = left;
        self.sales.push(Instant::now());
        WarehouseReply::Sold
    }

    /// Ships one item to a buyer. Idempotent.
    pub(super) fn ship(&mut self, buyer: &str) -> WarehouseReply {
        if self.shipped.insert(buyer.to_owned()) {
            self.left -= 1;
            self.sales.push(Instant::now());
        }
        WarehouseReply::Sold
    }

    /// A shop begins a purchase: returns the fault to inject, if any.
    ///
    /// A process that is about to crash gets no more faults, because it would not execute them.
    pub(super) fn begin_purchase(&mut self, process: u32) -> Option<PlannedFault> {
        self.purchases += 1;
        let due = self.faults.front()?.purchase <= self.purchases && self.crashing != Some(process);
        let fault = due.then(|| self.faults.pop_front()).flatten()?;
        if fault.kind == FaultKind::Crash {
            self.crashing = Some(process);
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
    fn last_write_wins() {
        let mut ledger = Ledger::new(10, Vec::new());
        assert_eq!(ledger.read(None), WarehouseReply::Left(10));
        assert_eq!(ledger.write(9, None), WarehouseReply::Sold);
        assert_eq!(ledger.write(9, None), WarehouseReply::Sold);
        assert_eq!((ledger.left(), ledger.sales().len()), (9, 2));
    }

    #[test]
    fn stale_fence_is_rejected() {
        let mut ledger = Ledger::new(10, Vec::new());
        assert_eq!(ledger.read(Some(1)), WarehouseReply::Left(10));
        assert_eq!(ledger.read(Some(2)), WarehouseReply::Left(10));
        assert_eq!(ledger.write(9, Some(1)), WarehouseReply::Stale);
        assert_eq!(ledger.write(9, Some(2)), WarehouseReply::Sold);
        assert_eq!(ledger.read(Some(1)), WarehouseReply::Stale);
        assert_eq!((ledger.left(), ledger.sales().len()), (9, 1));
        assert_eq!(ledger.stale(), 2);
    }

    #[test]
    fn each_fault_is_injected_once() {
        let faults = ["crash@1=0ms", "slow@3=1s"].map(|text| text.parse().unwrap());
        let mut ledger = Ledger::new(10, faults.to_vec());
        assert_eq!(ledger.begin_purchase(7), Some(faults[0]));
        assert_eq!(ledger.begin_purchase(8), None);
        assert_eq!(ledger.begin_purchase(7), None, "it is about to crash");
        assert_eq!(ledger.begin_purchase(8), Some(faults[1]));
        assert_eq!(ledger.begin_purchase(8), None);
    }

    #[test]
    fn shipping_is_idempotent() {
        let mut ledger = Ledger::new(10, Vec::new());
        ledger.ship("ann");
        ledger.ship("ann");
        ledger.ship("ben");
        assert_eq!((ledger.left(), ledger.sales().len()), (8, 2));
    }
}

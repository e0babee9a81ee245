//! Whether money and goods are still all there.

use std::collections::HashSet;

use serde::Serialize;

use super::market::{FUNDS, Inventory};

/// What an audit found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Audit {
    /// More than there was, or less.
    pub(super) money_off: i64,
    /// Things that are in two places.
    pub(super) goods_twice: u64,
    /// Things that are nowhere.
    pub(super) goods_gone: u64,
}

impl Audit {
    pub(super) fn of(inventory: &Inventory, users: usize, made: u64) -> Audit {
        let distinct: HashSet<&String> = inventory.items.iter().collect();
        Audit {
            money_off: inventory.money - FUNDS * users as i64,
            goods_twice: (inventory.items.len() - distinct.len()) as u64,
            goods_gone: made.saturating_sub(distinct.len() as u64),
        }
    }

    pub(super) fn is_clean(&self) -> bool {
        *self
            == Audit {
                money_off: 0,
                goods_twice: 0,
                goods_gone: 0,
            }
    }

    pub(super) fn words(&self) -> String {
        if self.is_clean() {
            return "all there".to_owned();
        }
        let mut parts = Vec::new();
        if self.money_off != 0 {
            parts.push(format!("money {:+}", self.money_off));
        }
        if self.goods_twice > 0 {
            parts.push(format!("{} sold twice", self.goods_twice));
        }
        if self.goods_gone > 0 {
            parts.push(format!("{} gone", self.goods_gone));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_found() {
        let inventory = |money, items: &[&str]| Inventory {
            money,
            items: items.iter().map(|item| (*item).to_owned()).collect(),
        };
        let clean = Audit::of(&inventory(2 * FUNDS, &["a", "b"]), 2, 2);
        assert!(clean.is_clean());
        let poor = Audit::of(&inventory(2 * FUNDS - 5, &["a", "b"]), 2, 2);
        assert_eq!(poor.words(), "money -5");
        let odd = Audit::of(&inventory(2 * FUNDS, &["a", "a"]), 2, 2);
        assert_eq!(odd.words(), "1 sold twice, 1 gone");
    }
}

//! Audits money and goods after a round.

use std::collections::HashSet;

use serde::Serialize;

use super::market::{FUNDS, Inventory};

/// The result of an audit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Audit {
    /// Surplus of money; negative if some is missing.
    pub(super) money_off: i64,
    /// Items that exist in two places.
    pub(super) goods_twice: u64,
    /// Items that are missing.
    pub(super) goods_gone: u64,
}

impl Audit {
    pub(super) fn of(inventory: &Inventory, users: usize, created: u64) -> Audit {
        let distinct: HashSet<&String> = inventory.items.iter().collect();
        Audit {
            money_off: inventory.money - FUNDS * users as i64,
            goods_twice: (inventory.items.len() - distinct.len()) as u64,
            goods_gone: created.saturating_sub(distinct.len() as u64),
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

    pub(super) fn summary(&self) -> String {
        if self.is_clean() {
            return "balanced".to_owned();
        }
        let mut parts = Vec::new();
        if self.money_off != 0 {
            parts.push(format!("money {:+}", self.money_off));
        }
        if self.goods_twice > 0 {
            parts.push(format!("{} sold twice", self.goods_twice));
        }
        if self.goods_gone > 0 {
            parts.push(format!("{} missing", self.goods_gone));
        }
        parts.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_money_and_duplicate_goods_are_found() {
        let inventory = |money, items: &[&str]| Inventory {
            money,
            items: items.iter().map(|item| (*item).to_owned()).collect(),
        };
        let clean = Audit::of(&inventory(2 * FUNDS, &["a", "b"]), 2, 2);
        assert!(clean.is_clean());
        let poor = Audit::of(&inventory(2 * FUNDS - 5, &["a", "b"]), 2, 2);
        assert_eq!(poor.summary(), "money -5");
        let odd = Audit::of(&inventory(2 * FUNDS, &["a", "a"]), 2, 2);
        assert_eq!(odd.summary(), "1 sold twice, 1 missing");
    }
}

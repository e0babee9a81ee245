//! Where offers, money and goods are: in Redis, or in this process.
//!
//! Each method is one trip: what happens between two of them is what guards are for.

use super::local::Local;
use super::remote::Remote;
use crate::failure::Failure;

/// Everybody's money at the start. Nobody runs out of it, since this is about locks.
pub(super) const FUNDS: i64 = 1_000_000_000;

/// Something on offer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Offer {
    pub(super) item: String,
    pub(super) seller: String,
}

impl Offer {
    /// As the market's sorted set has it.
    pub(super) fn member(&self) -> String {
        format!("{}.{}", self.item, self.seller)
    }

    pub(super) fn parse(member: &str) -> Option<Offer> {
        let (item, seller) = member.split_once('.')?;
        Some(Offer {
            item: item.to_owned(),
            seller: seller.to_owned(),
        })
    }
}

/// What a buyer sees of an offer before buying.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// `None` once it is gone.
    pub(super) price: Option<i64>,
    pub(super) buyer_has: i64,
    pub(super) seller_has: i64,
}

/// Whether an optimistic transaction came through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Committed {
    Yes,
    /// Somebody else has changed what was watched.
    No,
    /// What was wanted is not there any more.
    Gone,
}

/// All that there is in the end.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) money: i64,
    pub(super) items: Vec<String>,
}

/// One trader's way to the market.
#[derive(Clone)]
pub(super) enum Market {
    Remote(Remote),
    Local(Local),
}

/// Asks whichever it is.
macro_rules! ask {
    ($market:expr, $inner:ident => $call:expr) => {
        match $market {
            Market::Remote($inner) => $call.await,
            Market::Local($inner) => Ok($call.await),
        }
    };
}

impl Market {
    /// New goods in a seller's hands.
    pub(super) async fn make(&mut self, seller: &str, items: &[String]) -> Result<(), Failure> {
        ask!(self, market => market.make(seller, items))
    }

    /// Whether the seller has it.
    pub(super) async fn has(&mut self, offer: &Offer) -> Result<bool, Failure> {
        ask!(self, market => market.has(offer))
    }

    /// Puts it on the market, out of the seller's hands, in one step.
    pub(super) async fn list(&mut self, offer: &Offer, price: i64) -> Result<(), Failure> {
        ask!(self, market => market.list(offer, price))
    }

    /// The same in two steps.
    pub(super) async fn list_in_steps(&mut self, offer: &Offer, price: i64) -> Result<(), Failure> {
        ask!(self, market => market.list_in_steps(offer, price))
    }

    /// Some offers, whichever.
    pub(super) async fn offers(&mut self, most: usize) -> Result<Vec<Offer>, Failure> {
        ask!(self, market => market.offers(most))
    }

    pub(super) async fn look(&mut self, offer: &Offer, buyer: &str) -> Result<Seen, Failure> {
        ask!(self, market => market.look(offer, buyer))
    }

    /// Money one way, the goods the other, in one step.
    pub(super) async fn settle(
        &mut self,
        offer: &Offer,
        buyer: &str,
        price: i64,
    ) -> Result<(), Failure> {
        ask!(self, market => market.settle(offer, buyer, price))
    }

    /// The same step by step, with what was read before: what people write who have never had two customers.
    pub(super) async fn settle_in_steps(
        &mut self,
        offer: &Offer,
        buyer: &str,
        seen: Seen,
        price: i64,
    ) -> Result<(), Failure> {
        ask!(self, market => market.settle_in_steps(offer, buyer, seen, price))
    }

    /// Counts everything.
    pub(super) async fn count(&mut self, users: &[String]) -> Result<Inventory, Failure> {
        ask!(self, market => market.count(users))
    }
}

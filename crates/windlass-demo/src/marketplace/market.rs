//! Offers, money and goods: in Redis, or in this process.
//!
//! Each method is one round trip; a guard protects what happens between two of them.

use windlass_term::Failure;

use super::local_market::LocalMarket;
use super::redis_market::RedisMarket;

/// Initial money of each user: more than can be spent in a round.
pub(super) const FUNDS: i64 = 1_000_000_000;

/// An item for sale.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Offer {
    pub(super) item: String,
    pub(super) seller: String,
}

impl Offer {
    /// The member of the sorted set of offers.
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

/// What a buyer reads before a purchase.
#[derive(Clone, Copy, Debug)]
pub(super) struct OfferView {
    /// `None` if it is no longer for sale.
    pub(super) price: Option<i64>,
    pub(super) buyer_has: i64,
    pub(super) seller_has: i64,
}

/// The outcome of an optimistic transaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CommitOutcome {
    Committed,
    /// A watched key has changed.
    Conflict,
    /// The item is no longer there.
    Gone,
}

/// All money and goods at the end.
#[derive(Debug, Default)]
pub(super) struct Inventory {
    pub(super) money: i64,
    pub(super) items: Vec<String>,
}

/// The connection of one trader to the market.
#[derive(Clone)]
pub(super) enum Market {
    Redis(RedisMarket),
    Local(LocalMarket),
}

/// Calls the method of either market.
macro_rules! call {
    ($market:expr, $inner:ident => $call:expr) => {
        match $market {
            Market::Redis($inner) => $call.await,
            Market::Local($inner) => Ok($call.await),
        }
    };
}

impl Market {
    /// Gives the seller new goods.
    pub(super) async fn make(&mut self, seller: &str, items: &[String]) -> Result<(), Failure> {
        call!(self, market => market.make(seller, items))
    }

    /// Whether the seller has the item.
    pub(super) async fn has(&mut self, offer: &Offer) -> Result<bool, Failure> {
        call!(self, market => market.has(offer))
    }

    /// Moves the item from the seller to the market, atomically.
    pub(super) async fn list(&mut self, offer: &Offer, price: i64) -> Result<(), Failure> {
        call!(self, market => market.list(offer, price))
    }

    /// The same in two round trips.
    pub(super) async fn list_in_steps(&mut self, offer: &Offer, price: i64) -> Result<(), Failure> {
        call!(self, market => market.list_in_steps(offer, price))
    }

    /// Some random offers.
    pub(super) async fn offers(&mut self, most: usize) -> Result<Vec<Offer>, Failure> {
        call!(self, market => market.offers(most))
    }

    pub(super) async fn inspect(
        &mut self,
        offer: &Offer,
        buyer: &str,
    ) -> Result<OfferView, Failure> {
        call!(self, market => market.inspect(offer, buyer))
    }

    /// Exchanges money and goods, atomically.
    pub(super) async fn settle(
        &mut self,
        offer: &Offer,
        buyer: &str,
        price: i64,
    ) -> Result<(), Failure> {
        call!(self, market => market.settle(offer, buyer, price))
    }

    /// The same step by step from values that were read before: correct only without concurrency.
    pub(super) async fn settle_in_steps(
        &mut self,
        offer: &Offer,
        buyer: &str,
        view: OfferView,
        price: i64,
    ) -> Result<(), Failure> {
        call!(self, market => market.settle_in_steps(offer, buyer, view, price))
    }

    /// Counts all money and goods.
    pub(super) async fn count(&mut self, users: &[String]) -> Result<Inventory, Failure> {
        call!(self, market => market.count(users))
    }
}

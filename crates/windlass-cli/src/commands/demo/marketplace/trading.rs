//! What listers and buyers do until the time is over, under each guard.

use std::time::{Duration, Instant};

use rand::Rng as _;
use tokio::time::sleep;
use windlass::Coordinator;

use super::market::{Committed, Market, Offer};
use crate::args::Trading;
use crate::failure::Failure;

/// How many offers a buyer looks through before fetching others.
const BROWSED: usize = 100;
/// How many things a lister makes at a time.
const BATCH: usize = 100;
/// How long a buyer waits for something to be on offer.
const EMPTY: Duration = Duration::from_millis(1);

/// One trader: who, how, and until when.
pub(super) struct Trader {
    pub(super) name: String,
    pub(super) guard: Trading,
    pub(super) market: Market,
    pub(super) store: Coordinator,
    /// In front of all names of locks.
    pub(super) prefix: String,
    pub(super) until: Instant,
}

/// What a trader has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Done {
    pub(super) made: u64,
    pub(super) listed: u64,
    pub(super) bought: u64,
    pub(super) retries: u64,
}

impl Trader {
    fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    /// Makes things and offers them.
    pub(super) async fn list(mut self) -> Result<Done, Failure> {
        let mut done = Done::default();
        while self.has_time() {
            let from = done.made;
            done.made += BATCH as u64;
            let items: Vec<String> = (from..done.made)
                .map(|number| format!("{}-{number}", self.name))
                .collect();
            self.market.make(&self.name, &items).await?;
            for item in items {
                if !self.has_time() {
                    break;
                }
                let offer = Offer {
                    item,
                    seller: self.name.clone(),
                };
                let price = rand::rng().random_range(1..=100);
                self.offer(&offer, price, &mut done).await?;
                done.listed += 1;
            }
        }
        Ok(done)
    }

    async fn offer(&mut self, offer: &Offer, price: i64, done: &mut Done) -> Result<(), Failure> {
        match (self.guard, &mut self.market) {
            (Trading::None, market) => {
                if market.has(offer).await? {
                    market.list_in_steps(offer, price).await?;
                }
            }
            (Trading::Watch, Market::Remote(market)) => {
                while market.list_watching(offer, price).await? == Committed::No {
                    done.retries += 1;
                }
            }
            (Trading::Script, Market::Remote(market)) => {
                market.list_scripted(offer, price).await?;
            }
            _ => {
                let _guard = self.store.lock(&self.lock_of(offer)).acquire().await?;
                if self.market.has(offer).await? {
                    self.market.list(offer, price).await?;
                }
            }
        }
        Ok(())
    }

    /// Buys whatever is on offer.
    pub(super) async fn buy(mut self) -> Result<Done, Failure> {
        let mut done = Done::default();
        while self.has_time() {
            let offers = self.market.offers(BROWSED).await?;
            if offers.is_empty() {
                sleep(EMPTY).await;
            }
            for offer in offers {
                if !self.has_time() {
                    break;
                }
                match self.purchase(&offer, &mut done).await? {
                    true => done.bought += 1,
                    // Somebody else was first.
                    false => done.retries += 1,
                }
            }
        }
        Ok(done)
    }

    async fn purchase(&mut self, offer: &Offer, done: &mut Done) -> Result<bool, Failure> {
        match (self.guard, &mut self.market) {
            (Trading::None, market) => {
                let seen = market.look(offer, &self.name).await?;
                let Some(price) = seen.price.filter(|price| *price <= seen.buyer_has) else {
                    return Ok(false);
                };
                market
                    .settle_in_steps(offer, &self.name, seen, price)
                    .await?;
                Ok(true)
            }
            (Trading::Watch, Market::Remote(market)) => loop {
                match market.buy_watching(offer, &self.name).await? {
                    Committed::Yes => return Ok(true),
                    Committed::Gone => return Ok(false),
                    Committed::No if Instant::now() >= self.until => return Ok(false),
                    Committed::No => done.retries += 1,
                }
            },
            (Trading::Script, Market::Remote(market)) => {
                market.buy_scripted(offer, &self.name).await
            }
            _ => {
                // Released in the background when it is dropped: the trade is done by then.
                let _guard = self.store.lock(&self.lock_of(offer)).acquire().await?;
                let seen = self.market.look(offer, &self.name).await?;
                let Some(price) = seen.price.filter(|price| *price <= seen.buyer_has) else {
                    return Ok(false);
                };
                self.market.settle(offer, &self.name, price).await?;
                Ok(true)
            }
        }
    }

    /// The whole market, or the one thing in it.
    fn lock_of(&self, offer: &Offer) -> String {
        match self.guard {
            Trading::Fine => format!("{}:lock:{}", self.prefix, offer.item),
            _ => format!("{}:lock", self.prefix),
        }
    }
}

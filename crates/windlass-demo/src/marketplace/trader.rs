//! Listers and buyers: they trade under a guard until the time is over.

use std::time::{Duration, Instant};

use rand::Rng as _;
use tokio::time::sleep;
use windlass::Coordinator;
use windlass_term::Failure;

use super::market::{CommitOutcome, Market, Offer};
use crate::args::TradeGuard;

/// Number of offers that a buyer fetches at a time.
const OFFERS_PER_FETCH: usize = 100;
/// Number of items that a lister creates at a time.
const BATCH: usize = 100;
/// Pause of a buyer when there are no offers.
const EMPTY_PAUSE: Duration = Duration::from_millis(1);

/// A lister or a buyer.
pub(super) struct Trader {
    pub(super) name: String,
    pub(super) guard: TradeGuard,
    pub(super) market: Market,
    pub(super) store: Coordinator,
    /// The prefix of all lock names.
    pub(super) prefix: String,
    pub(super) until: Instant,
}

/// What a trader has done.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TradeCounts {
    pub(super) created: u64,
    pub(super) listed: u64,
    pub(super) bought: u64,
    pub(super) retries: u64,
}

impl Trader {
    fn has_time(&self) -> bool {
        Instant::now() < self.until
    }

    /// Creates items and lists them for sale.
    pub(super) async fn list(mut self) -> Result<TradeCounts, Failure> {
        let mut done = TradeCounts::default();
        while self.has_time() {
            let from = done.created;
            done.created += BATCH as u64;
            let items: Vec<String> = (from..done.created)
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

    async fn offer(
        &mut self,
        offer: &Offer,
        price: i64,
        done: &mut TradeCounts,
    ) -> Result<(), Failure> {
        match (self.guard, &mut self.market) {
            (TradeGuard::None, market) => {
                if market.has(offer).await? {
                    market.list_in_steps(offer, price).await?;
                }
            }
            (TradeGuard::Watch, Market::Redis(market)) => {
                while market.list_watching(offer, price).await? == CommitOutcome::Conflict {
                    done.retries += 1;
                }
            }
            (TradeGuard::Script, Market::Redis(market)) => {
                market.list_scripted(offer, price).await?;
            }
            _ => {
                let _guard = self.store.lock(&self.lock_name(offer)).acquire().await?;
                if self.market.has(offer).await? {
                    self.market.list(offer, price).await?;
                }
            }
        }
        Ok(())
    }

    /// Buys items.
    pub(super) async fn buy(mut self) -> Result<TradeCounts, Failure> {
        let mut done = TradeCounts::default();
        while self.has_time() {
            let offers = self.market.offers(OFFERS_PER_FETCH).await?;
            if offers.is_empty() {
                sleep(EMPTY_PAUSE).await;
            }
            for offer in offers {
                if !self.has_time() {
                    break;
                }
                match self.purchase(&offer, &mut done).await? {
                    true => done.bought += 1,
                    // Another buyer was faster.
                    false => done.retries += 1,
                }
            }
        }
        Ok(done)
    }

    async fn purchase(&mut self, offer: &Offer, done: &mut TradeCounts) -> Result<bool, Failure> {
        match (self.guard, &mut self.market) {
            (TradeGuard::None, market) => {
                let view = market.inspect(offer, &self.name).await?;
                let Some(price) = view.price.filter(|price| *price <= view.buyer_has) else {
                    return Ok(false);
                };
                market
                    .settle_in_steps(offer, &self.name, view, price)
                    .await?;
                Ok(true)
            }
            (TradeGuard::Watch, Market::Redis(market)) => loop {
                match market.buy_watching(offer, &self.name).await? {
                    CommitOutcome::Committed => return Ok(true),
                    CommitOutcome::Gone => return Ok(false),
                    CommitOutcome::Conflict if Instant::now() >= self.until => return Ok(false),
                    CommitOutcome::Conflict => done.retries += 1,
                }
            },
            (TradeGuard::Script, Market::Redis(market)) => {
                market.buy_scripted(offer, &self.name).await
            }
            _ => {
                // Dropping it releases it in the background; the trade is complete by then.
                let _guard = self.store.lock(&self.lock_name(offer)).acquire().await?;
                let view = self.market.inspect(offer, &self.name).await?;
                let Some(price) = view.price.filter(|price| *price <= view.buyer_has) else {
                    return Ok(false);
                };
                self.market.settle(offer, &self.name, price).await?;
                Ok(true)
            }
        }
    }

    /// The lock of the whole market, or of the item.
    fn lock_name(&self, offer: &Offer) -> String {
        match self.guard {
            TradeGuard::Fine => format!("{}:lock:{}", self.prefix, offer.item),
            _ => format!("{}:lock", self.prefix),
        }
    }
}

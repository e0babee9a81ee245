//! The market in this process, for stores other than Redis. Each operation yields, as a round trip would.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::market::{FUNDS, Inventory, Offer, OfferView};

#[derive(Clone, Debug, Default)]
pub(super) struct LocalMarket(Arc<Mutex<MarketState>>);

#[derive(Debug, Default)]
struct MarketState {
    offers: HashMap<Offer, i64>,
    funds: HashMap<String, i64>,
    goods: HashMap<String, HashSet<String>>,
}

impl MarketState {
    fn funds(&mut self, user: &str) -> &mut i64 {
        self.funds.entry(user.to_owned()).or_insert(FUNDS)
    }

    fn goods(&mut self, user: &str) -> &mut HashSet<String> {
        self.goods.entry(user.to_owned()).or_default()
    }
}

impl LocalMarket {
    /// Yields to other traders, as during a round trip, and locks the state.
    async fn round_trip(&self) -> MutexGuard<'_, MarketState> {
        tokio::task::yield_now().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn make(&self, seller: &str, items: &[String]) {
        self.round_trip()
            .await
            .goods(seller)
            .extend(items.iter().cloned());
    }

    pub(super) async fn has(&self, offer: &Offer) -> bool {
        self.round_trip()
            .await
            .goods(&offer.seller)
            .contains(&offer.item)
    }

    pub(super) async fn list(&self, offer: &Offer, price: i64) {
        let mut state = self.round_trip().await;
        state.offers.insert(offer.clone(), price);
        state.goods(&offer.seller).remove(&offer.item);
    }

    pub(super) async fn list_in_steps(&self, offer: &Offer, price: i64) {
        self.round_trip().await.offers.insert(offer.clone(), price);
        self.round_trip()
            .await
            .goods(&offer.seller)
            .remove(&offer.item);
    }

    pub(super) async fn offers(&self, most: usize) -> Vec<Offer> {
        self.round_trip()
            .await
            .offers
            .keys()
            .take(most)
            .cloned()
            .collect()
    }

    pub(super) async fn inspect(&self, offer: &Offer, buyer: &str) -> OfferView {
        let mut state = self.round_trip().await;
        OfferView {
            price: state.offers.get(offer).copied(),
            buyer_has: *state.funds(buyer),
            seller_has: *state.funds(&offer.seller),
        }
    }

    pub(super) async fn settle(&self, offer: &Offer, buyer: &str, price: i64) {
        let mut state = self.round_trip().await;
        *state.funds(buyer) -= price;
        *state.funds(&offer.seller) += price;
        state.goods(buyer).insert(offer.item.clone());
        state.offers.remove(offer);
    }

    pub(super) async fn settle_in_steps(
        &self,
        offer: &Offer,
        buyer: &str,
        view: OfferView,
        price: i64,
    ) {
        *self.round_trip().await.funds(buyer) = view.buyer_has - price;
        *self.round_trip().await.funds(&offer.seller) = view.seller_has + price;
        self.round_trip()
            .await
            .goods(buyer)
            .insert(offer.item.clone());
        self.round_trip().await.offers.remove(offer);
    }

    pub(super) async fn count(&self, users: &[String]) -> Inventory {
        let mut state = self.round_trip().await;
        let mut all = Inventory::default();
        for user in users {
            all.money += *state.funds(user);
            all.items.extend(state.goods(user).iter().cloned());
        }
        let offered = state.offers.keys().map(|offer| offer.item.clone());
        all.items.extend(offered);
        all
    }
}

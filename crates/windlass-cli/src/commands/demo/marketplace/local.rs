//! The market in this process, for stores that are no Redis. Each trip takes a moment, as trips do.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::market::{FUNDS, Inventory, Offer, Seen};

#[derive(Clone, Debug, Default)]
pub(super) struct Local(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    offers: HashMap<Offer, i64>,
    funds: HashMap<String, i64>,
    goods: HashMap<String, HashSet<String>>,
}

impl State {
    fn funds(&mut self, user: &str) -> &mut i64 {
        self.funds.entry(user.to_owned()).or_insert(FUNDS)
    }

    fn goods(&mut self, user: &str) -> &mut HashSet<String> {
        self.goods.entry(user.to_owned()).or_default()
    }
}

impl Local {
    /// Others come first, as they would while a packet travels.
    async fn trip(&self) -> MutexGuard<'_, State> {
        tokio::task::yield_now().await;
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) async fn make(&self, seller: &str, items: &[String]) {
        self.trip()
            .await
            .goods(seller)
            .extend(items.iter().cloned());
    }

    pub(super) async fn has(&self, offer: &Offer) -> bool {
        self.trip().await.goods(&offer.seller).contains(&offer.item)
    }

    pub(super) async fn list(&self, offer: &Offer, price: i64) {
        let mut state = self.trip().await;
        state.offers.insert(offer.clone(), price);
        state.goods(&offer.seller).remove(&offer.item);
    }

    pub(super) async fn list_in_steps(&self, offer: &Offer, price: i64) {
        self.trip().await.offers.insert(offer.clone(), price);
        self.trip().await.goods(&offer.seller).remove(&offer.item);
    }

    pub(super) async fn offers(&self, most: usize) -> Vec<Offer> {
        self.trip()
            .await
            .offers
            .keys()
            .take(most)
            .cloned()
            .collect()
    }

    pub(super) async fn look(&self, offer: &Offer, buyer: &str) -> Seen {
        let mut state = self.trip().await;
        Seen {
            price: state.offers.get(offer).copied(),
            buyer_has: *state.funds(buyer),
            seller_has: *state.funds(&offer.seller),
        }
    }

    pub(super) async fn settle(&self, offer: &Offer, buyer: &str, price: i64) {
        let mut state = self.trip().await;
        *state.funds(buyer) -= price;
        *state.funds(&offer.seller) += price;
        state.goods(buyer).insert(offer.item.clone());
        state.offers.remove(offer);
    }

    pub(super) async fn settle_in_steps(&self, offer: &Offer, buyer: &str, seen: Seen, price: i64) {
        *self.trip().await.funds(buyer) = seen.buyer_has - price;
        *self.trip().await.funds(&offer.seller) = seen.seller_has + price;
        self.trip().await.goods(buyer).insert(offer.item.clone());
        self.trip().await.offers.remove(offer);
    }

    pub(super) async fn count(&self, users: &[String]) -> Inventory {
        let mut state = self.trip().await;
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

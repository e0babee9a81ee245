//! Waiting for the one ahead.

use std::sync::{Arc, Weak};

use super::{Place, takes_part};
use crate::store::Store;
use crate::txn::{Txn, get, last_before};
use crate::watch::Heard;
use crate::wire::{KeyValue, Op};
use windlass_core::Fence;
use windlass_core::error::Result;
use windlass_core::store::WakeAddress;

impl Store {
    /// Watches for the end of the one ahead, from the revision at which it was seen.
    pub(crate) fn wait_for(
        self: &Arc<Store>,
        place: &Place,
        wake: WakeAddress,
        ahead: &[u8],
        seen: i64,
    ) {
        let known = |store: &Store| {
            let tracks = store.tracks();
            let track = tracks.get(&place.key)?;
            Some(track.ahead.as_ref().is_some_and(|(key, _)| key == ahead))
        };
        if known(self).unwrap_or(true) {
            return; // it is watched already, or the claim was given up
        }
        let weak: Weak<Store> = Arc::downgrade(self);
        let waiting = place.clone();
        let tell = move |heard: Heard<'_>| {
            let lost = matches!(heard, Heard::Lost);
            let over = match heard {
                Heard::Events(events) => events.iter().any(|event| event.is_deletion()),
                Heard::Lost => true,
            };
            if let Some(store) = weak.upgrade().filter(|_| over) {
                if lost {
                    // Whoever is ahead may be the same, and must be watched anew.
                    store.stop_waiting(&waiting.key, wake);
                }
                let (runtime, place) = (store.runtime.clone(), waiting.clone());
                runtime.spawn(async move { store.look_ahead(&place, wake).await });
            }
        };
        let watching = self.watches.deletion(ahead, seen + 1, Arc::new(tell));
        let before = {
            let mut tracks = self.tracks();
            match tracks
                .get_mut(&place.key)
                .filter(|track| track.wake == wake)
            {
                Some(track) => track.ahead.replace((ahead.to_vec(), watching)),
                None => Some((Vec::new(), watching)),
            }
        };
        drop(before);
    }

    /// What was watched is not any more.
    fn stop_waiting(&self, key: &str, wake: WakeAddress) {
        let before = {
            let mut tracks = self.tracks();
            let track = tracks.get_mut(key).filter(|track| track.wake == wake);
            track.and_then(|track| track.ahead.take())
        };
        drop(before); // its watch ends outside the lock
    }

    /// The one ahead is gone: is it our turn? Only if our own key is still there, and nobody older is.
    async fn look_ahead(self: &Arc<Store>, place: &Place, wake: WakeAddress) {
        let created = match self.tracks().get(&place.key) {
            Some(track) if track.wake == wake && track.fence.is_none() => track.created,
            _ => return,
        };
        let Some(wakeups) = self.wakeups.upgrade() else {
            return;
        };
        let look = async {
            let txn = Txn::new().then(get(&place.key)).then(Op::Range(last_before(
                &place.prefix,
                created,
                1,
            )));
            let mut done = self.link.txn(txn).await?;
            let ours = done.found()?.pop();
            if ours.is_none_or(|kv| kv.create_revision != created) {
                return Ok(None); // let it ask, and hear that it is out of line
            }
            match done.found()?.pop() {
                None => Ok(Some(None)),
                Some(kv) if takes_part(&place.prefix, place.kind, &kv)? => {
                    Ok(Some(Some((kv, done.revision))))
                }
                Some(_) => self.whoever_is_ahead(place, created).await.map(Some),
            }
        };
        let seen: Result<Option<Option<(KeyValue, i64)>>> = look.await;
        match seen {
            Ok(Some(None)) => {
                let fence = Fence::new(created as u64);
                self.placed(&place.key, wake, created, Some(fence));
                wakeups.granted(wake.claim, Some(fence));
            }
            Ok(Some(Some((kv, revision)))) => self.wait_for(place, wake, &kv.key, revision),
            // Out of line, or not answered: the claim asks for itself, again and again if it must.
            Ok(None) | Err(_) => {
                if let Some(track) = self.tracks().get_mut(&place.key) {
                    track.ahead = None;
                }
                wakeups.granted(wake.claim, None);
            }
        }
    }
}

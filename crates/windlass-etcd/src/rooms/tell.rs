//! Who is in a room, for others to see.

use super::view::View;
use crate::store::Store;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Kind, Occupancy};

impl Store {
    pub(crate) async fn inspect_room(
        &self,
        kind: Kind,
        name: &Name,
        most: usize,
    ) -> Result<Occupancy> {
        let prefix = self.keys.prefix(kind, name);
        let view = self.view(kind, &prefix).await?;
        // Whoever should have opened it may be gone.
        let room = self.keys.room(kind, name);
        let view = self.open_if_full(kind, &prefix, &room, view).await?;
        self.occupancy_of_room(kind, name.as_str().to_owned(), &view, most)
            .await
    }

    pub(crate) async fn occupancy_of_room(
        &self,
        kind: Kind,
        name: String,
        view: &View,
        most: usize,
    ) -> Result<Occupancy> {
        let holding = view.standing().filter(|(_, held)| *held);
        let mut holders = Vec::new();
        for (seat, _) in holding.take(most) {
            let record = Some(seat.record.clone());
            holders.push(
                self.describe(seat.owner.clone(), &seat.kv, record, None)
                    .await?,
            );
        }
        holders.sort_by_key(|holder| holder.remaining);
        let mut state = Occupancy::new(kind, name);
        state.size = view.size(kind).unwrap_or(0);
        state.used = view.used();
        state.waiters = view.standing().filter(|(_, held)| !*held).count() as u64;
        state.holders = holders;
        state.open = view.round();
        Ok(state)
    }
}

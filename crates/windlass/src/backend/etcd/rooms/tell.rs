//! Who is in a room, for others to see.

use super::view::View;
use crate::backend::etcd::store::Store;
use crate::backend::{Kind, Occupancy};
use crate::error::Result;
use crate::name::Name;

impl Store {
    pub(in crate::backend::etcd) async fn inspect_room(
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

    pub(in crate::backend::etcd) async fn occupancy_of_room(
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
        Ok(Occupancy {
            kind,
            name,
            size: view.size(kind).unwrap_or(0),
            used: view.used(),
            waiters: view.standing().filter(|(_, held)| !*held).count() as u64,
            holders,
            open: view.round(),
        })
    }
}

//! Semaphores, read-write locks and barriers: deciding, and waiting for room. Who holds is told by
//! [`View`].

mod change;
mod remember;
mod renew;
mod sit;
mod stand;
mod tell;
mod view;
mod wake;

use super::store::Store;
use super::txn::some;
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::Kind;

pub(super) use renew::Views;
pub(super) use view::View;
pub(super) use wake::Waiting;

/// The keys of one claim, and of its room.
#[derive(Clone, Debug)]
pub(super) struct Chair {
    pub(super) kind: Kind,
    pub(super) name: Name,
    pub(super) prefix: String,
    pub(super) room: String,
    pub(super) key: String,
}

impl Chair {
    pub(crate) fn of(store: &Store, kind: Kind, name: &Name, owner: &Owner) -> Chair {
        Chair {
            kind,
            prefix: store.keys.prefix(kind, name),
            room: store.keys.room(kind, name),
            key: store.keys.claim(kind, name, owner),
            name: name.clone(),
        }
    }
}

impl Store {
    pub(crate) async fn view(&self, kind: Kind, prefix: &str) -> Result<View> {
        let whole = self.link.range(some(prefix, 0)).await?;
        View::read(
            kind,
            prefix,
            whole.header.unwrap_or_default().revision,
            whole.kvs,
        )
    }
}

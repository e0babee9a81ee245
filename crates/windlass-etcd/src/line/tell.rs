//! Who holds, for others to see.

use super::taking_part;
use crate::keys::{Whose, whose};
use crate::record::Record;
use crate::store::Store;
use crate::txn::{Txn, all, get};
use crate::wire::KeyValue;
use windlass_core::Owner;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Occupancy};

impl Store {
    pub(crate) async fn inspect_line(
        &self,
        kind: Kind,
        name: &Name,
        most: usize,
    ) -> Result<Occupancy> {
        let prefix = self.keys.prefix(kind, name);
        let whole = self.link.range(all(&prefix)).await?;
        let parts = taking_part(&prefix, kind, whole.kvs)?;
        self.occupancy_of_line(kind, name.as_str().to_owned(), &prefix, &parts, most)
            .await
    }

    pub(crate) async fn occupancy_of_line(
        &self,
        kind: Kind,
        name: String,
        prefix: &str,
        parts: &[KeyValue],
        most: usize,
    ) -> Result<Occupancy> {
        let mut holders = Vec::new();
        if let Some(first) = parts.first().filter(|_| most > 0) {
            holders.push(self.describe_in_line(prefix, kind, first).await?);
        }
        let mut state = Occupancy::new(kind, name);
        state.size = 1;
        state.used = u64::from(!parts.is_empty());
        state.waiters = (parts.len() as u64).saturating_sub(1);
        state.holders = holders;
        Ok(state)
    }

    /// Who holds, by its key. A neighbour goes by its lease, as its key does.
    pub(super) async fn describe_in_line(
        &self,
        prefix: &str,
        kind: Kind,
        kv: &KeyValue,
    ) -> Result<Holder> {
        let rest = String::from_utf8_lossy(kv.key.get(prefix.len()..).unwrap_or_default());
        let owner = match whose(&rest, kv.lease) {
            Whose::Ours { owner, .. } => owner,
            _ => rest.clone().into_owned(),
        };
        let text = || Some(String::from_utf8_lossy(&kv.value).into_owned());
        let (record, note) = match kind {
            Kind::Election => {
                let name = prefix.strip_prefix(self.keys.front()).unwrap_or(prefix);
                let name = Name::checked(name.trim_end_matches('/'));
                let record = match Owner::new(&owner) {
                    Ok(owner) => {
                        let beside = get(&self.keys.leader(&name, &owner));
                        let mut seen = self.link.txn(Txn::new().then(beside)).await?;
                        seen.found()?.pop().and_then(|kv| Record::read(&kv.value))
                    }
                    Err(_) => None,
                };
                (record, text())
            }
            _ => (Record::read(&kv.value), None),
        };
        self.describe(owner, kv, record, note).await
    }
}

//! Listing locks and pools.

use std::collections::BTreeSet;

use super::RedisClaims;
use super::inspect::MAX_CHECKED_WAITERS;
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{Kind, Occupancy, matches};

/// Keys that a server looks through in one step.
pub(crate) const SCAN_STEP: usize = 500;

impl RedisClaims {
    pub(super) async fn list_claims(
        &self,
        kinds: &[Kind],
        pattern: &str,
        most: usize,
    ) -> Result<Vec<Occupancy>> {
        let mut found: BTreeSet<(String, Kind)> = BTreeSet::new();
        for (_, master) in self.router.masters() {
            let mut cursor = 0u64;
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(cursor)
                    .arg("MATCH")
                    .arg(self.router.keys().all_claims());
                scan.arg("COUNT").arg(SCAN_STEP);
                let (next, keys): (u64, Vec<Vec<u8>>) = master.query(&scan).await?;
                // A key that is not text is none of a claim.
                let keys = keys.iter().filter_map(|key| std::str::from_utf8(key).ok());
                let claims = keys.filter_map(|key| self.router.keys().claim_of_key(key));
                let wanted =
                    claims.filter(|(kind, name)| kinds.contains(kind) && matches(pattern, name));
                found.extend(wanted.map(|(kind, name)| (name.to_owned(), kind)));
                cursor = next;
                if cursor == 0 {
                    break;
                }
            }
        }
        let mut states = Vec::new();
        for (name, kind) in found {
            // Another program's key may look like one of ours, with a name that is not valid.
            let Ok(name) = Name::new("list locks", None, &name) else {
                continue;
            };
            let state = self
                .inspect_one(kind, &name, most, MAX_CHECKED_WAITERS)
                .await?;
            if state.used > 0 || state.waiters > 0 {
                states.push(state);
            }
        }
        Ok(states)
    }
}

//! Those who wait: in line on a majority of the nodes at least, and ahead of the others on some.
//!
//! A claim waits in the lines of those who were [asked](super::turnout). A node that hands it the lock tells this client, and
//! when a majority has, the claim is looked at: it holds. If each of several claims is handed a
//! minority, nobody tells anybody anything more; so whoever was handed some is looked at after a moment,
//! too, and [gives way](super::renew) if need be.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use super::Shared;
use super::nodes::NodeSet;
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, GrantListener, Kind, Renewal};
use windlass_core::{Fence, Owner};

/// Long enough that the other nodes' wake-ups have come, if they are coming.
const A_MOMENT: Duration = Duration::from_millis(3);

/// More than are released while a renewal is under way.
const MOST_RELEASED: usize = 4096;

type Key = (Kind, Name, Owner);

/// The claims of this client that wait in line.
#[derive(Default)]
pub(super) struct Ballots {
    table: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    by_claim: HashMap<u64, Ballot>,
    by_key: HashMap<Key, u64>,
    /// What was released lately, the latest last; and which claim to it, if only that one.
    released: VecDeque<(Key, Option<u64>)>,
    /// How many claims have waited so far.
    count: u64,
}

struct Ballot {
    /// What was asked for, for a node that has forgotten it.
    ask: AcquireRequest,
    /// The nodes that were asked for it.
    asked: NodeSet,
    /// The nodes that have said that it holds there.
    held: NodeSet,
    /// A look is due in a moment.
    looking: bool,
    /// How often in a row it was looked at in vain.
    looks: u32,
    /// Another number each time that the claim lines up.
    turn: u64,
    /// The fences that looks have found it to hold under. Whoever asked may not have heard of it.
    fences: Vec<Fence>,
}

impl Ballots {
    /// The claim waits.
    pub(super) fn insert(&self, ask: AcquireRequest, asked: NodeSet) {
        let mut table = self.table();
        let claim = ask.wake.claim;
        let key = (ask.kind, ask.name.clone(), ask.owner.clone());
        table.by_key.insert(key, claim);
        table.count += 1;
        let ballot = Ballot {
            ask,
            asked,
            held: NodeSet::default(),
            looking: false,
            looks: 0,
            turn: table.count,
            fences: Vec::new(),
        };
        table.by_claim.insert(claim, ballot);
    }

    /// What was asked for and in which turn, if the claim waits as far as its keeper knows, which
    /// believes it to have this fence or place. A keeper that knows the fence has heard that it waits no
    /// more; until then it is looked at again, since a place in line is no fence.
    pub(super) fn waiting(&self, claim: u64, known: Fence) -> Option<(AcquireRequest, u64)> {
        let mut table = self.table();
        let ballot = table.by_claim.get(&claim)?;
        if !ballot.fences.contains(&known) {
            return Some((ballot.ask.clone(), ballot.turn));
        }
        table.remove(claim);
        None
    }

    /// The claim was granted at once. It may have waited before, and asked anew.
    pub(super) fn granted(&self, claim: u64) {
        self.table().remove(claim);
    }

    /// A look has found that the claim holds.
    pub(super) fn has(&self, claim: u64, turn: u64, fence: Fence) {
        if let Some(ballot) = self.table().by_claim.get_mut(&claim)
            && ballot.turn == turn
        {
            ballot.fences.push(fence);
        }
    }

    /// The claim waits no more, unless it has lined up again since.
    pub(super) fn remove(&self, claim: u64, turn: u64) {
        let mut table = self.table();
        if table.by_claim.get(&claim).is_some_and(|b| b.turn == turn) {
            table.remove(claim);
        }
    }

    /// The owner gives up what it has of that name: it waits no more, and no renewal that is under way
    /// brings it back.
    ///
    /// With a `claim`, only what is no later than that one. Tells whether it was waiting, as far as is known
    /// here.
    pub(super) fn forget(
        &self,
        kind: Kind,
        name: &Name,
        owner: &Owner,
        claim: Option<u64>,
    ) -> bool {
        let mut table = self.table();
        if table.released.len() == MOST_RELEASED {
            table.released.pop_front();
        }
        let key = (kind, name.clone(), owner.clone());
        table.released.push_back((key.clone(), claim));
        if table.by_claim.is_empty() {
            return false;
        }
        // Another claim of the same owner may stand in its place.
        let mut waited = claim.is_some_and(|claim| table.remove(claim));
        if let Some(&waiting) = table.by_key.get(&key)
            && claim.is_none_or(|claim| waiting <= claim)
        {
            waited |= table.remove(waiting);
        }
        waited
    }

    /// Asks some nodes for the claim if it waits, and tells which of them were not asked before. It cannot
    /// be given up meanwhile.
    pub(super) fn ask_of(&self, claim: u64, act: impl FnOnce(&mut NodeSet)) {
        if let Some(ballot) = self.table().by_claim.get_mut(&claim) {
            act(&mut ballot.asked);
        }
    }

    /// Does something unless that claim was released lately. It cannot be released meanwhile.
    pub(super) fn unless_released(&self, claim: &Renewal, act: impl FnOnce()) {
        let table = self.table();
        // Whoever comes as the same owner again has a later claim.
        let is_it = |((kind, name, owner), which): &(Key, Option<u64>)| {
            (*kind, name, owner) == (claim.kind, &claim.name, &claim.owner)
                && which.is_none_or(|which| claim.wake.claim <= which)
        };
        if !table.released.iter().any(is_it) {
            act();
        }
    }

    /// It holds on these nodes, as of now.
    pub(super) fn holds(&self, claim: u64, nodes: impl Iterator<Item = usize>) {
        if let Some(ballot) = self.table().by_claim.get_mut(&claim) {
            ballot.held = nodes.collect();
        }
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // Nothing in here panics between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Tells whether it was waiting: not if a look has found that it holds.
    fn remove(&mut self, claim: u64) -> bool {
        let Some(Ballot { ask, fences, .. }) = self.by_claim.remove(&claim) else {
            return false;
        };
        let key = (ask.kind, ask.name, ask.owner);
        if self.by_key.get(&key) == Some(&claim) {
            self.by_key.remove(&key);
        }
        fences.is_empty()
    }
}

/// So many moments until the next look, after so many in vain. Most often the first few decide; but those
/// ahead may be readers who hold together, which no look will change.
fn patience(looks: u32) -> u32 {
    1 << (looks / 4).min(6)
}

impl Shared {
    /// Has a waiting claim looked at in a moment.
    pub(super) fn look_soon(self: &Arc<Shared>, claim: u64) {
        let looks = match self.ballots.table().by_claim.get_mut(&claim) {
            Some(ballot) if !ballot.looking => {
                ballot.looking = true;
                ballot.looks += 1;
                ballot.looks
            }
            _ => return,
        };
        let shared = Arc::downgrade(self);
        let clock = self.clock.clone();
        // Not all at once: of two who meet again and again, one should be first some time.
        let moment = A_MOMENT.mul_f64(rand::random_range(1.0..=2.0)) * patience(looks);
        self.runtime.spawn(async move {
            clock.sleep(moment).await;
            let Some(shared) = shared.upgrade() else {
                return;
            };
            match shared.ballots.table().by_claim.get_mut(&claim) {
                Some(ballot) => ballot.looking = false,
                None => return,
            }
            shared.look_now(claim);
        });
    }

    fn look_now(&self, claim: u64) {
        if let Some(keeper) = self.wakeups.upgrade() {
            keeper.granted(claim, None);
        }
    }
}

/// Subscriber one node's wake-ups.
pub(super) struct Ear {
    pub(super) node: usize,
    pub(super) shared: OnceLock<Weak<Shared>>,
}

impl Ear {
    fn shared(&self) -> Option<Arc<Shared>> {
        self.shared.get()?.upgrade()
    }
}

impl GrantListener for Ear {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        let Some(shared) = self.shared() else {
            return;
        };
        let told_to_ask = fence == Some(Fence::new(0));
        let held = match shared.ballots.table().by_claim.get_mut(&claim) {
            Some(ballot) => {
                ballot.looks = 0;
                ballot.held.add(self.node);
                ballot.held.len()
            }
            // Faster than the answer "you are in line": then it is looked at when that is here.
            None => 0,
        };
        if held == 0 || held >= shared.majority || told_to_ask {
            shared.look_now(claim);
        } else {
            shared.look_soon(claim);
        }
    }

    fn missed(&self) {
        if let Some(keeper) = self.shared().and_then(|shared| shared.wakeups.upgrade()) {
            keeper.missed();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::patience;

    #[test]
    fn looks_in_vain_become_rare() {
        assert_eq!((1..4).map(patience).max(), Some(1));
        assert_eq!(patience(8), 4);
        assert_eq!(patience(u32::MAX), 64);
    }
}

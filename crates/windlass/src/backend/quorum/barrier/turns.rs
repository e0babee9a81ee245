//! How those in line for the next round hear of their turn.
//!
//! The nodes only say that a barrier has changed. So a client that has claims in line listens to that, looks
//! once for all of them, and tells those that have come in. Nobody polls: if news is lost, the
//! claim's next heartbeat finds out.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::Ask;
use crate::backend::quorum::Shared;
use crate::backend::quorum::together::Wanted;
use crate::backend::{Channel, Hears, Listening, WakeAddress};
use crate::lease::Owner;
use crate::name::Name;

/// The claims of this client that are in line, by barrier.
#[derive(Default)]
pub(in crate::backend::quorum) struct Turns(Mutex<HashMap<Name, Line>>);

struct Line {
    waiting: Vec<(Owner, WakeAddress)>,
    ear: Arc<Ear>,
    news: News,
    look: Look,
}

enum News {
    Unheard,
    /// Somebody is about to listen.
    Soon,
    Heard(#[expect(dead_code, reason = "listens as long as it lives")] Listening),
}

#[derive(PartialEq)]
enum Look {
    None,
    UnderWay,
    /// Something has changed since the one began that is under way.
    Again,
}

/// Hears of changes of one barrier.
struct Ear {
    shared: Weak<Shared>,
    name: Name,
}

impl Hears for Ear {
    fn heard(&self, _news: &[u8]) {
        if let Some(shared) = self.shared.upgrade() {
            shared.look_for_turns(&self.name);
        }
    }

    fn missed(&self) {
        self.heard(&[]);
    }
}

impl Turns {
    fn table(&self) -> MutexGuard<'_, HashMap<Name, Line>> {
        // Nothing in here panics between two changes that belong together.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// A claim of this client is in line.
    pub(super) fn waits_for_turn(self: &Arc<Shared>, name: Name, owner: Owner, wake: WakeAddress) {
        let mut table = self.turns.table();
        let line = table.entry(name.clone()).or_insert_with(|| Line {
            waiting: Vec::new(),
            ear: Arc::new(Ear {
                shared: Arc::downgrade(self),
                name: name.clone(),
            }),
            news: News::Unheard,
            look: Look::None,
        });
        let is_new = !line.waiting.iter().any(|(_, known)| *known == wake);
        if is_new {
            line.waiting.push((owner, wake));
        }
        let is_heard = !matches!(line.news, News::Unheard);
        if !is_heard {
            line.news = News::Soon;
            let (shared, ear) = (Arc::clone(self), Arc::clone(&line.ear));
            self.runtime.spawn(async move { shared.hear(ear).await });
        }
        drop(table);
        if is_new && is_heard {
            // Its turn may have been told of before it was here to be told.
            self.look_for_turns(&name);
        }
    }

    /// A claim of this client is in, or given up: with an address, only that one of the owner.
    pub(super) fn waits_no_more(&self, name: &Name, owner: &Owner, wake: Option<WakeAddress>) {
        let mut table = self.turns.table();
        let Some(line) = table.get_mut(name) else {
            return;
        };
        let is_it = |(who, which): &(Owner, WakeAddress)| {
            who == owner && wake.is_none_or(|wake| wake == *which)
        };
        line.waiting.retain(|waiting| !is_it(waiting));
        let unneeded = match line.waiting.is_empty() {
            true => table.remove(name),
            false => None,
        };
        // Not while others wait for the table: it ends listening.
        drop(table);
        drop(unneeded);
    }

    /// Begins to listen; and looks, since the turn may have come before.
    async fn hear(self: Arc<Shared>, ear: Arc<Ear>) {
        let channel = Channel {
            kind: Ask::KIND,
            name: ear.name.clone(),
        };
        let weak: Weak<Ear> = Arc::downgrade(&ear);
        let heard = self.listen(channel, weak).await;
        let unneeded = match self.turns.table().get_mut(&ear.name) {
            Some(line) if Arc::ptr_eq(&line.ear, &ear) => {
                // If it cannot be heard now, the next heartbeat tries again.
                line.news = heard.map_or(News::Unheard, News::Heard);
                None
            }
            _ => heard.ok(),
        };
        drop(unneeded);
        self.look_for_turns(&ear.name);
    }

    /// Looks whether somebody in line has come in, once for all that happens until it is looked at.
    fn look_for_turns(self: &Arc<Shared>, name: &Name) {
        {
            let mut table = self.turns.table();
            match table.get_mut(name) {
                None => return,
                Some(line) if line.look != Look::None => {
                    line.look = Look::Again;
                    return;
                }
                Some(line) => line.look = Look::UnderWay,
            }
        }
        let (shared, name) = (Arc::clone(self), name.clone());
        self.runtime.spawn(async move {
            while {
                shared.tell_turns(&name).await;
                shared.is_to_be_looked_at_again(&name)
            } {}
        });
    }

    fn is_to_be_looked_at_again(&self, name: &Name) -> bool {
        let mut table = self.turns.table();
        let Some(line) = table.get_mut(name) else {
            return false;
        };
        let again = line.look == Look::Again;
        line.look = match again {
            true => Look::UnderWay,
            false => Look::None,
        };
        again
    }

    /// Tells those who have come in, and those who are not in line any more.
    async fn tell_turns(self: &Arc<Shared>, name: &Name) {
        // What cannot be seen now, the next heartbeat will.
        let Ok(state) = self.barrier(name).await else {
            return;
        };
        let waiting = match self.turns.table().get(name) {
            Some(line) => line.waiting.clone(),
            None => return,
        };
        let Some(keeper) = self.wakeups.upgrade() else {
            return;
        };
        for (owner, wake) in waiting {
            match state.holds(&owner, wake) {
                Some(fence) => keeper.granted(wake.claim, Some(fence)),
                None if state.waits(&owner, wake) => {}
                None => {
                    // If it has given up, nobody else takes it off; if not, it says so again.
                    self.waits_no_more(name, &owner, Some(wake));
                    keeper.granted(wake.claim, None);
                }
            }
        }
    }
}

#[cfg(test)]
impl Shared {
    /// Nobody is about to listen to a barrier, or to look at it.
    pub(super) fn is_quiet(&self, name: &Name) -> bool {
        let table = self.turns.table();
        let quiet = |line: &Line| matches!(line.news, News::Heard(_)) && line.look == Look::None;
        table.get(name).is_none_or(quiet)
    }

    pub(super) fn is_known_to_wait(&self, name: &Name, wake: WakeAddress) -> bool {
        let table = self.turns.table();
        let line = table.get(name);
        line.is_some_and(|line| line.waiting.iter().any(|(_, known)| *known == wake))
    }
}

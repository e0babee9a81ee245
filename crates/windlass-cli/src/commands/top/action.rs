//! What `top` can end: a lock, or what one owner holds.

use windlass::{Coordinator, Kind, Released};
use windlass_term::{Failure, printable};

use super::rows::ClaimRow;
use crate::humanize;

/// Something to end, after a confirmation.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    /// Ends the claim on a lock. Its holder may have changed since the question was asked.
    Break { name: String },
    /// Ends the claim of one owner.
    Release {
        kind: Kind,
        name: String,
        size: u32,
        owner: String,
    },
}

impl Action {
    pub(super) fn break_of(row: &ClaimRow) -> Result<Action, String> {
        match (row.kind, &row.owner) {
            (Kind::Lock, Some(_)) => Ok(Action::Break {
                name: row.name.clone(),
            }),
            (Kind::Lock, None) => Err(not_held(row)),
            _ => Err("only a lock can be broken: r releases what the selected owner holds".into()),
        }
    }

    pub(super) fn release_of(row: &ClaimRow) -> Result<Action, String> {
        let Some(owner) = &row.owner else {
            return Err(not_held(row));
        };
        if row.kind == Kind::Once {
            return Err("a running `once` ends with its command".to_owned());
        }
        Ok(Action::Release {
            kind: row.kind,
            name: row.name.clone(),
            size: row.size,
            owner: owner.clone(),
        })
    }

    pub(super) fn question(&self) -> String {
        match self {
            Action::Break { name } => format!("Break the lock {}?", printable(name)),
            Action::Release {
                kind, name, owner, ..
            } => {
                let (name, owner) = (printable(name), printable(owner));
                format!("Release {} {name}, held by {owner}?", kind.word())
            }
        }
    }

    /// Ends it, and says what that did.
    pub(super) async fn perform(self, store: &Coordinator) -> Result<String, Failure> {
        match self {
            Action::Break { name } => {
                let holder = store.lock(&name).break_lock().await?;
                let name = printable(&name);
                Ok(match holder {
                    Some(holder) => {
                        let holder = humanize::holder(&holder);
                        format!("{name} was broken; its holder was {holder}")
                    }
                    None => format!("{name} was not held any more"),
                })
            }
            Action::Release {
                kind,
                name,
                size,
                owner,
            } => {
                let size = size.max(1);
                let released = match kind {
                    Kind::Semaphore => store.semaphore(&name, size).release_as(&owner).await?,
                    Kind::ReadWrite => store.rwlock(&name).release_as(&owner).await?,
                    Kind::Election => store.election(&name).resign_as(&owner).await?,
                    Kind::Barrier => store.barrier(&name, size).leave_as(&owner).await?,
                    _ => store.lock(&name).release_as(&owner).await?,
                };
                let (name, owner) = (printable(&name), printable(&owner));
                Ok(match released {
                    Released::WasHeld => format!("{name} was released; its holder was {owner}"),
                    _ => format!("{owner} did not hold {name} any more"),
                })
            }
        }
    }
}

fn not_held(row: &ClaimRow) -> String {
    format!("{} is not held by a single owner", printable(&row.name))
}

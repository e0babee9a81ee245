//! Keeping claims alive: a transaction confirms the session, and a look each node.

use std::sync::Arc;

use super::Store;
use super::claim_table::{Entry, State};
use super::errors::translate;
use super::session::{Session, is_same};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::store::{Renewal, Renewed, SameOwner};

/// Claims of one session, each with its index among all that are asked for.
type Group = Vec<(usize, Entry, Renewal)>;

impl Store {
    pub(super) async fn renew_all(
        self: Arc<Store>,
        renewals: Vec<Renewal>,
    ) -> Vec<Result<Renewed>> {
        let mut answers: Vec<Option<Result<Renewed>>> = Vec::new();
        let mut groups: Vec<(Arc<Session>, Group)> = Vec::new();
        for (index, renewal) in renewals.into_iter().enumerate() {
            let known = self.known(&renewal);
            let answer = match known {
                Some(entry) if entry.session.has_ended() => {
                    self.table.remove(entry.claim);
                    Some(Ok(Renewed::Gone))
                }
                Some(entry) if entry.node.is_none() => Some(Err(unknown())),
                Some(entry) => {
                    let group = groups.iter_mut().find(|(s, _)| is_same(s, &entry.session));
                    match group {
                        Some((_, group)) => group.push((index, entry, renewal)),
                        None => {
                            let session = Arc::clone(&entry.session);
                            groups.push((session, vec![(index, entry, renewal)]));
                        }
                    }
                    None
                }
                None if renewal.same_owner == SameOwner::Replace => {
                    Some(self.take_over(&renewal).await)
                }
                None => Some(Ok(Renewed::Gone)),
            };
            answers.push(answer);
        }
        let groups = groups.into_iter().map(|(session, group)| {
            let store = Arc::clone(&self);
            Box::pin(async move { store.renew_group(&session, group).await })
        });
        for (index, answer) in join_all(groups.collect()).await.into_iter().flatten() {
            answers[index] = Some(answer);
        }
        let answered = answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(unknown())));
        answered.collect()
    }

    /// What this client has of the claim. One who takes the place of another of the same owner may find
    /// that here.
    fn known(&self, renewal: &Renewal) -> Option<Entry> {
        self.table.get(renewal.wake.claim)
    }

    /// All claims of one session.
    async fn renew_group(
        &self,
        session: &Arc<Session>,
        group: Group,
    ) -> Vec<(usize, Result<Renewed>)> {
        let mut answers = Vec::with_capacity(group.len());
        let mut confirmed = false;
        let mut rest = group.into_iter();
        // One that is gone confirms nothing for the others: the next one is asked for.
        for (index, entry, renewal) in rest.by_ref() {
            match self.confirm(session, &entry).await {
                Ok(true) => {
                    answers.push((index, self.renewed(session, &entry, &renewal).await));
                    confirmed = true;
                    break;
                }
                Ok(false) => {
                    self.give_up(&entry);
                    answers.push((index, Ok(Renewed::Gone)));
                }
                Err(error) => {
                    let again = error.again();
                    answers.push((index, Err(error)));
                    answers.extend(rest.map(|(index, ..)| (index, Err(again.again()))));
                    return answers;
                }
            }
        }
        if !confirmed {
            return answers;
        }
        // All are asked before the first is awaited; they are answered after what was confirmed.
        let asked: Vec<_> = rest
            .map(|(index, entry, renewal)| {
                let path = entry.node.as_ref().map_or("", |node| &node.path);
                let there = session.client().check_stat(path);
                (index, entry, renewal, there)
            })
            .collect();
        for (index, entry, renewal, there) in asked {
            let answer = match there.await {
                Ok(Some(_)) => self.renewed(session, &entry, &renewal).await,
                Ok(None) => {
                    self.give_up(&entry);
                    Ok(Renewed::Gone)
                }
                Err(error) => Err(translate(error)),
            };
            answers.push((index, answer));
        }
        answers
    }

    /// Forgets a claim whose node is gone. A move of it that went unanswered may have left another one,
    /// which the session would keep alive.
    fn give_up(&self, entry: &Entry) {
        if let Some(entry) = self.table.remove(entry.claim) {
            tokio::spawn(self.shared().take_away(entry));
        }
    }

    async fn confirm(&self, session: &Session, entry: &Entry) -> Result<bool> {
        match &entry.node {
            Some(node) => session.confirm(&node.path).await,
            None => Err(unknown()),
        }
    }

    /// The node is there: how the claim stands.
    async fn renewed(
        &self,
        session: &Session,
        entry: &Entry,
        renewal: &Renewal,
    ) -> Result<Renewed> {
        let claim = entry.claim;
        self.table.change(claim, |entry| entry.extend(renewal.ttl));
        let state = self.table.get(claim).map(|entry| entry.state);
        if state != Some(State::Held) {
            let view = self.view(session, entry.kind, &entry.name).await?;
            self.open_if_complete(session, &entry.name, entry.kind, &view)
                .await?;
            let Some(index) = view.index_of(entry.mark) else {
                self.table.remove(claim);
                return Ok(Renewed::Gone);
            };
            if !view.held[index] {
                if self.is_too_heavy(entry, &view) {
                    self.table.remove(claim);
                    self.delete_node(entry).await?;
                    return Ok(Renewed::Gone);
                }
                return Ok(Renewed::Waiting { held_for: None });
            }
            if self.promote(entry, &view, index).await?.is_none() {
                self.give_up(entry);
                return Ok(Renewed::Gone);
            }
        }
        let note = renewal.note.as_deref();
        if renewal.write_anew || entry.data.note.as_deref() != note {
            self.write_down(entry, renewal).await?;
        }
        match self.table.get(claim).and_then(|entry| entry.node) {
            Some(node) => Ok(Renewed::Held { fence: node.fence }),
            None => Ok(Renewed::Gone),
        }
    }

    /// Tells others how long it has been held, and why.
    async fn write_down(&self, entry: &Entry, renewal: &Renewal) -> Result<()> {
        let since = self.clock.now() - renewal.age.as_millis() as i64;
        let changed = self.table.change(entry.claim, |entry| {
            entry.data.note = renewal.note.as_deref().map(str::to_owned);
            entry.data.since = Some(since);
            (entry.node.clone(), entry.data.bytes())
        });
        let Some((Some(node), data)) = changed else {
            return Ok(());
        };
        let client = entry.session.client();
        match client.set_data(&node.path, &data, None).await {
            Ok(stat) => self.clock.told(stat.mtime),
            // The next renewal finds out.
            Err(zookeeper_client::Error::NoNode) => {}
            Err(error) => return Err(translate(error)),
        }
        Ok(())
    }
}

fn unknown() -> Error {
    let message = "what became of the claim is not known yet";
    Error::new(ErrorKind::OutcomeUnknown, "renew", message)
}

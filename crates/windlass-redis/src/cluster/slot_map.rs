//! Who has which slot: asked of the nodes, and asked again.

use std::sync::{Arc, PoisonError, Weak};
use std::time::{Duration, Instant};

use redis::Value;

use super::Cluster;
use crate::address::HostPort;
use crate::connection::{Connection, pipeline};
use crate::errors::{CommandError, Rejection};
use crate::first_enough::first_enough;
use crate::slots::SLOTS;
use crate::topology::{ClusterLayout, newest_epoch};
use windlass_core::Moment;
use windlass_core::error::{Error, ErrorKind};

/// Nodes asked about slots at once.
const ASKED: usize = 8;
/// How often the listening connection is looked after.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// After so long without such a look, nothing is sure any more that depends on who had which slot.
pub(super) const OUT_OF_TOUCH: Duration = Duration::from_secs(5);
/// How often slots are asked about when nothing seems wrong: in so many looks.
const LOOKS_A_REFRESH: u32 = 30;

/// Who has which slot.
#[derive(Default)]
pub(super) struct SlotMap {
    pub(super) layout: ClusterLayout,
    /// For each slot, the number of its master in the layout.
    owners: Vec<Option<u16>>,
    pub(super) masters: Vec<Arc<Connection>>,
}

impl SlotMap {
    pub(super) fn owner(&self, slot: u16) -> Option<Arc<Connection>> {
        self.master_of(slot).cloned()
    }

    fn master_of(&self, slot: u16) -> Option<&Arc<Connection>> {
        let owner = (*self.owners.get(usize::from(slot))?)?;
        self.masters.get(usize::from(owner))
    }
}

impl Cluster {
    /// Asks the nodes who has which slot.
    pub(crate) async fn refresh(self: &Arc<Cluster>) -> Result<(), CommandError> {
        let wanted = Instant::now();
        let _one_at_a_time = self.refreshing.lock().await;
        let done = *self
            .refreshed
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if done.is_some_and(|done| done > wanted) {
            return Ok(()); // asked since we wanted to know
        }
        let (begun, asked) = (Instant::now(), self.clock.now());
        // Not always the same ones first: those may all be gone.
        let known = self.shuffled();
        let mut answers = Vec::new();
        for some in known.chunks(ASKED) {
            answers.extend(self.ask_about_slots(some).await);
            if answers.iter().any(|(_, layout)| layout.is_ok()) {
                break;
            }
        }
        let best = answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().ok());
        // Who is cut off from the others knows that the cluster is down, or has not heard of the
        // newest epoch.
        let Some(best) = best.max_by_key(|layout| (layout.is_ok, layout.epoch)) else {
            return Err(nobody_answers(&answers));
        };
        let known = self.layout().epoch;
        self.adopt(best.clone())?;
        // Those who have not heard of what is known here would not know of another change.
        if best.is_ok && best.epoch >= known {
            self.is_in_touch(asked);
        }
        *self
            .refreshed
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(begun);
        Ok(())
    }

    /// What each of these says, until most of them have said something.
    async fn ask_about_slots(
        &self,
        nodes: &[HostPort],
    ) -> Vec<(HostPort, Result<ClusterLayout, CommandError>)> {
        let most = nodes.len() / 2 + 1;
        let ask = |address: HostPort| {
            let link = self.link(&address);
            Box::pin(async move {
                let questions = [["CLUSTER", "INFO"], ["CLUSTER", "SLOTS"]].map(|[verb, what]| {
                    let mut question = redis::cmd(verb);
                    question.arg(what);
                    question
                });
                let answers = match link {
                    Ok(link) => link.send_all(&pipeline(questions)).await,
                    Err(failure) => Err(failure),
                };
                let answers = answers.and_then(|answers| answers.into_iter().collect());
                let layout = answers.and_then(|answers: Vec<Value>| {
                    ClusterLayout::read(&answers, &address.host).ok_or_else(not_understood)
                });
                (address, layout)
            })
        };
        let asked = nodes.iter().cloned().map(ask).collect();
        let enough = |got: &[(HostPort, Result<ClusterLayout, CommandError>)]| {
            got.iter().filter(|(_, layout)| layout.is_ok()).count() >= most
        };
        first_enough(asked, self.call_timeout / 2, Duration::ZERO, enough).await
    }

    /// Somebody was asked whether anything has changed, beginning at that moment.
    fn is_in_touch(&self, begun: Moment) {
        let mut in_touch = self.in_touch.lock().unwrap_or_else(PoisonError::into_inner);
        *in_touch = begun.max(*in_touch);
    }

    /// If nobody has asked for some time whether anything has changed, anything may have: we were put to sleep, or
    /// nobody answered.
    pub(super) fn doubt_if_out_of_touch(&self) {
        let now = self.clock.now();
        let mut in_touch = self.in_touch.lock().unwrap_or_else(PoisonError::into_inner);
        if now.since(*in_touch) > OUT_OF_TOUCH {
            *in_touch = now;
            let links = self.links();
            links.values().for_each(|link| link.slots_may_have_moved());
        }
    }

    pub(super) fn refresh_soon(self: &Arc<Cluster>) {
        let cluster = Arc::clone(self);
        tokio::spawn(async move { cluster.refresh().await });
    }

    fn adopt(&self, layout: ClusterLayout) -> Result<(), CommandError> {
        let masters: Result<Vec<_>, _> = layout.masters.iter().map(|at| self.link(at)).collect();
        let masters = masters?;
        let mut owners = vec![None; usize::from(SLOTS)];
        for (range, master) in &layout.ranges {
            for slot in range.clone() {
                owners[usize::from(slot)] = Some(*master);
            }
        }
        let table = Arc::new(SlotMap {
            layout,
            owners,
            masters,
        });
        let before = {
            let mut known = self.table.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *known, Arc::clone(&table))
        };
        // Whoever has a slot again may have it from somebody who began from an old copy. Between two looks it
        // may have been elsewhere and come back; but not without a new decision.
        if table.layout.epoch != before.layout.epoch {
            let links = table.masters.iter();
            links.for_each(|link| link.slots_may_have_moved());
        }
        // A move to one who decided last is no new decision.
        for slot in 0..SLOTS {
            let (was, is) = (before.master_of(slot), table.master_of(slot));
            let moved = was.map(Arc::as_ptr) != is.map(Arc::as_ptr);
            let ends = was.into_iter().chain(is).filter(|_| moved);
            ends.for_each(|link| link.slot_moved(slot));
        }
        let known = self.known();
        self.links().retain(|address, link| {
            // One that is no master any more may become one again, under another reign.
            if !table.layout.masters.contains(address) {
                link.drop_connection();
            }
            known.contains(address)
        });
        Ok(())
    }
}

fn not_understood() -> CommandError {
    CommandError::Sent((redis::ErrorKind::Parse, "CLUSTER SLOTS was not understood").into())
}

/// Why nobody could be asked: the reason that most needs to be known, or each node's.
fn nobody_answers(answers: &[(HostPort, Result<ClusterLayout, CommandError>)]) -> CommandError {
    let failures = || {
        answers
            .iter()
            .filter_map(|(_, answer)| answer.as_ref().err())
    };
    let telling = failures().find(|failure| {
        let kind = Error::from((*failure).clone()).kind();
        matches!(kind, ErrorKind::InvalidInput | ErrorKind::AccessDenied)
    });
    // "This instance has cluster support disabled".
    let telling = telling.or_else(|| failures().find(|failure| failure.code().is_some()));
    if let Some(failure) = telling {
        return failure.clone();
    }
    let each = answers.iter().map(|(address, answer)| match answer {
        Err(CommandError::NotSent(e) | CommandError::Sent(e)) => format!("{address}: {e}"),
        Err(CommandError::Rejected(refused)) => format!("{address}: {}", refused.message),
        Ok(_) => address.to_string(),
    });
    let each: Vec<String> = each.collect();
    CommandError::Rejected(Rejection {
        kind: ErrorKind::Unreachable,
        message: match each.is_empty() {
            true => "no node of the cluster answers".to_owned(),
            false => format!("no node of the cluster answers ({})", each.join("; ")),
        },
        hint: "are they running, and are hosts, ports and TLS right?",
    })
}

/// What a node's word means for what is known of slots.
#[derive(Debug, PartialEq, Eq)]
enum Told {
    /// All is as it was.
    NothingNew,
    /// It knows of a change, or has not heard of the last one, and so would not know of another.
    Otherwise,
    /// It hears nothing from the others.
    CutOff,
}

/// What it means that a node says that to `CLUSTER INFO`, for one who knows of the changes up to `known`.
fn told(info: &str, known: u64) -> Told {
    if !info.contains("cluster_state:ok") {
        return Told::CutOff;
    }
    match newest_epoch(info) {
        Some(epoch) if epoch == known => Told::NothingNew,
        _ => Told::Otherwise,
    }
}

/// Looks after the listening connection, which nothing else is sent over that would notice its end; and
/// asks about slots now and then, as one that is not used would not hear of a change.
pub(super) async fn recheck_after(cluster: Weak<Cluster>) {
    for look in 1u32.. {
        tokio::time::sleep(LOOK_AFTER).await;
        let Some(cluster) = cluster.upgrade() else {
            return;
        };
        let mut question = redis::cmd("CLUSTER");
        question.arg("INFO");
        let begun = cluster.clock.now();
        match cluster.ear().query::<String>(&question).await {
            Ok(info) => match told(&info, cluster.layout().epoch) {
                Told::NothingNew => cluster.is_in_touch(begun),
                Told::Otherwise => drop(cluster.refresh().await),
                Told::CutOff => {
                    let _ = cluster.refresh().await;
                    if cluster.layout().is_ok {
                        cluster.ear().leave();
                    }
                }
            },
            Err(_) => {
                let _ = cluster.refresh().await;
                let _ = cluster.ear().connect().await;
            }
        }
        if look % LOOKS_A_REFRESH == 0 {
            let _ = cluster.refresh().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_node_that_knows_what_is_known_tells_that_nothing_has_changed() {
        let says = |info: &str| told(info, 7);
        let ok = |epoch| format!("cluster_state:ok\r\ncluster_current_epoch:{epoch}\r\n");
        assert_eq!(says(&ok(7)), Told::NothingNew);
        assert_eq!(says(&ok(8)), Told::Otherwise);
        assert_eq!(
            says(&ok(6)),
            Told::Otherwise,
            "it has not heard of the last change"
        );
        assert_eq!(says("cluster_state:ok\r\n"), Told::Otherwise);
        assert_eq!(
            says("cluster_state:fail\r\ncluster_current_epoch:7\r\n"),
            Told::CutOff
        );
    }
}

//! The rules for the history of a lock.
//!
//! * **Exclusion.** No two clients held the lock at the same time. A client certainly held it from
//!   the grant until it last saw a valid lease, which is before it learned of a loss and before it
//!   requested the release. Time that a frozen or killed client did not observe does not count as
//!   held.
//! * **Fences.** No two grants have the same fence, and of two grants in order of time the later
//!   one has the higher fence. In order of time means: the first was held before the second was
//!   granted, or granted before the second was requested.
//! * **Gates.** An admitted fence is not lower than one that was admitted before it was sent.
//! * **Loss** is final: a client that learned of it never observes itself as holder again.
//! * **Recovery.** After each fault a client is granted the lock.
//!
//! Counted but not judged: how many clients were overtaken by one that requested clearly later, and
//! how long no client was granted the lock around each fault. Overtaking a dead or disconnected
//! waiter is correct.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{HistoryEvent, Observation};
use super::{HeldInterval, in_order};

/// A request that is later by this much is clearly behind in the queue: longer than a reply takes.
const CLEARLY_LATER: u64 = 100_000_000;

/// One attempt to acquire the lock, as its client observed it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockAttempt {
    /// The client.
    pub client: String,
    /// The number of this attempt; unique for the client.
    pub number: u64,
    /// When the client was about to send the request.
    pub asked: u64,
    /// When the client learned of the grant, and the fence.
    pub granted: Option<(u64, u64)>,
    /// The grant came some time before the client learned of it.
    pub learned_late: bool,
    /// When the client last saw that it held the lock.
    pub held: Option<u64>,
    /// When the client learned of a loss.
    pub lost: Option<u64>,
    /// When the client was about to send the release.
    pub release_asked: Option<u64>,
}

impl LockAttempt {
    /// The time in which the client certainly held the lock.
    pub fn certainly_held(&self) -> Option<HeldInterval> {
        let (begin, fence) = self.granted?;
        Some(HeldInterval {
            what: format!("{}#{}", self.client, self.number),
            weight: 1,
            fence,
            begin,
            end: self.held.filter(|held| *held >= begin)?,
        })
    }
}

/// A write that a gate admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmittedWrite {
    /// The client.
    pub client: String,
    /// The gate.
    pub gate: String,
    /// The fence.
    pub fence: u64,
    /// When the write was sent.
    pub asked: u64,
    /// When the reply arrived.
    pub answered: u64,
}

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Breach {
    /// Two clients held the lock at the same time.
    TwoHolders(Box<LockAttempt>, Box<LockAttempt>),
    /// Two grants have one fence.
    SameFence(Box<LockAttempt>, Box<LockAttempt>),
    /// A later grant has a lower fence.
    FenceWentBack(Box<LockAttempt>, Box<LockAttempt>),
    /// A write was admitted after one with a higher fence.
    StaleWrite(AdmittedWrite, AdmittedWrite),
    /// A client observed itself as holder after it had learned of the loss.
    HeldAfterLoss(Box<LockAttempt>),
    /// No client was granted the lock after the fault.
    NoRecovery(Recovery),
}

/// A fault, and how long it interrupted service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    /// The fault and its victim.
    pub fault: String,
    /// When the fault began.
    pub begin: u64,
    /// When the fault ended.
    pub end: u64,
    /// The longest time without a grant or a valid lease, from the last one before the fault to the
    /// first grant after its end.
    pub gap: u64,
    /// Time from the end of the fault to the next grant.
    pub after: Option<u64>,
}

/// The result for one lock.
#[derive(Clone, Debug, Default)]
pub struct Verdict {
    /// The name of the lock.
    pub what: String,
    /// All attempts, ordered by request time.
    pub attempts: Vec<LockAttempt>,
    /// How many writes were admitted.
    pub admitted: usize,
    /// How many writes were rejected as stale.
    pub refused: usize,
    /// Violations, at most one of each kind for each attempt.
    pub breaches: Vec<Breach>,
    /// How many clients were overtaken.
    pub overtaken: usize,
    /// The faults, and how long each interrupted service.
    pub recoveries: Vec<Recovery>,
}

/// Checks all locks of a history. Faults count for all of them.
pub fn check(events: &[HistoryEvent]) -> Vec<Verdict> {
    let is_fault = |e: &&HistoryEvent| {
        matches!(
            e.seen,
            Observation::Fault { .. } | Observation::Healed { .. }
        )
    };
    let names: BTreeSet<&str> = events
        .iter()
        .filter(|e| !is_fault(e))
        .map(|e| e.what.as_str())
        .collect();
    let look = |what: &str| {
        let of_it = |e: &&HistoryEvent| is_fault(e) || e.what == what;
        let mut events: Vec<&HistoryEvent> = events.iter().filter(of_it).collect();
        events.sort_by_key(|e| e.at);
        check_one(what, &events)
    };
    names.into_iter().map(look).collect()
}

fn check_one(what: &str, events: &[&HistoryEvent]) -> Verdict {
    let attempts = attempts(events);
    let mut breaches = two_holders(&attempts);
    breaches.extend(same_fence(&attempts));
    breaches.extend(fence_went_back(&attempts));
    breaches.extend(held_after_loss(&attempts));
    let (writes, refused) = writes(events);
    breaches.extend(stale_writes(&writes));
    let recoveries = recoveries(events, &attempts);
    let stuck = recoveries.iter().filter(|r| r.after.is_none()).cloned();
    breaches.extend(stuck.map(Breach::NoRecovery));
    Verdict {
        what: what.to_owned(),
        admitted: writes.len(),
        refused,
        breaches,
        overtaken: overtaken(&attempts),
        recoveries,
        attempts,
    }
}

fn attempts(events: &[&HistoryEvent]) -> Vec<LockAttempt> {
    let mut all: BTreeMap<(&str, u64), LockAttempt> = BTreeMap::new();
    for event in events {
        let number = match event.seen {
            Observation::Asked { attempt }
            | Observation::Granted { attempt, .. }
            | Observation::Running { attempt, .. }
            | Observation::NotGranted { attempt, .. }
            | Observation::Held { attempt }
            | Observation::Lost { attempt }
            | Observation::ReleaseAsked { attempt }
            | Observation::Released { attempt, .. } => attempt,
            _ => continue,
        };
        let attempt = all
            .entry((&event.client, number))
            .or_insert_with(|| LockAttempt {
                client: event.client.clone(),
                number,
                asked: event.at,
                ..LockAttempt::default()
            });
        match event.seen {
            Observation::Granted { fence, .. } => attempt.granted = Some((event.at, fence)),
            Observation::Running { fence, .. } => {
                attempt.granted = Some((event.at, fence));
                attempt.learned_late = true;
            }
            Observation::Held { .. } => attempt.held = attempt.held.max(Some(event.at)),
            Observation::Lost { .. } => attempt.lost = attempt.lost.or(Some(event.at)),
            Observation::ReleaseAsked { .. } => attempt.release_asked = Some(event.at),
            _ => {}
        }
    }
    let mut all: Vec<LockAttempt> = all.into_values().collect();
    all.sort_by_key(|attempt| attempt.asked);
    all
}

fn two_holders(attempts: &[LockAttempt]) -> Vec<Breach> {
    let mut held: Vec<(HeldInterval, &LockAttempt)> = attempts
        .iter()
        .filter_map(|attempt| Some((attempt.certainly_held()?, attempt)))
        .collect();
    held.sort_by_key(|(held, _)| held.begin);
    let mut breaches = Vec::new();
    let mut longest: Option<&(HeldInterval, &LockAttempt)> = None;
    for next in &held {
        if let Some(before) = longest.filter(|before| before.0.end > next.0.begin) {
            breaches.push(Breach::TwoHolders(
                Box::new(before.1.clone()),
                Box::new(next.1.clone()),
            ));
        }
        if longest.is_none_or(|longest| next.0.end > longest.0.end) {
            longest = Some(next);
        }
    }
    breaches
}

fn same_fence(attempts: &[LockAttempt]) -> Vec<Breach> {
    let mut first: BTreeMap<u64, &LockAttempt> = BTreeMap::new();
    let mut breaches = Vec::new();
    for attempt in attempts {
        let Some((_, fence)) = attempt.granted else {
            continue;
        };
        if let Some(known) = first.get(&fence) {
            breaches.push(Breach::SameFence(
                Box::new((*known).clone()),
                Box::new(attempt.clone()),
            ));
        } else {
            first.insert(fence, attempt);
        }
    }
    breaches
}

fn fence_went_back(attempts: &[LockAttempt]) -> Vec<Breach> {
    let with = |begin: fn(&LockAttempt) -> Option<u64>, end: fn(&LockAttempt) -> Option<u64>| {
        let spans: Vec<(u64, u64, u64, &LockAttempt)> = attempts
            .iter()
            .filter_map(|a| Some((begin(a)?, end(a)?, a.granted?.1, a)))
            .collect();
        let pairs = in_order(&spans, |before, after| before > after);
        pairs
            .into_iter()
            .map(|(before, after)| (before.clone(), after.clone()))
            .collect::<Vec<_>>()
    };
    // Held before the other was granted; granted before the other was requested.
    let held = with(
        |a| match a.learned_late {
            true => Some(a.asked),
            false => a.granted.map(|(at, _)| at),
        },
        |a| a.certainly_held().map(|h| h.end),
    );
    let asked = with(|a| Some(a.asked), |a| a.granted.map(|(at, _)| at));
    let mut pairs = held;
    for pair in asked {
        if !pairs.iter().any(|known| known.1 == pair.1) {
            pairs.push(pair);
        }
    }
    pairs
        .into_iter()
        .map(|(before, after)| Breach::FenceWentBack(Box::new(before), Box::new(after)))
        .collect()
}

fn held_after_loss(attempts: &[LockAttempt]) -> Vec<Breach> {
    let breaks = |a: &&LockAttempt| a.lost.is_some_and(|lost| a.held > Some(lost));
    let bad = attempts.iter().filter(breaks).cloned();
    bad.map(|attempt| Breach::HeldAfterLoss(Box::new(attempt)))
        .collect()
}

/// The admitted writes, and how many were rejected.
fn writes(events: &[&HistoryEvent]) -> (Vec<AdmittedWrite>, usize) {
    let mut admitted_ones = Vec::new();
    let mut refused = 0;
    for event in events {
        if let Observation::Gate {
            gate,
            fence,
            asked,
            admitted,
        } = &event.seen
        {
            refused += usize::from(!admitted);
            if *admitted {
                admitted_ones.push(AdmittedWrite {
                    client: event.client.clone(),
                    gate: gate.clone(),
                    fence: *fence,
                    asked: *asked,
                    answered: event.at,
                });
            }
        }
    }
    (admitted_ones, refused)
}

fn stale_writes(writes: &[AdmittedWrite]) -> Vec<Breach> {
    let gates: BTreeSet<&str> = writes.iter().map(|write| write.gate.as_str()).collect();
    let mut breaches = Vec::new();
    for gate in gates {
        let spans: Vec<(u64, u64, u64, &AdmittedWrite)> = writes
            .iter()
            .filter(|write| write.gate == gate)
            .map(|write| (write.asked, write.answered, write.fence, write))
            .collect();
        // The same holder may write again, so equal fences are in order.
        for (before, after) in in_order(&spans, |before, after| before > after) {
            breaches.push(Breach::StaleWrite(before.clone(), after.clone()));
        }
    }
    breaches
}

fn overtaken(attempts: &[LockAttempt]) -> usize {
    let mut served: Vec<(u64, u64)> = attempts
        .iter()
        .filter_map(|a| Some((a.granted?.0, a.asked)))
        .collect();
    served.sort_unstable();
    let mut latest = 0;
    let mut count = 0;
    for (_, asked) in served {
        count += usize::from(latest > asked + CLEARLY_LATER);
        latest = latest.max(asked);
    }
    count
}

fn recoveries(events: &[&HistoryEvent], attempts: &[LockAttempt]) -> Vec<Recovery> {
    let mut grants: Vec<u64> = attempts.iter().filter_map(|a| Some(a.granted?.0)).collect();
    grants.sort_unstable();
    let mut signs = grants.clone();
    signs.extend(
        attempts
            .iter()
            .filter_map(|a| Some(a.certainly_held()?.end)),
    );
    signs.sort_unstable();
    let mut open: BTreeMap<(&str, &str), u64> = BTreeMap::new();
    let mut all = Vec::new();
    for event in events {
        match &event.seen {
            Observation::Fault { kind } => {
                open.insert((&event.what, kind), event.at);
            }
            Observation::Healed { kind } => {
                if let Some(begin) = open.remove(&(event.what.as_str(), kind.as_str())) {
                    let end = event.at;
                    let next = grants.get(grants.partition_point(|at| *at < end)).copied();
                    all.push(Recovery {
                        fault: format!("{kind} {}", event.what),
                        begin,
                        end,
                        gap: longest_gap(&signs, begin, next.unwrap_or(end)),
                        after: next.map(|next| next - end),
                    });
                }
            }
            _ => {}
        }
    }
    all
}

/// The longest time between two signs of service, from the last one before `begin` up to `end`.
fn longest_gap(signs: &[u64], begin: u64, end: u64) -> u64 {
    let first = signs.partition_point(|at| *at <= begin).saturating_sub(1);
    let within = signs[first.min(signs.len())..].iter().copied();
    let mut last = within.clone().next().unwrap_or(begin).min(begin);
    let mut longest = 0;
    for sign in within.take_while(|sign| *sign < end).chain([end]) {
        longest = longest.max(sign.saturating_sub(last));
        last = last.max(sign);
    }
    longest
}

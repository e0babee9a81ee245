//! Renewing many claims at once: each lease once, and a look at the keys of all of them.

use std::collections::HashMap;
use std::sync::Arc;

use super::leases::{Lease, Renewing};
use super::rooms::Views;
use super::store::{Expected, Store};
use super::txn::{MOST_OPS, Txn};
use super::wire::Op;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::join::join_all;
use windlass_core::store::{Renewal, Renewed, SameOwner};

use super::claims::Layout;

/// A renewal of a claim that is where it was.
struct Check {
    at: usize,
    renewal: Renewal,
    layout: Layout,
    lease: Arc<Lease>,
    expected: Expected,
    ops: Vec<Op>,
}

impl Store {
    /// Renews the leases, and makes sure that the keys are still there.
    pub(super) async fn renew_all(
        self: &Arc<Store>,
        renewals: Vec<Renewal>,
    ) -> Vec<Result<Renewed>> {
        let mut answers: Vec<Option<Result<Renewed>>> = Vec::new();
        answers.resize_with(renewals.len(), || None);
        let mut checks = Vec::new();
        let mut rewrites = Vec::new();
        for (at, renewal) in renewals.into_iter().enumerate() {
            let layout = Layout::of(self, renewal.kind, &renewal.name, &renewal.owner);
            match self.how_to_renew(at, renewal, layout) {
                Ok(check) => checks.push(check),
                Err(rewrite) => rewrites.push(rewrite),
            }
        }
        // Each lease once, however many claims are on it.
        let mut leases: HashMap<i64, (Arc<Lease>, &str)> = HashMap::new();
        let now = self.clock.now();
        for check in &checks {
            if !check.lease.covers(now, check.renewal.ttl) {
                leases.insert(
                    check.lease.id,
                    (Arc::clone(&check.lease), check.layout.key()),
                );
            }
        }
        let kept = leases.values().map(|(lease, key)| {
            Box::pin(async move { (lease.id, self.leases.keep_alive(lease, key).await) })
        });
        let kept: HashMap<i64, Result<Renewing>> =
            join_all(kept.collect()).await.into_iter().collect();
        let leases: Vec<Arc<Lease>> = leases.into_values().map(|(lease, _)| lease).collect();
        let (checks, chunks) = self.sort_out(checks, &kept, &mut answers);
        let views = Views::default();
        let chunks = chunks.into_iter();
        let chunks = chunks.map(|range| Box::pin(self.check(&checks[range], &kept, &views)));
        for chunk in join_all(chunks.collect()).await {
            for (at, answer) in chunk {
                answers[at] = Some(answer);
            }
        }
        for lease in leases.iter().filter(|lease| lease.shared) {
            self.sweep(lease);
        }
        let rewritten = rewrites.into_iter().map(|rewrite| {
            let (at, renewal, layout) = *rewrite;
            Box::pin(async move {
                let renewed = match &layout {
                    Layout::WaitQueue(place) => self.rewrite_in_line(place, &renewal).await,
                    Layout::Room(chair) => self.rewrite_in_room(chair, &renewal).await,
                };
                (at, self.after_renewal(&layout, &renewal, renewed))
            })
        });
        for (at, answer) in join_all(rewritten.collect()).await {
            answers[at] = Some(answer);
        }
        let missing = || {
            Err(Error::new(
                ErrorKind::Store,
                "renew",
                "nobody answered for it",
            ))
        };
        answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(missing))
            .collect()
    }

    /// A look is enough for a claim that is on the lease it should be on, as it was written.
    fn how_to_renew(
        &self,
        at: usize,
        renewal: Renewal,
        layout: Layout,
    ) -> Result<Check, Box<(usize, Renewal, Layout)>> {
        let known = {
            let mut tracks = self.tracks();
            let track = tracks.get_mut(layout.key());
            let track = track.filter(|track| track.wake == renewal.wake && track.created != 0);
            track.map(|track| {
                track.seen = self.clock.now();
                track.ttl = renewal.ttl;
                (Arc::clone(&track.lease), track.fence, track.created)
            })
        };
        match known {
            Some((lease, held, created))
                if renewal.same_owner != SameOwner::Replace
                    && (renewal.renewed || !lease.shared) =>
            {
                let ops = match &layout {
                    Layout::WaitQueue(place) => self.ask_line(place, &renewal, held.is_some()),
                    Layout::Room(chair) => self.ask_room(chair),
                };
                let expected = Expected {
                    held,
                    created,
                    lease: lease.id,
                };
                Ok(Check {
                    at,
                    renewal,
                    layout,
                    lease,
                    expected,
                    ops,
                })
            }
            _ => Err(Box::new((at, renewal, layout))),
        }
    }

    /// Answers for claims whose lease could not be renewed; what is left is cut into pieces that fit into
    /// one transaction each.
    fn sort_out(
        self: &Arc<Store>,
        checks: Vec<Check>,
        kept: &HashMap<i64, Result<Renewing>>,
        answers: &mut [Option<Result<Renewed>>],
    ) -> (Vec<Check>, Vec<std::ops::Range<usize>>) {
        let mut rest = Vec::with_capacity(checks.len());
        for check in checks {
            let answer = match kept.get(&check.lease.id) {
                Some(Err(e)) => Some(Err(e.again())),
                Some(Ok(renewing)) if !renewing.alive => Some(Ok(Renewed::Gone)),
                None if check.lease.has_ended() => Some(Ok(Renewed::Gone)),
                _ => None,
            };
            match answer {
                Some(answer) => {
                    let answer = self.after_renewal(&check.layout, &check.renewal, answer);
                    answers[check.at] = Some(answer);
                }
                None => rest.push(check),
            }
        }
        let (mut chunks, mut begin, mut ops) = (Vec::new(), 0, 0);
        for (at, check) in rest.iter().enumerate() {
            if ops + check.ops.len() > MOST_OPS {
                chunks.push(begin..at);
                (begin, ops) = (at, 0);
            }
            ops += check.ops.len();
        }
        if begin < rest.len() {
            chunks.push(begin..rest.len());
        }
        (rest, chunks)
    }

    /// Looks at the keys of some claims, after their leases were renewed: that read makes renewals count.
    async fn check(
        self: &Arc<Store>,
        checks: &[Check],
        kept: &HashMap<i64, Result<Renewing>>,
        views: &Views,
    ) -> Vec<(usize, Result<Renewed>)> {
        let ops = checks.iter().flat_map(|check| &check.ops);
        let txn = Txn::new().then_all(ops.cloned());
        let mut done = match self.link.txn(txn).await {
            Ok(done) => done,
            Err(e) => {
                return checks
                    .iter()
                    .map(|check| (check.at, Err(e.again())))
                    .collect();
            }
        };
        let mut answers = Vec::with_capacity(checks.len());
        for check in checks {
            let found: Vec<_> = check.ops.iter().map(|_| done.found()).collect();
            let mut found = found.into_iter();
            let next = || found.next().unwrap_or_else(|| Ok(Vec::new()));
            let counts = match kept.get(&check.lease.id) {
                Some(Ok(renewing)) => self.leases.count(&check.lease, *renewing, done.term),
                _ => Ok(()),
            };
            let renewal = &check.renewal;
            let answer = match (counts, &check.layout) {
                (Err(e), _) => Err(e),
                (Ok(()), Layout::WaitQueue(place)) => {
                    self.renewed_in_line(place, renewal, check.expected, done.revision, next)
                        .await
                }
                (Ok(()), Layout::Room(chair)) => {
                    self.renewed_in_room(chair, renewal, check.expected, views, next)
                        .await
                }
            };
            answers.push((check.at, self.after_renewal(&check.layout, renewal, answer)));
        }
        answers
    }

    fn after_renewal(
        self: &Arc<Store>,
        layout: &Layout,
        renewal: &Renewal,
        answer: Result<Renewed>,
    ) -> Result<Renewed> {
        if matches!(answer, Ok(Renewed::Gone))
            && let Some(track) = self.untrack(layout.key(), Some(renewal.wake))
        {
            self.doubt(&track.lease, layout.key());
        }
        answer
    }
}

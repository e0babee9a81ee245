//! From asking to holding: the one path that all ways of acquiring take.

use std::sync::Arc;
use std::time::Duration;

use super::{Attempt, Lock, LockGuard};
use crate::backend::{Acquired, Ask, Holder, IfHeld, Renewed};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Claim, Keeper, Moment, Phase, Undo};

/// How long a caller is ready to wait in line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Patience {
    None,
    Until(Moment),
    Forever,
}

impl Patience {
    fn end(self) -> Moment {
        match self {
            Patience::None => Moment::from_nanos(0),
            Patience::Until(moment) => moment,
            Patience::Forever => Moment::NEVER,
        }
    }
}

/// How long leaving the line, and a last look at who holds, may take.
const PARTING: Duration = Duration::from_millis(250);

pub(super) async fn acquire(lock: &Lock, patience: Patience) -> Result<Attempt> {
    attempt(lock, patience)
        .await
        .map_err(|e| lock.coordinator.describe(e))
}

async fn attempt(lock: &Lock, patience: Patience) -> Result<Attempt> {
    let terms = lock.terms("acquire")?;
    let keeper = lock.coordinator.keeper();
    keeper.check_alive()?;
    let clock = keeper.clock();
    let claim = keeper.new_claim(terms);
    // From here on, being dropped leaves something to clean up.
    let mut undo = Undo::arm(Arc::clone(keeper), Arc::clone(&claim));
    let ask = ask(lock, &claim, patience);
    if ask.if_held == IfHeld::LineUp {
        // Before the request leaves: the wake-up may be faster than the answer.
        keeper.listen(&claim);
    }

    let mut tries = 0;
    let mut maybe_sent = false;
    loop {
        claim.start_over();
        let sent = clock.now();
        let answer = claim.terms.store.acquire(ask.clone());
        let problem = match keeper.call("acquire", &lock.name, answer).await {
            Ok(Acquired::Granted { fence, recorded }) => {
                if keeper.hold(&claim, sent, fence, recorded) {
                    return Ok(Attempt::Acquired(LockGuard::new(undo)));
                }
                maybe_sent = true;
                too_late()
            }
            Ok(Acquired::Busy(holder)) => {
                undo.defuse();
                keeper.forget(&claim);
                return Ok(Attempt::Busy(Some(holder)));
            }
            Ok(Acquired::Queued { place, held_for }) => {
                tries = 0;
                maybe_sent = true;
                keeper.wait_in_line(&claim, sent, place, held_for);
                match wait_in_line(keeper, &claim, patience).await? {
                    Waited::Granted => return Ok(Attempt::Acquired(LockGuard::new(undo))),
                    Waited::OutOfLine => continue,
                    // Boxed, as it is rare: a waiter should not carry room for it.
                    Waited::Elapsed => return Box::pin(give_up(lock, undo)).await,
                }
            }
            Err(e) => {
                if e.kind() == ErrorKind::OutcomeUnknown {
                    maybe_sent = true;
                    claim.set_unsure();
                }
                e
            }
        };
        tries += 1;
        let pause = lock.retry.pause_after(tries);
        match pause {
            Some(pause) if problem.is_retryable() && clock.now() + pause < patience.end() => {
                clock.sleep(pause).await;
            }
            _ => {
                if !maybe_sent {
                    undo.defuse();
                    keeper.forget(&claim);
                }
                return Err(problem);
            }
        }
    }
}

fn ask(lock: &Lock, claim: &Claim, patience: Patience) -> Ask {
    Ask {
        name: claim.terms.name.clone(),
        owner: claim.terms.owner.clone(),
        ttl: claim.terms.ttl,
        if_held: match patience {
            Patience::None => IfHeld::Answer,
            _ => IfHeld::LineUp,
        },
        note: claim.terms.note.clone(),
        heal_missing_ttl: lock.heal_missing_ttl,
        // Others may come back as this owner, or the claim may never be renewed: they must find
        // it whole. Everybody else's is recorded with the first renewal.
        record_now: lock.owner.is_some() || lock.note.is_some() || !claim.terms.renews,
        wake: claim.wake,
    }
}

enum Waited {
    Granted,
    OutOfLine,
    Elapsed,
}

async fn wait_in_line(keeper: &Keeper, claim: &Arc<Claim>, patience: Patience) -> Result<Waited> {
    let clock = keeper.clock();
    let turn = claim.changed_to(|state| match state.phase {
        Phase::Held if clock.now() < claim.held_until() => Some(Waited::Granted),
        Phase::OutOfLine | Phase::Lost | Phase::Ended => Some(Waited::OutOfLine),
        _ => None,
    });
    match clock.until(patience.end(), turn).await {
        Some(Waited::Granted) if !claim.terms.renews => {
            // Validity counts from the last heartbeat; who will not renew gets a whole ttl.
            Ok(match Box::pin(keeper.renew_now(claim)).await? {
                Renewed::Held => Waited::Granted,
                _ => Waited::OutOfLine,
            })
        }
        Some(waited) => Ok(waited),
        None => Ok(Waited::Elapsed),
    }
}

/// Patience has run out: leave the line, and tell who has the lock.
async fn give_up(lock: &Lock, mut undo: Undo) -> Result<Attempt> {
    let keeper = Arc::clone(undo.keeper());
    let claim = Arc::clone(undo.claim());
    keeper.forget(&claim);
    // The caller has waited long enough: what is slow now goes on in the background, when `undo` is
    // dropped, and is not told.
    let left = keeper.clock().within(PARTING, keeper.release(&claim)).await;
    if !matches!(left, Some(Ok(_))) {
        return Ok(Attempt::Busy(None));
    }
    undo.defuse();
    let seen = keeper.clock().within(PARTING, lock.look()).await;
    let holder: Option<Holder> = seen.and_then(|state| state.ok()?.holder);
    Ok(Attempt::Busy(holder))
}

fn too_late() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "acquire",
        "the store's answer came after the lock would have expired",
    )
    .with_hint("a longer ttl leaves more time for slow answers")
}

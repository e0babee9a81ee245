//! From asking to holding: the one path that all ways of acquiring take.

use std::sync::Arc;
use std::time::Duration;

use super::{CancelGuard, Claim, Keeper, Lease, Moment, Phase, Request};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Acquired, ClaimStore, Holder, Kind, OnBusy, Refusal, Renewed, Share,
};

/// How long a caller is ready to wait in line.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum WaitPolicy {
    None,
    Until(Moment),
    Forever,
}

impl WaitPolicy {
    /// Until `wait` has passed, or for ever.
    pub(crate) fn of(wait: Option<Duration>, keeper: &Keeper) -> WaitPolicy {
        match wait {
            Some(wait) => WaitPolicy::Until(keeper.clock().now() + wait),
            None => WaitPolicy::Forever,
        }
    }

    pub(crate) fn end(self) -> Moment {
        match self {
            WaitPolicy::None => Moment::from_nanos(0),
            WaitPolicy::Until(moment) => moment,
            WaitPolicy::Forever => Moment::NEVER,
        }
    }
}

/// What is to be acquired, and how.
pub(crate) struct AcquireParams<'a> {
    pub(crate) keeper: &'a Arc<Keeper>,
    pub(crate) store: &'a Arc<dyn ClaimStore>,
    pub(crate) kind: Kind,
    pub(crate) name: Name,
    pub(crate) share: Share,
    pub(crate) request: &'a Request,
    pub(crate) heal_missing_ttl: bool,
}

/// What became of it.
pub(crate) enum AcquireOutcome {
    Held(Lease),
    /// Who is in the way, where that could still be seen.
    Busy(Option<Holder>),
}

/// How long leaving the line, and a last look at who holds, may take.
const PARTING: Duration = Duration::from_millis(250);

pub(crate) async fn acquire(
    wanted: AcquireParams<'_>,
    patience: WaitPolicy,
) -> Result<AcquireOutcome> {
    let AcquireParams { keeper, store, .. } = wanted;
    let terms = wanted
        .request
        .terms("acquire", store, wanted.kind, wanted.name)?;
    keeper.check_alive()?;
    let clock = keeper.clock();
    let claim = keeper.new_claim(terms);
    // From here on, being dropped leaves something to clean up.
    let mut undo = CancelGuard::arm(Arc::clone(keeper), Arc::clone(&claim));
    let mut ask = AcquireRequest {
        kind: claim.terms.kind,
        name: claim.terms.name.clone(),
        owner: claim.terms.owner.clone(),
        share: wanted.share,
        ttl: claim.terms.ttl,
        on_busy: match patience {
            WaitPolicy::None => OnBusy::Return,
            _ => OnBusy::Enqueue,
        },
        note: claim.terms.note.clone(),
        heal_missing_ttl: wanted.heal_missing_ttl,
        record_now: wanted.request.record_now(),
        again: false,
        renewed: claim.terms.is_renewed_for_ever(),
        wake: claim.wake,
    };
    if ask.on_busy == OnBusy::Enqueue {
        // Before the request leaves: the wake-up may be faster than the answer.
        keeper.listen(&claim);
    }

    let mut tries = 0;
    let mut maybe_sent = false;
    loop {
        claim.start_over();
        let sent = clock.now();
        let answer = claim.terms.store.acquire(ask.clone());
        ask.again = true;
        let problem = match keeper.call("acquire", ask.name.as_str(), answer).await {
            Ok(Acquired::Granted { fence, recorded }) => {
                if keeper.hold(&claim, sent, fence, recorded) {
                    return Ok(AcquireOutcome::Held(Lease::new(undo)));
                }
                maybe_sent = true;
                too_late()
            }
            Ok(Acquired::Busy(holder)) => {
                undo.defuse_unless_unanswered();
                return Ok(AcquireOutcome::Busy(Some(holder)));
            }
            Ok(Acquired::Refused(refusal)) => {
                undo.defuse_unless_unanswered();
                return Err(refused(&ask, refusal));
            }
            Ok(Acquired::Queued { ticket, held_for }) => {
                tries = 0;
                maybe_sent = true;
                keeper.wait_in_line(&claim, sent, ticket, held_for);
                match wait_in_line(keeper, &claim, patience).await? {
                    Waited::Granted => return Ok(AcquireOutcome::Held(Lease::new(undo))),
                    Waited::OutOfLine => continue,
                    // Boxed, as it is rare: a waiter should not carry room for it.
                    Waited::Elapsed => return Box::pin(give_up(undo)).await,
                }
            }
            Err(e) => {
                if e.may_have_happened() {
                    maybe_sent = true;
                    claim.set_unanswered();
                }
                e
            }
        };
        tries += 1;
        let pause = wanted.request.retry.pause_after(tries);
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

enum Waited {
    Granted,
    OutOfLine,
    Elapsed,
}

async fn wait_in_line(keeper: &Keeper, claim: &Arc<Claim>, patience: WaitPolicy) -> Result<Waited> {
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
                Renewed::Held { .. } if clock.now() < claim.held_until() => Waited::Granted,
                _ => Waited::OutOfLine,
            })
        }
        Some(waited) => Ok(waited),
        None => Ok(Waited::Elapsed),
    }
}

/// WaitPolicy has run out: leave the line, and tell who is in the way.
async fn give_up(mut undo: CancelGuard) -> Result<AcquireOutcome> {
    let keeper = Arc::clone(undo.keeper());
    let claim = Arc::clone(undo.claim());
    keeper.forget(&claim);
    // The caller has waited long enough: what is slow now goes on in the background, when `undo` is
    // dropped, and is not told.
    let left = keeper.clock().within(PARTING, keeper.release(&claim)).await;
    if !matches!(left, Some(Ok(_))) {
        return Ok(AcquireOutcome::Busy(None));
    }
    undo.defuse_unless_unanswered();
    let terms = &claim.terms;
    let look = terms.store.inspect(terms.kind, terms.name.clone(), 1);
    let seen = keeper.clock().within(PARTING, look).await;
    let holder = seen.and_then(|seen| seen.ok()?.holders.pop());
    Ok(AcquireOutcome::Busy(holder))
}

fn too_late() -> Error {
    Error::new(
        ErrorKind::OutcomeUnknown,
        "acquire",
        "the store's answer came after the claim would have expired",
    )
    .with_hint("a longer ttl leaves more time for slow answers")
}

/// Says why it can never be granted, and what to do about it.
fn refused(ask: &AcquireRequest, refusal: Refusal) -> Error {
    let share = ask.share;
    let (kind, message, hint) = match refusal {
        Refusal::OtherSize { stored } => (
            ErrorKind::Mismatch,
            format!("it has a size of {stored}, not {}", share.size),
            "say the same size everywhere, or change it on purpose with resize",
        ),
        Refusal::TooHeavy { stored } => (
            ErrorKind::InvalidInput,
            format!("{} is more than its size of {stored}", share.weight),
            "ask for less, or make it larger with resize",
        ),
        Refusal::OtherWeight { claimed } => (
            ErrorKind::Mismatch,
            format!(
                "this owner has a claim to {claimed} of it, not {}",
                share.weight
            ),
            "release that first, or come as another owner",
        ),
    };
    Error::new(kind, "acquire", message)
        .with_name(ask.name.as_str())
        .with_hint(hint)
}

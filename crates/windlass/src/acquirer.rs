//! What all primitives that are held ask of the lease runtime, in one place.

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, AcquireParams, CancelGuard, ClaimSpec, Lease, Request, WaitPolicy, acknowledge,
    acquire,
};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Occupancy, Released, Renewed, Share};

/// How long to let a fresh claim be recorded before looking a second time.
const RECORDING: Duration = Duration::from_millis(100);

/// One primitive of one name, about to be asked for.
pub(crate) struct Acquirer<'a> {
    pub(crate) coordinator: &'a Coordinator,
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    pub(crate) share: Share,
    pub(crate) request: &'a Request,
    pub(crate) heal_missing_ttl: bool,
}

impl Acquirer<'_> {
    /// Asks, with that much patience.
    pub(crate) async fn attempt(&self, patience: WaitPolicy) -> Result<AcquireOutcome> {
        let wanted = AcquireParams {
            keeper: self.coordinator.keeper(),
            store: self.coordinator.claims(),
            kind: self.kind,
            name: self.checked_name("acquire")?,
            share: self.share,
            request: self.request,
            heal_missing_ttl: self.heal_missing_ttl,
        };
        let describe = |e| self.coordinator.describe(e);
        match acquire(wanted, patience).await.map_err(describe)? {
            AcquireOutcome::Held(lease) => {
                let own = self.request.replicas.as_deref().copied();
                let replicas = own.or(self.coordinator.replicas());
                if replicas.is_none() {
                    return Ok(AcquireOutcome::Held(lease));
                }
                // Boxed, as it is rare.
                let acknowledged = Box::pin(acknowledge(lease, replicas)).await;
                acknowledged.map(AcquireOutcome::Held).map_err(describe)
            }
            busy => Ok(busy),
        }
    }

    /// Waits as long as the request says; being left with nothing is an error.
    pub(crate) async fn acquire(&self) -> Result<Lease> {
        let patience = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        match self.attempt(patience).await? {
            AcquireOutcome::Held(lease) => Ok(lease),
            AcquireOutcome::Busy(holder) => Err(self.elapsed(holder)),
        }
    }

    /// Waits for `wait` at most.
    pub(crate) async fn acquire_within(&self, wait: Duration) -> Result<AcquireOutcome> {
        let patience = WaitPolicy::of(Some(wait), self.coordinator.keeper());
        self.attempt(patience).await
    }

    fn elapsed(&self, holder: Option<Holder>) -> Error {
        let by = holder.map_or("somebody else".to_owned(), |h| h.owner);
        let waited = self.request.wait.unwrap_or_default();
        let message = format!("still held by {by} after {waited:?}");
        let error = Error::new(ErrorKind::WaitElapsed, "acquire", message);
        self.coordinator.describe(error.with_name(self.name))
    }

    /// Takes over what `owner` holds, and tells how much that is.
    pub(crate) async fn attach(&self, owner: String) -> Result<(Lease, u32)> {
        let request = Request {
            owner: Some(owner),
            ..self.request.clone()
        };
        let terms = self.terms("attach", &request)?;
        let keeper = self.coordinator.keeper();
        let not_held = || {
            self.coordinator.describe(
                Error::new(ErrorKind::Lost, "attach", "this owner does not hold it now")
                    .with_name(self.name)
                    .with_hint("acquire it again, or look with inspect"),
            )
        };
        let seen = self.inspect(usize::MAX).await?;
        let held = |h: &Holder| h.owner == terms.owner.as_str();
        let holder = seen.holders.into_iter().find(held);
        let Some(holder) = holder else {
            return Err(not_held());
        };
        let Some(fence) = holder.fence else {
            let message = "it is held, but its fence cannot be told for sure now";
            let e = Error::new(ErrorKind::OutcomeUnknown, "attach", message)
                .with_name(self.name)
                .with_hint("try again, or acquire it as the same owner, which gives it a fence");
            return Err(self.coordinator.describe(e));
        };
        let note = terms.note.or_else(|| holder.note.as_deref().map(Arc::from));
        let claim = keeper.new_claim(ClaimSpec { note, ..terms });
        let sent = keeper.clock().now();
        claim.held_since(fence, sent - holder.age.unwrap_or_default());
        // From here on, being dropped leaves something to clean up.
        let undo = CancelGuard::arm(Arc::clone(keeper), Arc::clone(&claim));
        // Until there is an answer, the request may arrive after what undoes it.
        claim.set_unanswered();
        let renewed = keeper
            .take_over(&claim)
            .await
            .map_err(|e| self.coordinator.describe(e.with_operation("attach")))?;
        claim.set_answered();
        match renewed {
            Renewed::Held { fence } if keeper.hold(&claim, sent, fence, true) => {
                Ok((Lease::new(undo), holder.weight))
            }
            Renewed::Held { .. } => Err(not_held()),
            _ => {
                // It was another's all the time, and stays so.
                let mut undo = undo;
                undo.defuse();
                keeper.forget(&claim);
                Err(not_held())
            }
        }
    }

    /// Gives up whatever `owner` has, without a guard.
    pub(crate) async fn release_as(&self, owner: String) -> Result<Released> {
        let request = Request {
            owner: Some(owner),
            ..self.request.clone()
        };
        let ClaimSpec {
            store, name, owner, ..
        } = self.terms("release", &request)?;
        let answer = store.release(self.kind, name, owner, None);
        self.call("release", answer).await
    }

    /// Looks, a second time if a claim is so fresh that it is not recorded yet.
    pub(crate) async fn inspect(&self, most: usize) -> Result<Occupancy> {
        let seen = self.look(most).await?;
        if seen.holders.iter().all(|h| h.fence.is_some()) {
            return Ok(seen);
        }
        self.coordinator.keeper().clock().sleep(RECORDING).await;
        self.look(most).await
    }

    async fn look(&self, most: usize) -> Result<Occupancy> {
        let name = self.checked_name("inspect")?;
        let answer = self.coordinator.claims().inspect(self.kind, name, most);
        let mut seen = self.call("inspect", answer).await?;
        self.coordinator.strip_namespace(&mut seen.name);
        Ok(seen)
    }

    /// Waits for an answer no longer than the call timeout, and says in an error what it was about.
    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        answer: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, self.name, answer).await
    }

    pub(crate) fn checked_name(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), self.name)
    }

    fn terms(&self, operation: &'static str, request: &Request) -> Result<ClaimSpec> {
        let name = self.checked_name(operation)?;
        request.terms(operation, self.coordinator.claims(), self.kind, name)
    }
}

//! [`Acquirer`]: what every primitive that is held has in common above the lease runtime.

use std::sync::Arc;
use std::time::Duration;

use crate::coordinator::Coordinator;
use crate::lease::{
    AcquireOutcome, AcquireParams, CancelGuard, ClaimSpec, Lease, RareOptions, RequestOptions,
    WaitPolicy, acquire, await_replicas,
};
use crate::telemetry::Acquisition;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Holder, Kind, Occupancy, Released, Renewed, Share};

/// How long to wait before inspecting again, when a claim is so new that the store does not show its fence yet.
const RECORDING: Duration = Duration::from_millis(100);

/// One primitive by name, and how to acquire it.
pub(crate) struct Acquirer<'a> {
    pub(crate) coordinator: &'a Coordinator,
    pub(crate) kind: Kind,
    pub(crate) name: &'a str,
    pub(crate) share: Share,
    pub(crate) request: &'a RequestOptions,
    pub(crate) heal_missing_ttl: bool,
}

impl Acquirer<'_> {
    /// Acquires, waiting as the policy allows.
    pub(crate) async fn attempt(&self, wait: WaitPolicy) -> Result<AcquireOutcome> {
        let keeper = self.coordinator.keeper();
        let (telemetry, clock) = (keeper.telemetry(), keeper.clock());
        let acquisition = telemetry.acquisition(self.kind, self.name, clock);
        let outcome = self.attempt_recorded(wait, &acquisition).await;
        acquisition.finish(telemetry, &outcome, wait, clock);
        outcome
    }

    async fn attempt_recorded(
        &self,
        wait: WaitPolicy,
        acquisition: &Acquisition,
    ) -> Result<AcquireOutcome> {
        let params = AcquireParams {
            acquisition,
            keeper: self.coordinator.keeper(),
            store: self.coordinator.claims(),
            kind: self.kind,
            name: self.full_name("acquire")?,
            share: self.share,
            request: self.request,
            heal_missing_ttl: self.heal_missing_ttl,
        };
        let describe = |e| self.coordinator.describe(e);
        match acquire(params, wait).await.map_err(describe)? {
            AcquireOutcome::Held(lease) => {
                let own = self.request.replicas.as_deref().copied();
                let replicas = own.or(self.coordinator.replicas());
                if replicas.is_none() {
                    return Ok(AcquireOutcome::Held(lease));
                }
                // Boxed, because it is rare.
                let acknowledged = Box::pin(await_replicas(lease, replicas)).await;
                acknowledged.map(AcquireOutcome::Held).map_err(describe)
            }
            busy => Ok(busy),
        }
    }

    /// Waits as long as the request allows; a wait that elapses is an error.
    pub(crate) async fn acquire(&self) -> Result<Lease> {
        let wait = WaitPolicy::of(self.request.wait, self.coordinator.keeper());
        match self.attempt(wait).await? {
            AcquireOutcome::Held(lease) => Ok(lease),
            AcquireOutcome::Busy(holder) => Err(self.wait_elapsed(holder)),
        }
    }

    /// Waits for `wait` at most.
    pub(crate) async fn acquire_within(&self, wait: Duration) -> Result<AcquireOutcome> {
        let wait = WaitPolicy::of(Some(wait), self.coordinator.keeper());
        self.attempt(wait).await
    }

    fn wait_elapsed(&self, holder: Option<Holder>) -> Error {
        let waited = self.request.wait.unwrap_or_default();
        let message = match holder {
            Some(holder) => format!("still held by {} after {waited:?}", holder.owner),
            None => format!("still held by another client after {waited:?}"),
        };
        let error = Error::new(ErrorKind::WaitElapsed, "acquire", message);
        self.coordinator.describe(error.with_name(self.name))
    }

    /// Takes over the claim that `owner` holds. Returns its lease and weight.
    pub(crate) async fn attach(&self, owner: String) -> Result<(Lease, u32)> {
        let request = RequestOptions {
            owner: Some(owner),
            ..self.request.clone()
        };
        let spec = self.spec("attach", &request)?;
        let keeper = self.coordinator.keeper();
        let not_held = || {
            self.coordinator.describe(
                Error::new(ErrorKind::Lost, "attach", "this owner does not hold it now")
                    .with_name(self.name)
                    .with_hint("acquire it again, or inspect it"),
            )
        };
        let occupancy = self.inspect(usize::MAX).await?;
        let is_owner = |h: &Holder| h.owner == spec.owner.as_str();
        let holder = occupancy.holders.into_iter().find(is_owner);
        let Some(holder) = holder else {
            return Err(not_held());
        };
        let Some(fence) = holder.fence else {
            let message = "it is held, but its fence is not certain at the moment";
            let e = Error::new(ErrorKind::OutcomeUnknown, "attach", message)
                .with_name(self.name)
                .with_hint("try again, or acquire it as the same owner, which assigns a fence");
            return Err(self.coordinator.describe(e));
        };
        let note = spec.note().cloned();
        let note = note.or_else(|| holder.note.as_deref().map(Arc::from));
        let rare = RareOptions::of(note, spec.hold_cap());
        let claim = keeper.new_claim(ClaimSpec { rare, ..spec });
        let sent = keeper.clock().now();
        claim.resume(fence, sent - holder.age.unwrap_or_default());
        let cancel_guard = CancelGuard::arm(Arc::clone(keeper), Arc::clone(&claim));
        // Until the reply comes, the request may reach the store after the release that undoes it.
        claim.mark_unanswered();
        let renewed = keeper
            .take_over(&claim)
            .await
            .map_err(|e| self.coordinator.describe(e.with_operation("attach")))?;
        claim.mark_answered();
        match renewed {
            Renewed::Held { fence } if keeper.hold(&claim, sent, fence, true, None) => {
                let lease = Lease::new(cancel_guard);
                keeper.telemetry().hold(&lease, self.name);
                Ok((lease, holder.weight))
            }
            Renewed::Held { .. } => Err(not_held()),
            _ => {
                // Another client holds it: nothing to release.
                let mut cancel_guard = cancel_guard;
                cancel_guard.defuse();
                keeper.forget(&claim);
                Err(not_held())
            }
        }
    }

    /// Releases whatever `owner` has, without a guard.
    pub(crate) async fn release_as(&self, owner: String) -> Result<Released> {
        let request = RequestOptions {
            owner: Some(owner),
            ..self.request.clone()
        };
        let ClaimSpec {
            store, name, owner, ..
        } = self.spec("release", &request)?;
        let reply = store.release(self.kind, name, owner, None);
        self.call("release", reply).await
    }

    /// Inspects; a second time if a claim is so new that its fence is not recorded yet.
    pub(crate) async fn inspect(&self, max_holders: usize) -> Result<Occupancy> {
        let occupancy = self.inspect_once(max_holders).await?;
        if occupancy.holders.iter().all(|h| h.fence.is_some()) {
            return Ok(occupancy);
        }
        self.coordinator.keeper().clock().sleep(RECORDING).await;
        self.inspect_once(max_holders).await
    }

    async fn inspect_once(&self, max_holders: usize) -> Result<Occupancy> {
        let name = self.full_name("inspect")?;
        let claims = self.coordinator.claims();
        let reply = claims.inspect(self.kind, name, max_holders);
        let mut occupancy = self.call("inspect", reply).await?;
        self.coordinator.strip_namespace(&mut occupancy.name);
        Ok(occupancy)
    }

    pub(crate) async fn call<T>(
        &self,
        operation: &'static str,
        reply: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        self.coordinator.call(operation, self.name, reply).await
    }

    /// The name with its namespace, checked.
    pub(crate) fn full_name(&self, operation: &'static str) -> Result<Name> {
        Name::new(operation, self.coordinator.namespace(), self.name)
    }

    fn spec(&self, operation: &'static str, request: &RequestOptions) -> Result<ClaimSpec> {
        let name = self.full_name(operation)?;
        request.spec(operation, self.coordinator.claims(), self.kind, name)
    }
}

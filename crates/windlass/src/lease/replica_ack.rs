//! A grant that counts only when replicas have acknowledged it.

use std::time::Duration;

use super::Lease;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::Replicas;

/// How long the release of an unacknowledged grant may delay the error; after that it goes on in the background.
const RELEASE_LIMIT: Duration = Duration::from_millis(250);

/// Returns the lease once enough replicas have acknowledged it; otherwise releases it and fails.
///
/// Cancel safe: dropping the future drops the lease, which releases it.
pub(crate) async fn await_replicas(lease: Lease, required: Option<Replicas>) -> Result<Lease> {
    let Some(required) = required.filter(|required| required.count > 0 || required.on_disk) else {
        return Ok(lease);
    };
    let spec = &lease.claim().spec;
    let (name, owner) = (spec.name.clone(), spec.owner.clone());
    let reply = spec.store.acknowledged(spec.kind, name, owner, required);
    let keeper = lease.keeper();
    let limit = required.timeout + keeper.call_timeout();
    let error = match keeper.measured("acknowledge", limit, reply).await {
        Some(Ok(found)) if found.is_enough(&required) => return Ok(lease),
        Some(Ok(found)) if !found.is_held => Error::new(
            ErrorKind::OutcomeUnknown,
            "acquire",
            "the grant disappeared before a replica acknowledged it",
        )
        .with_hint("a failover may have replaced the master; acquire again"),
        Some(Ok(found)) => {
            let did = match required.on_disk {
                true => "have it on disk",
                false => "acknowledged it",
            };
            let own = match required.on_disk && !found.on_own_disk {
                true => ", nor does the master",
                false => "",
            };
            let (count, timeout) = (required.count, required.timeout);
            Error::new(
                ErrorKind::Unreachable,
                "acquire",
                format!(
                    "{} of the {count} replicas {did} within {timeout:?}{own}; the grant was released",
                    found.replicas
                ),
            )
            .with_hint("check with `windlass doctor` whether the replicas are connected")
        }
        Some(Err(e)) => e,
        None => Error::new(
            ErrorKind::OutcomeUnknown,
            "acquire",
            "no answer about the replicas in time; the grant was released",
        ),
    };
    let error = error
        .with_operation("acquire")
        .with_name(lease.claim().spec.name.as_str());
    let clock = keeper.clock().clone();
    // Released before the error is returned, so that the caller can retry at once.
    let _ = clock.within(RELEASE_LIMIT, lease.release()).await;
    Err(error)
}

//! A grant that counts only when replicas have it.

use std::time::Duration;

use super::Lease;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::store::Replicas;

/// How long giving it up may take before that goes on in the background.
const PARTING: Duration = Duration::from_millis(250);

/// Hands on what is held when enough replicas have acknowledged it; otherwise gives it up.
///
/// Whoever drops this half-way drops the lease, and so gives it up.
pub(crate) async fn acknowledge(lease: Lease, wanted: Option<Replicas>) -> Result<Lease> {
    let Some(wanted) = wanted.filter(|wanted| wanted.count > 0 || wanted.on_disk) else {
        return Ok(lease);
    };
    let terms = &lease.claim().terms;
    let (name, owner) = (terms.name.clone(), terms.owner.clone());
    let answer = terms.store.acknowledged(terms.kind, name, owner, wanted);
    let keeper = lease.keeper();
    let limit = wanted.timeout + keeper.call_timeout();
    let problem = match keeper.clock().within(limit, answer).await {
        Some(Ok(found)) if found.is_enough(&wanted) => return Ok(lease),
        Some(Ok(found)) if !found.is_held => Error::new(
            ErrorKind::OutcomeUnknown,
            "acquire",
            "the grant was gone before a replica had it",
        )
        .with_hint("the master may have been replaced in that moment; acquire it again"),
        Some(Ok(found)) => {
            let of = match wanted.on_disk {
                true => "have it on disk",
                false => "acknowledged it",
            };
            let own = match wanted.on_disk && !found.on_own_disk {
                true => ", nor does the master",
                false => "",
            };
            let (count, timeout) = (wanted.count, wanted.timeout);
            Error::new(
                ErrorKind::Unreachable,
                "acquire",
                format!(
                    "{} of the {count} replicas {of} within {timeout:?}{own}; it was given up",
                    found.replicas
                ),
            )
            .with_hint("are the replicas connected? windlass doctor tells")
        }
        Some(Err(e)) => e,
        None => Error::new(
            ErrorKind::OutcomeUnknown,
            "acquire",
            "nobody could tell whether replicas have it",
        ),
    };
    let problem = problem
        .with_operation("acquire")
        .with_name(lease.claim().terms.name.as_str());
    let clock = keeper.clock().clone();
    // Before the error is told, so that whoever hears of it may ask again at once. What takes longer goes
    // on in the background.
    let _ = clock.within(PARTING, lease.release()).await;
    Err(problem)
}

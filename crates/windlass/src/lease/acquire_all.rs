//! Acquiring several locks in one decision of the store: all or none, without waiting.

use std::sync::Arc;

use super::acquire::{acquire_request, granted_too_late, lease_of};
use super::{CancelGuard, Keeper, Lease, RequestOptions};
use windlass_core::error::Result;
use windlass_core::name::Name;
use windlass_core::store::{AcquiredAll, ClaimStore, Holder, Kind, OnBusy, Share};

pub(crate) enum AllOutcome {
    /// One lease for each name, in order.
    Held(Vec<Lease>),
    /// The holder of one of them, where it is known.
    Busy(Option<Holder>),
    /// The store cannot decide about these names together.
    Unsupported,
}

/// `display_names` is for errors.
pub(crate) async fn acquire_all(
    keeper: &Arc<Keeper>,
    store: &Arc<dyn ClaimStore>,
    names: Vec<Name>,
    request: &RequestOptions,
    display_names: &str,
) -> Result<AllOutcome> {
    keeper.check_alive()?;
    let mut cancel_guards = Vec::with_capacity(names.len());
    let mut requests = Vec::with_capacity(names.len());
    for name in names {
        let claim = keeper.new_claim(request.spec("acquire", store, Kind::Lock, name)?);
        let record_now = request.record_now();
        requests.push(acquire_request(
            &claim,
            Share::ONLY,
            OnBusy::Return,
            record_now,
        ));
        cancel_guards.push(CancelGuard::arm(Arc::clone(keeper), claim));
    }
    let sent = keeper.clock().now();
    let reply = store.acquire_all(requests);
    match keeper.call("acquire", display_names, reply).await {
        Ok(AcquiredAll::Granted(fences)) => {
            let mut held = true;
            for (cancel_guard, fence) in cancel_guards.iter().zip(fences) {
                held &= keeper.hold(
                    cancel_guard.claim(),
                    sent,
                    fence,
                    request.record_now(),
                    None,
                );
            }
            match held {
                true => {
                    let leases = cancel_guards.into_iter().map(lease_of);
                    Ok(AllOutcome::Held(leases.collect::<Result<_>>()?))
                }
                false => Err(granted_too_late().with_name(display_names)),
            }
        }
        Ok(AcquiredAll::Busy { holder, .. }) => {
            nothing_granted(&mut cancel_guards);
            Ok(AllOutcome::Busy(holder))
        }
        Ok(AcquiredAll::OneByOne) => {
            nothing_granted(&mut cancel_guards);
            Ok(AllOutcome::Unsupported)
        }
        Err(e) => {
            match e.may_have_happened() {
                true => cancel_guards
                    .iter()
                    .for_each(|guard| guard.claim().mark_unanswered()),
                false => nothing_granted(&mut cancel_guards),
            }
            Err(e)
        }
    }
}

fn nothing_granted(cancel_guards: &mut [CancelGuard]) {
    for cancel_guard in cancel_guards {
        cancel_guard.defuse();
        cancel_guard.keeper().forget(cancel_guard.claim());
    }
}

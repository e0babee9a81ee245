//! `windlass lock`: locks that stay held after windlass has exited.

mod inspect;

use windlass_term::{Exit, Failure, GlobalArgs, Printer, quoted, store};

use super::manual::{self, ManualTarget};
use super::request::ClaimRequest;
use crate::args::LockCommand;

pub(super) async fn lock(
    command: LockCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        LockCommand::Acquire(args) => {
            let (target, heal) = (target(&args.name), args.heal);
            let lock = |store: &windlass::Coordinator| {
                let lock = store.lock(&args.name);
                ClaimRequest::Lock(if heal { lock.heal_missing_ttl() } else { lock })
            };
            manual::acquire(target, &args.manual, lock, global, printer).await
        }
        LockCommand::Renew(args) => {
            let lock = ClaimRequest::Lock(store::open(global).await?.lock(&args.name));
            manual::renew(target(&args.name), lock, &args.owner, args.ttl, printer).await
        }
        LockCommand::Release(args) => {
            let lock = ClaimRequest::Lock(store::open(global).await?.lock(&args.name));
            manual::release(target(&args.name), lock, &args.owner, printer).await
        }
        LockCommand::Show(args) => inspect::show(args, global, printer).await,
        LockCommand::Ls(args) => inspect::ls(args, global, printer).await,
        LockCommand::Break(args) => inspect::break_lock(args, global, printer).await,
    }
}

fn target(name: &str) -> ManualTarget<'_> {
    ManualTarget {
        name,
        group: "lock",
        acquire: format!("lock acquire {}", quoted(name)),
    }
}

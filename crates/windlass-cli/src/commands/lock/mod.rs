//! `windlass lock`: locks that stay held after windlass has exited.

pub(super) mod inspect;

use windlass_term::{Advice, Exit, Failure, GlobalArgs, Printer, quoted, store};

use super::acquisition::ClaimRequest;
use super::manual::{self, KnownOwners, ManualTarget};
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
            let store = store::open(global).await?;
            let lock = ClaimRequest::Lock(store.lock(&args.name));
            let known = KnownOwners::open(&store, global).ok();
            let owner = owner("renew", &args.name, args.owner, known.as_ref())?;
            let ttl = args.ttl.unwrap_or_else(|| store.default_ttl());
            let renewed = manual::renew(target(&args.name), lock, &owner, ttl, printer).await?;
            if let (Some(known), Exit::SUCCESS) = (known, renewed) {
                // As after `acquire`: it is a convenience.
                let _ = known.remember(&args.name, &owner, ttl);
            }
            Ok(renewed)
        }
        LockCommand::Release(args) => {
            let store = store::open(global).await?;
            let lock = ClaimRequest::Lock(store.lock(&args.name));
            let known = KnownOwners::open(&store, global).ok();
            let owner = owner("release", &args.name, args.owner, known.as_ref())?;
            let released = manual::release(target(&args.name), lock, &owner, printer).await?;
            if let Some(known) = known {
                known.forget(&args.name, &owner);
            }
            Ok(released)
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

/// The owner that was given, or the one that acquired the lock on this machine.
fn owner(
    verb: &str,
    name: &str,
    given: Option<String>,
    known: Option<&KnownOwners>,
) -> Result<String, Failure> {
    let owner = given.or_else(|| known?.find(name));
    owner.ok_or_else(|| {
        let name = quoted(name);
        Failure::usage(
            format!("cannot {verb} {name} without --owner: you did not acquire it on this machine"),
            Advice::Try(format!("windlass lock {verb} {name} --owner ID")),
        )
    })
}

//! `windlass lock`: locks by hand.

mod look;

use super::hand::{self, Subject};
use super::wanted::Wanted;
use crate::args::{Global, LockCommand};
use crate::exit::Exit;
use crate::failure::{Failure, quoted};
use crate::printer::Printer;
use crate::store;

pub(super) async fn lock(
    command: LockCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        LockCommand::Acquire(args) => {
            let (subject, heal) = (subject(&args.name), args.heal);
            let lock = |store: &windlass::Coordinator| {
                let lock = store.lock(&args.name);
                Wanted::Lock(if heal { lock.heal_missing_ttl() } else { lock })
            };
            hand::acquire(subject, &args.hand, lock, global, printer).await
        }
        LockCommand::Renew(args) => {
            let lock = Wanted::Lock(store::open(global).await?.lock(&args.name));
            hand::renew(subject(&args.name), lock, &args.owner, args.ttl, printer).await
        }
        LockCommand::Release(args) => {
            let lock = Wanted::Lock(store::open(global).await?.lock(&args.name));
            hand::release(subject(&args.name), lock, &args.owner, printer).await
        }
        LockCommand::Show(args) => look::show(args, global, printer).await,
        LockCommand::Ls(args) => look::ls(args, global, printer).await,
        LockCommand::Break(args) => look::break_lock(args, global, printer).await,
    }
}

fn subject(name: &str) -> Subject<'_> {
    Subject {
        name,
        group: "lock",
        acquire: format!("lock acquire {}", quoted(name)),
    }
}

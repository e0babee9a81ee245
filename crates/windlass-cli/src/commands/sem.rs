//! `windlass sem`: permits that stay held after windlass has exited.

use serde::Serialize;
use windlass::Coordinator;
use windlass_term::{Exit, Failure, GlobalArgs, Printer, quoted, store};

use super::acquisition::ClaimRequest;
use super::holders::{self, HolderAnswer};
use super::inventory;
use super::manual::{self, ManualTarget};
use crate::args::{InventoryKind, SemCommand, SemResizeArgs, SemShowArgs};
use crate::humanize;

pub(super) async fn sem(
    command: SemCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        SemCommand::Ls(args) => inventory::ls(&args, &[InventoryKind::Sem], global, printer).await,
        SemCommand::Acquire(args) => {
            let (permits, weight) = (args.permits, args.weight);
            let permit =
                |store: &Coordinator| ClaimRequest::permit(store, &args.name, permits, weight);
            let target = target(&args.name, Some(permits));
            manual::acquire(target, &args.manual, permit, global, printer).await
        }
        SemCommand::Renew(args) => {
            let store = store::open(global).await?;
            let permit = held(&store, &args.name);
            let target = target(&args.name, args.size.permits);
            let ttl = args.ttl.unwrap_or_else(|| store.default_ttl());
            manual::renew(target, permit, &args.owner, ttl, printer).await
        }
        SemCommand::Release(args) => {
            let permit = held(&store::open(global).await?, &args.name);
            let target = target(&args.name, args.size.permits);
            manual::release(target, permit, &args.owner, printer).await
        }
        SemCommand::Show(args) => show(&args, global, printer).await,
        SemCommand::Resize(args) => resize(&args, global, printer).await,
    }
}

/// Permits that are already held: the store knows their size and weight.
fn held(store: &Coordinator, name: &str) -> ClaimRequest {
    ClaimRequest::permit(store, name, 1, 1)
}

fn target(name: &str, permits: Option<u32>) -> ManualTarget<'_> {
    let permits = permits.map_or("N".to_owned(), |permits| permits.to_string());
    ManualTarget {
        name,
        group: "sem",
        acquire: format!("sem acquire {} --permits {permits}", quoted(name)),
    }
}

#[derive(Serialize)]
struct SemAnswer<'a> {
    name: &'a str,
    permits: Option<u32>,
    used: u64,
    waiters: u64,
    holders: Vec<HolderAnswer<'a>>,
}

async fn show(args: &SemShowArgs, global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let name = args.name.as_str();
    let semaphore = store.semaphore(name, args.size.permits.unwrap_or(1));
    let max = match printer.is_json() {
        true => usize::MAX,
        false => holders::MAX_SHOWN,
    };
    let state = semaphore.inspect_up_to(max).await?;
    let permits = Some(state.size).filter(|size| *size > 0);
    let permits = permits.or(args.size.permits);
    let answer = SemAnswer {
        name,
        permits,
        used: state.used,
        waiters: state.waiters,
        holders: holders::holders(&state.holders),
    };
    let waiters = holders::waiters_suffix(state.waiters);
    let text = match permits {
        Some(permits) => {
            let (used, permits) = (state.used, humanize::count(permits, "permit"));
            format!("{name}: {used} of {permits} in use{waiters}")
        }
        None => format!("{name} is not in use"),
    };
    let outcome = match state.used {
        0 => "free",
        _ => "in-use",
    };
    printer.answer(outcome, &answer, text);
    if !printer.is_json() && !state.holders.is_empty() {
        let shown: u64 = state.holders.iter().map(|h| u64::from(h.weight)).sum();
        holders::print_permits(&state.holders, printer);
        if shown < state.used {
            printer.note(holders::MORE);
        }
    }
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct ResizeAnswer<'a> {
    name: &'a str,
    permits: u32,
    before: Option<u32>,
}

async fn resize(
    args: &SemResizeArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let (name, permits) = (args.name.as_str(), args.permits);
    let before = store.semaphore(name, permits).resize(permits).await?;
    let answer = ResizeAnswer {
        name,
        permits,
        before,
    };
    let permits = humanize::count(permits, "permit");
    let text = match before {
        Some(before) => format!("{name} has {permits} now, {before} before"),
        None => format!("{name} has {permits} now"),
    };
    printer.answer("resized", &answer, text);
    Ok(Exit::SUCCESS)
}

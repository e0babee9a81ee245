//! `windlass top`: a live screen of what is held and waited for. It only looks.
//!
//! One file, one idea:
//!
//! - [`rows`]: what was seen, as lines of a table
//! - [`screen`]: how they are drawn
//! - [`terminal`]: taking over the terminal, and giving it back whatever happens
//! - [`live`]: keys, signals, and looking again and again

mod live;
mod rows;
mod screen;
mod terminal;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Coordinator, Occupancy};

use self::rows::Scale;
use super::holders::{self, SeenHolder};
use crate::args::{Global, TopArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::store;

/// How many holders of one thing are shown.
const MOST_HOLDERS: usize = 10;

/// How long a look may take, before it is said that there is no answer.
const LOOK: Duration = Duration::from_secs(10);

pub(super) async fn top(
    args: &TopArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb;
    if !printer.is_json() && terminal {
        return live::live(args, &store, printer).await;
    }
    let most = match printer.is_json() {
        true => usize::MAX,
        false => MOST_HOLDERS,
    };
    let found = look(&store, &args.pattern, most).await?;
    snapshot(&found, &store, printer);
    Ok(Exit::SUCCESS)
}

/// All that is held or waited for, in the order of names.
async fn look(store: &Coordinator, pattern: &str, most: usize) -> Result<Vec<Occupancy>, Failure> {
    let Ok(found) = timeout(LOOK, store.survey(pattern, most)).await else {
        return Err(Failure {
            message: format!("{} has not answered for {LOOK:?}", store.address()),
            advice: crate::failure::Advice::Try("windlass doctor".into()),
            exit: Exit::UNREACHABLE,
        });
    };
    let mut found = found?;
    found.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    Ok(found)
}

#[derive(Serialize)]
struct Seen<'a> {
    kind: &'static str,
    name: &'a str,
    size: u32,
    used: u64,
    waiters: u64,
    holders: Vec<SeenHolder<'a>>,
}

/// One look, for those who have no terminal.
fn snapshot(found: &[Occupancy], store: &Coordinator, printer: &Printer) {
    if printer.is_json() {
        for seen in found {
            let answer = Seen {
                kind: seen.kind.word(),
                name: &seen.name,
                size: seen.size,
                used: seen.used,
                waiters: seen.waiters,
                holders: holders::holders(&seen.holders),
            };
            printer.answer(&answer, "");
        }
    } else if found.is_empty() {
        printer.note(holders::nothing(store));
    } else {
        let rows = rows::rows(found, &mut Scale::default());
        let lines = rows.into_iter().map(|row| {
            let left = row.left.after(Duration::ZERO);
            let age = holders::or_dash(row.age.map(crate::words::time));
            let kind = row.kind.to_owned();
            [row.name, kind, row.holder, age, left, row.used, row.waiters]
        });
        let headings = ["NAME", "KIND", "HOLDER", "HELD", "LEFT", "USED", "WAITING"];
        holders::print_table(headings, lines.collect(), printer);
    }
}

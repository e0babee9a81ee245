//! `windlass top`: a live screen of what is held and waited for, and of limiters in use. It only looks.
//!
//! One file, one idea:
//!
//! - [`rows`], [`limits`]: what was seen, as lines of a table
//! - [`screen`]: how they are drawn, and [`columns`]: what there is room for
//! - [`terminal`]: taking over the terminal, and giving it back whatever happens
//! - [`live`]: keys, signals, and looking again and again

mod columns;
mod limits;
mod live;
mod rows;
mod screen;
mod terminal;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Coordinator, ErrorKind, LimiterState, Occupancy};

use self::limits::{SeenLimiter, limit_rows};
use self::rows::Scale;
use super::holders::{self, SeenHolder};
use crate::args::{Global, TopArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::store;

/// How many holders of one thing are shown.
const MOST_HOLDERS: usize = 10;

/// How many limiters are shown: there may be one for each address that ever called.
const MOST_LIMITERS: usize = 1_000;

/// What to say if that is not all.
const MORE_LIMITERS: &str = "there may be more limiters: narrow them down by name";

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

/// What one look has found.
#[derive(Debug, Default)]
struct Found {
    /// All that is held or waited for, in the order of names.
    held: Vec<Occupancy>,
    /// Limiters that are in use; none on a store that has none.
    limiters: Vec<LimiterState>,
    /// Whether there may be more of them.
    more: bool,
}

async fn look(store: &Coordinator, pattern: &str, most: usize) -> Result<Found, Failure> {
    let both = async {
        tokio::join!(
            store.survey(pattern, most),
            store.survey_limiters(pattern, MOST_LIMITERS)
        )
    };
    let Ok((held, limiters)) = timeout(LOOK, both).await else {
        return Err(Failure {
            message: format!("{} has not answered for {LOOK:?}", store.address()),
            advice: crate::failure::Advice::Try("windlass doctor".into()),
            exit: Exit::UNREACHABLE,
        });
    };
    let mut held = held?;
    held.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
    match limiters {
        Ok(seen) => Ok(Found {
            held,
            limiters: seen.limiters,
            more: seen.more,
        }),
        Err(e) if e.kind() == ErrorKind::Unsupported => Ok(Found {
            held,
            ..Found::default()
        }),
        Err(e) => Err(e.into()),
    }
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
fn snapshot(found: &Found, store: &Coordinator, printer: &Printer) {
    if printer.is_json() {
        for seen in &found.held {
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
        for limiter in &found.limiters {
            printer.answer(&SeenLimiter::from(limiter), "");
        }
    } else if found.held.is_empty() && found.limiters.is_empty() {
        printer.note(holders::nothing(store));
    }
    if !printer.is_json() && !found.held.is_empty() {
        let rows = rows::rows(&found.held, &mut Scale::default());
        let lines = rows.into_iter().map(|row| {
            let left = row.left.after(Duration::ZERO);
            let age = holders::or_dash(row.age.map(crate::words::time));
            let kind = row.kind.to_owned();
            [row.name, kind, row.holder, age, left, row.used, row.waiters]
        });
        let headings = ["NAME", "KIND", "HOLDER", "HELD", "LEFT", "USED", "WAITING"];
        holders::print_table(headings, lines.collect(), printer);
    }
    if !printer.is_json() && !found.limiters.is_empty() {
        if !found.held.is_empty() {
            printer.out("");
        }
        let lines = limit_rows(&found.limiters).into_iter().map(|row| {
            let full = row.full_in(Duration::ZERO);
            [row.name, row.quota, row.left, full]
        });
        let headings = ["LIMITER", "QUOTA", "LEFT", "FULL IN"];
        holders::print_table(headings, lines.collect(), printer);
    }
    if found.more {
        printer.note(MORE_LIMITERS);
    }
}

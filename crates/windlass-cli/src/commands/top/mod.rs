//! `windlass top`: a live view of locks, holders, waiters and rate limits.
//!
//! - [`rows`], [`limits`], [`data`]: the rows of the tables; [`history`]: what happened since it started
//! - [`view`]: filter, order, selection, and what a key does; [`action`]: what it can end
//! - [`screen`] and [`dialogs`] draw it; [`columns`]: the width of the columns
//! - [`terminal`]: takes over the terminal and restores it
//! - [`event_loop`]: keys, signals and refreshing

mod action;
mod columns;
mod data;
mod dialogs;
mod event_loop;
mod history;
pub(super) mod limits;
mod rows;
mod screen;
mod terminal;
mod view;

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use serde::Serialize;
use tokio::time::timeout;
use windlass::{Coordinator, ErrorKind, LimiterState, Occupancy};
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use self::data::DataRow;
use self::limits::{LimiterAnswer, limit_rows};
use self::rows::TtlEstimates;
use super::holders::{self, HolderAnswer};
use crate::args::TopArgs;

/// Maximum number of holders per row group.
const MAX_HOLDERS: usize = 10;

/// Maximum number of rate limits: there may be one per client address.
const MAX_LIMITERS: usize = 1_000;

/// The message if there are more.
const MORE_LIMITERS: &str = "there may be more rate limits: narrow them down by name";

/// Limit for reading the store.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) async fn top(
    args: &TopArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
    let terminal = io::stdin().is_terminal() && io::stdout().is_terminal() && !dumb;
    if !printer.is_json() && terminal {
        return event_loop::run(args, &store, printer).await;
    }
    let max = match printer.is_json() {
        true => usize::MAX,
        false => MAX_HOLDERS,
    };
    let survey = Survey::read(&store, &args.pattern, max, false).await?;
    print_snapshot(&survey, &store, printer);
    Ok(Exit::SUCCESS)
}

/// What the store contained at one moment.
#[derive(Debug, Default)]
struct Survey {
    /// Everything that is held or waited for, by name.
    held: Vec<Occupancy>,
    /// Rate limits in use; none on a store without rate limits.
    limiters: Vec<LimiterState>,
    /// Whether there may be more of them.
    more: bool,
    /// Latches and counters, if they were asked for.
    data: Vec<DataRow>,
}

impl Survey {
    async fn read(
        store: &Coordinator,
        pattern: &str,
        max: usize,
        with_data: bool,
    ) -> Result<Survey, Failure> {
        let data = async {
            match with_data {
                true => data::read(store, pattern).await,
                false => Ok(Vec::new()),
            }
        };
        let all = async {
            tokio::join!(
                store.survey(pattern, max),
                store.survey_limiters(pattern, MAX_LIMITERS),
                data,
            )
        };
        let Ok((held, limiters, data)) = timeout(READ_TIMEOUT, all).await else {
            return Err(Failure {
                kind: "unreachable",
                name: None,
                message: format!("{} did not answer within {READ_TIMEOUT:?}", store.address()),
                advice: windlass_term::Advice::Try("windlass doctor".into()),
                exit: Exit::UNREACHABLE,
            });
        };
        let (mut held, data) = (held?, data?);
        held.sort_by(|a, b| (&a.name, a.kind).cmp(&(&b.name, b.kind)));
        match limiters {
            Ok(seen) => Ok(Survey {
                held,
                limiters: seen.limiters,
                more: seen.more,
                data,
            }),
            Err(e) if e.kind() == ErrorKind::Unsupported => Ok(Survey {
                held,
                data,
                ..Survey::default()
            }),
            Err(e) => Err(e.into()),
        }
    }
}

#[derive(Serialize)]
struct TopAnswer<'a> {
    kind: &'static str,
    name: &'a str,
    size: u32,
    used: u64,
    waiters: u64,
    holders: Vec<HolderAnswer<'a>>,
}

/// Prints one snapshot, without a terminal.
fn print_snapshot(found: &Survey, store: &Coordinator, printer: &Printer) {
    if printer.is_json() {
        for seen in &found.held {
            let answer = TopAnswer {
                kind: seen.kind.word(),
                name: &seen.name,
                size: seen.size,
                used: seen.used,
                waiters: seen.waiters,
                holders: holders::holders(&seen.holders),
            };
            printer.answer("in-use", &answer, "");
        }
        for limiter in &found.limiters {
            printer.answer("in-use", &LimiterAnswer::from(limiter), "");
        }
    } else if found.held.is_empty() && found.limiters.is_empty() {
        printer.note(holders::nothing(store));
    }
    if !printer.is_json() && !found.held.is_empty() {
        let held: Vec<&Occupancy> = found.held.iter().collect();
        let rows = rows::rows(&held, &TtlEstimates::default());
        let lines = rows.into_iter().map(|row| {
            let left = row.left.after(Duration::ZERO);
            let age = holders::or_dash(row.age.map(crate::humanize::duration));
            let kind = row.kind.word().to_owned();
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

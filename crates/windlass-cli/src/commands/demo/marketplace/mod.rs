//! `windlass demo marketplace`: listers and buyers trade for a while, and then everything is counted.
//!
//! On Redis, the market is a sorted set of offers, a hash for each user and a set of each user's goods. Elsewhere the
//! market is in this process, and what takes WATCH or a script cannot be shown.
//!
//! One file, one idea:
//!
//! - [`market`]: what can be asked of a market; [`remote`] and [`local`]: where it is
//! - [`trading`]: what listers and buyers do under each guard
//! - [`audit`]: whether money and goods are still all there
//! - [`table`]: how it is shown

mod audit;
mod local;
mod market;
mod remote;
mod table;
mod trading;

use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::cleaning::{Place, TIDYING};
use super::live::Live;
use crate::args::{Global, MarketplaceArgs, Traders, Trading, word};
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;
use audit::Audit;
use local::Local;
use market::Market;
use remote::Remote;
use table::{Kept, Row};
use trading::{Done, Trader};

const CROWDS: [Traders; 3] = [
    Traders {
        listers: 1,
        buyers: 1,
    },
    Traders {
        listers: 5,
        buyers: 1,
    },
    Traders {
        listers: 5,
        buyers: 5,
    },
];

/// What is needed before anybody trades.
pub(super) struct Prepared {
    place: Place,
    rounds: Vec<Round>,
}

/// One way to trade, by so many.
#[derive(Clone, Copy, Debug)]
struct Round {
    guard: Trading,
    traders: Traders,
}

impl Round {
    /// In front of all keys and locks of this round.
    fn prefix(&self, place: &Place) -> String {
        // One slot for all of them, in a cluster.
        format!(
            "{{{}}}:{}-{}",
            place.prefix,
            word(&self.guard),
            self.traders
        )
    }

    fn users(&self) -> Vec<String> {
        let listers = (0..self.traders.listers).map(|number| format!("lister{number}"));
        let buyers = (0..self.traders.buyers).map(|number| format!("buyer{number}"));
        listers.chain(buyers).collect()
    }
}

/// Looks whether it can be done.
pub(super) async fn prepare(
    args: &MarketplaceArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Prepared, Failure> {
    let place = Place::find(global, "marketplace").await?;
    let on_redis = place.is_one_redis();
    let can = |guard: &Trading| on_redis || !matches!(guard, Trading::Watch | Trading::Script);
    let asked = match args.guard.is_empty() {
        true => Trading::value_variants().to_vec(),
        false => {
            let mut guards = args.guard.clone();
            guards.sort_unstable();
            guards.dedup();
            guards
        }
    };
    let (guards, others): (Vec<Trading>, Vec<Trading>) = asked.into_iter().partition(can);
    let left_out: Vec<String> = others.iter().map(word).collect();
    if guards.is_empty() {
        return Err(Failure::usage(
            format!(
                "not on this store: {} is for one Redis server, and this is {}",
                left_out.join(" and "),
                place.shown()
            ),
            Advice::Hint("name a server: --store redis://127.0.0.1".into()),
        ));
    }
    if !left_out.is_empty() {
        printer.note(format_args!(
            "not on this store: {}, which take one Redis server. The market is in this process, its locks are in {}.",
            left_out.join(" and "),
            place.shown()
        ));
    }
    let crowds = match args.traders.is_empty() {
        true => CROWDS.to_vec(),
        false => args.traders.clone(),
    };
    let rounds = crowds.iter().flat_map(|traders| {
        guards.iter().map(|guard| Round {
            guard: *guard,
            traders: *traders,
        })
    });
    Ok(Prepared {
        rounds: rounds.collect(),
        place,
    })
}

impl Prepared {
    /// Removes every key, if a signal came in between. What is done in good order is removed there.
    pub(super) async fn clean(&self) {
        if !self.place.is_one_redis() {
            return;
        }
        let work = async {
            for round in &self.rounds {
                let prefix = round.prefix(&self.place);
                if let Ok(mut market) = Remote::connect(&self.place.url, prefix).await {
                    let _ = market.tear_down(&round.users()).await;
                }
            }
        };
        let _ = timeout(TIDYING, work).await;
    }
}

/// Trades in all ways, and shows what came of it.
pub(super) async fn show(
    args: &MarketplaceArgs,
    prepared: &Prepared,
    printer: &Printer,
) -> Result<Exit, Failure> {
    if cfg!(debug_assertions) {
        printer.warn("this is a debug build: its speed says nothing about a release");
    }
    let Prepared { place, rounds } = prepared;
    if !printer.is_json() {
        printer.out(table::heading(&place.shown(), args.seconds, printer));
    }
    let mut live = Live::new(printer);
    let mut rows: Vec<Row> = Vec::new();
    for round in rounds {
        live.draw(|width| table::frame(&rows, round.guard, round.traders, width, printer));
        let row = trade(*round, place, args.seconds).await?;
        if !live.is_watched() {
            table::one(&row, rows.last(), printer);
        }
        rows.push(row);
    }
    live.end(|width| table::all(&rows, width, printer));
    table::summary(&rows, printer);
    let broken = rows
        .iter()
        .find(|row| !row.kept.audit.is_clean() && row.guard != Trading::None);
    match broken {
        None => Ok(Exit::SUCCESS),
        Some(row) => Err(Failure::internal(format!(
            "the books do not balance with {}: {}",
            word(&row.guard),
            row.kept.audit.words()
        ))),
    }
}

/// One round: set up, trade, count, remove.
async fn trade(round: Round, place: &Place, seconds: Duration) -> Result<Row, Failure> {
    let (prefix, users) = (round.prefix(place), round.users());
    let mut own = match place.is_one_redis() {
        true => {
            let mut remote = Remote::connect(&place.url, prefix.clone()).await?;
            remote.set_up(&users).await?;
            Market::Remote(remote)
        }
        false => Market::Local(Local::default()),
    };
    let mut markets = Vec::new();
    for _ in &users {
        markets.push(match &own {
            // Each a client of its own, as WATCH needs it and as people are.
            Market::Remote(_) => Market::Remote(Remote::connect(&place.url, prefix.clone()).await?),
            Market::Local(local) => Market::Local(local.clone()),
        });
    }
    let start = Instant::now();
    let mut traders = JoinSet::new();
    for (name, market) in users.iter().zip(markets) {
        let trader = Trader {
            name: name.clone(),
            guard: round.guard,
            market,
            store: place.store.clone(),
            prefix: prefix.clone(),
            until: start + seconds,
        };
        match name.starts_with("lister") {
            true => traders.spawn(trader.list()),
            false => traders.spawn(trader.buy()),
        };
    }
    let mut sum = Done::default();
    while let Some(done) = traders.join_next().await {
        let done = done.map_err(|e| Failure::internal(format!("a trader failed: {e}")))??;
        sum.made += done.made;
        sum.listed += done.listed;
        sum.bought += done.bought;
        sum.retries += done.retries;
    }
    let took = start.elapsed();
    let inventory = own.count(&users).await?;
    if let Market::Remote(remote) = &mut own {
        remote.tear_down(&users).await?;
    }
    Ok(Row {
        guard: round.guard,
        traders: round.traders,
        kept: Kept {
            done: sum,
            took,
            audit: Audit::of(&inventory, users.len(), sum.made),
        },
    })
}

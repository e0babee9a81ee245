//! `windlass demo marketplace`: listers and buyers trade for a while, then money and goods are audited.
//!
//! On Redis, the market is a sorted set of offers, a hash for each user and a set of each user's goods. On other stores
//! the market is in this process, and the guards that need WATCH or a script are left out.
//!
//! - [`market`]: the operations of a market; [`redis_market`], [`local_market`]: the two implementations
//! - [`trader`]: what listers and buyers do under each guard
//! - [`audit`]: checks money and goods; [`table`]: prints the results

mod audit;
mod local_market;
mod market;
mod redis_market;
mod table;
mod trader;

use std::time::{Duration, Instant};

use clap::ValueEnum as _;
use tokio::task::JoinSet;
use tokio::time::timeout;

use crate::args::{MarketplaceArgs, TradeGuard, Traders, value_name};
use crate::demo_store::{CLEANUP_TIMEOUT, DemoStore};
use crate::live_lines::LiveLines;
use audit::Audit;
use local_market::LocalMarket;
use market::Market;
use redis_market::RedisMarket;
use table::{MarketRow, RoundResult};
use trader::{TradeCounts, Trader};
use windlass_term::{Advice, Exit, Failure, GlobalArgs, Printer};

const DEFAULT_TRADERS: [Traders; 3] = [
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

/// The store and the rounds, checked before trading.
pub(super) struct PreparedMarketplace {
    demo_store: DemoStore,
    rounds: Vec<MarketRound>,
}

/// One guard with one number of traders.
#[derive(Clone, Copy, Debug)]
struct MarketRound {
    guard: TradeGuard,
    traders: Traders,
}

impl MarketRound {
    /// The prefix of all keys and locks of this round.
    fn prefix(&self, demo_store: &DemoStore) -> String {
        // A hash tag, so that a cluster keeps all of them in one slot.
        format!(
            "{{{}}}:{}-{}",
            demo_store.prefix,
            value_name(&self.guard),
            self.traders
        )
    }

    fn users(&self) -> Vec<String> {
        let listers = (0..self.traders.listers).map(|number| format!("lister{number}"));
        let buyers = (0..self.traders.buyers).map(|number| format!("buyer{number}"));
        listers.chain(buyers).collect()
    }
}

/// Checks the arguments and opens the store.
pub(super) async fn prepare(
    args: &MarketplaceArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<PreparedMarketplace, Failure> {
    let demo_store = DemoStore::open(global, "marketplace").await?;
    let on_redis = demo_store.is_one_redis();
    let supported =
        |guard: &TradeGuard| on_redis || !matches!(guard, TradeGuard::Watch | TradeGuard::Script);
    let requested = match args.guard.is_empty() {
        true => TradeGuard::value_variants().to_vec(),
        false => {
            let mut guards = args.guard.clone();
            guards.sort_unstable();
            guards.dedup();
            guards
        }
    };
    let (guards, others): (Vec<TradeGuard>, Vec<TradeGuard>) =
        requested.into_iter().partition(supported);
    let left_out: Vec<String> = others.iter().map(value_name).collect();
    if guards.is_empty() {
        return Err(Failure::usage(
            format!(
                "not supported by this store: {} needs a single Redis server, and this is {}",
                left_out.join(" and "),
                demo_store.display_name()
            ),
            Advice::Hint("use a Redis server: --store redis://127.0.0.1".into()),
        ));
    }
    if !left_out.is_empty() {
        printer.note(format_args!(
            "not supported by this store: {} (they need a single Redis server). The market is in this process, its locks are in {}.",
            left_out.join(" and "),
            demo_store.display_name()
        ));
    }
    let traders = match args.traders.is_empty() {
        true => DEFAULT_TRADERS.to_vec(),
        false => args.traders.clone(),
    };
    let rounds = traders.iter().flat_map(|traders| {
        guards.iter().map(|guard| MarketRound {
            guard: *guard,
            traders: *traders,
        })
    });
    Ok(PreparedMarketplace {
        rounds: rounds.collect(),
        demo_store,
    })
}

impl PreparedMarketplace {
    /// Removes the keys of rounds that a signal interrupted; completed rounds have removed theirs.
    pub(super) async fn clean(&self) {
        if !self.demo_store.is_one_redis() {
            return;
        }
        let work = async {
            for round in &self.rounds {
                let prefix = round.prefix(&self.demo_store);
                if let Ok(mut market) = RedisMarket::connect(&self.demo_store.url, prefix).await {
                    let _ = market.tear_down(&round.users()).await;
                }
            }
        };
        let _ = timeout(CLEANUP_TIMEOUT, work).await;
    }
}

/// Runs all rounds and prints the results.
pub(super) async fn show(
    args: &MarketplaceArgs,
    prepared: &PreparedMarketplace,
    printer: &Printer,
) -> Result<Exit, Failure> {
    if cfg!(debug_assertions) {
        printer.warn("this is a debug build: the figures do not apply to a release build");
    }
    let PreparedMarketplace { demo_store, rounds } = prepared;
    if !printer.is_json() {
        printer.out(table::heading(
            &demo_store.display_name(),
            args.seconds,
            printer,
        ));
    }
    let mut live = LiveLines::new(printer);
    let mut rows: Vec<MarketRow> = Vec::new();
    for round in rounds {
        live.draw(|width| table::frame(&rows, round.guard, round.traders, width, printer));
        let row = trade(*round, demo_store, args.seconds).await?;
        if !live.is_watched() {
            table::one(&row, rows.last(), printer);
        }
        rows.push(row);
    }
    live.end(|width| table::all(&rows, width, printer));
    table::summary(&rows, printer);
    let unbalanced = rows
        .iter()
        .find(|row| !row.result.audit.is_clean() && row.guard != TradeGuard::None);
    match unbalanced {
        None => Ok(Exit::SUCCESS),
        Some(row) => Err(Failure::internal(format!(
            "the audit failed with {}: {}",
            value_name(&row.guard),
            row.result.audit.summary()
        ))),
    }
}

/// Runs one round: set up, trade, audit, remove.
async fn trade(
    round: MarketRound,
    demo_store: &DemoStore,
    seconds: Duration,
) -> Result<MarketRow, Failure> {
    let (prefix, users) = (round.prefix(demo_store), round.users());
    let mut market = match demo_store.is_one_redis() {
        true => {
            let mut redis = RedisMarket::connect(&demo_store.url, prefix.clone()).await?;
            redis.set_up(&users).await?;
            Market::Redis(redis)
        }
        false => Market::Local(LocalMarket::default()),
    };
    let mut markets = Vec::new();
    for _ in &users {
        markets.push(match &market {
            // A connection per trader, because WATCH is a state of the connection.
            Market::Redis(_) => {
                Market::Redis(RedisMarket::connect(&demo_store.url, prefix.clone()).await?)
            }
            Market::Local(local) => Market::Local(local.clone()),
        });
    }
    let start = Instant::now();
    let mut traders = JoinSet::new();
    for (name, connection) in users.iter().zip(markets) {
        let trader = Trader {
            name: name.clone(),
            guard: round.guard,
            market: connection,
            store: demo_store.store.clone(),
            prefix: prefix.clone(),
            until: start + seconds,
        };
        match name.starts_with("lister") {
            true => traders.spawn(trader.list()),
            false => traders.spawn(trader.buy()),
        };
    }
    let mut sum = TradeCounts::default();
    while let Some(done) = traders.join_next().await {
        let done = done.map_err(|e| Failure::internal(format!("a trader failed: {e}")))??;
        sum.created += done.created;
        sum.listed += done.listed;
        sum.bought += done.bought;
        sum.retries += done.retries;
    }
    let took = start.elapsed();
    let inventory = market.count(&users).await?;
    if let Market::Redis(redis) = &mut market {
        redis.tear_down(&users).await?;
    }
    Ok(MarketRow {
        guard: round.guard,
        traders: round.traders,
        result: RoundResult {
            counts: sum,
            took,
            audit: Audit::of(&inventory, users.len(), sum.created),
        },
    })
}

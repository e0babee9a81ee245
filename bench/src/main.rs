//! Compares Windlass with other libraries: the same work, the same server, the same run.
//!
//! ```text
//! cargo run --release --manifest-path bench/Cargo.toml -- --store redis://127.0.0.1:6379
//! ```
//!
//! Without `--store` it starts its own Redis server. The same loop ([`drive`]) runs each
//! [`contender`] in turns, and the median of the rounds counts: a temporary slowdown of the machine
//! affects all. [`report`] prints a table, or JSON with `--json`.

mod contender;
mod drive;
mod report;

use std::error::Error;
use std::time::Duration;

use clap::Parser;
use windlass_testkit::RedisServer;

use self::contender::{Bare, Contender, Rslock, Windlass};
use self::drive::{Names, round};
use self::report::{PeerRow, PeerWorkload};

type Result<T, E = Box<dyn Error + Send + Sync>> = std::result::Result<T, E>;

/// Compares Windlass with other lock libraries on one Redis server
#[derive(Debug, Parser)]
struct PeersArgs {
    /// A Redis server to measure on, by its URL [default: one is started]
    #[arg(long, value_name = "URL")]
    store: Option<String>,

    /// How many tasks lock and unlock at once, each its own name
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "64,512",
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    tasks: Vec<u32>,

    /// How many tasks fight for one name
    #[arg(long, value_name = "N", default_value_t = 20,
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    rivals: u32,

    /// How long one round lasts
    #[arg(long, value_name = "S", default_value_t = 1,
          value_parser = clap::value_parser!(u64).range(1..=60))]
    seconds: u64,

    /// How many rounds each has
    #[arg(long, value_name = "N", default_value_t = 3,
          value_parser = clap::value_parser!(u32).range(1..=20))]
    rounds: u32,

    /// Answer with one JSON object per line
    #[arg(long)]
    json: bool,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = PeersArgs::parse();
    // Ends with this value.
    let mut started = None;
    let url = match &args.store {
        Some(url) => url.clone(),
        None => started.insert(RedisServer::start()?).url(),
    };
    if cfg!(debug_assertions) {
        eprintln!("warning: this is a debug build: its figures say nothing about a release");
    }

    for &tasks in &args.tasks {
        let rows = compare(&args, &url, PeerWorkload::Apart, tasks).await?;
        report::show(&rows, args.json);
    }
    let rows = compare(&args, &url, PeerWorkload::Together, args.rivals).await?;
    report::show(&rows, args.json);
    Ok(())
}

/// Measures all contenders in turns.
async fn compare(
    args: &PeersArgs,
    url: &str,
    workload: PeerWorkload,
    tasks: u32,
) -> Result<Vec<PeerRow>> {
    let ours = Windlass::connect(url).await?;
    let rslock = Rslock::connect(url);
    let bare = Bare::connect(url).await?;
    let names = Names::new(workload, tasks);
    let mut rows = vec![
        PeerRow::new(workload, tasks, Windlass::NAME),
        PeerRow::new(workload, tasks, Rslock::NAME),
    ];
    if workload == PeerWorkload::Apart {
        // Bare commands do not wait, so they cannot take turns on one name.
        rows.push(PeerRow::new(workload, tasks, Bare::NAME));
    }
    let length = Duration::from_secs(args.seconds);
    let warm_up = length / 5;
    // The first round warms up connections, caches and the allocator, and does not count.
    for number in 0..=args.rounds {
        let length = if number == 0 { warm_up } else { length };
        for row in &mut rows {
            let seen = match row.contender {
                Windlass::NAME => round(&ours, &names, length).await?,
                Rslock::NAME => round(&rslock, &names, length).await?,
                _ => round(&bare, &names, length).await?,
            };
            if number > 0 {
                row.add(&seen);
            }
        }
    }
    Ok(rows)
}

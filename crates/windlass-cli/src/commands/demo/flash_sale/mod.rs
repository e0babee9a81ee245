//! `windlass demo flash-sale`: several shops sell one stock to a crowd.
//!
//! ```text
//! crowd ──── balancer ──┬── shop ──┬── warehouse     the stock: read, write, and a column for the fence
//!                       ├── shop ──┤
//!                       └── shop ──┴── store         the lock: Redis, a file, …
//! ```
//!
//! The shops are processes of this binary; crowd, balancer and warehouse are here. Each guard has two sales: one in
//! fair weather, which is timed, and one in foul weather, which shows what the guard can bear.
//!
//! One file, one idea:
//!
//! - [`plan`]: which sales are held; [`sale`]: how one is held; [`outcome`]: what it came to
//! - [`shop`], [`selling`], [`keys`], [`stock`], [`weather`]: inside a shop's process
//! - [`warehouse`], [`ledger`]: where the stock is
//! - [`staff`], [`balancer`], [`crowd`]: what surrounds the shops
//! - [`report`]: verdicts; [`table`], [`page`]: how they are shown

mod balancer;
mod crowd;
mod keys;
mod ledger;
mod outcome;
mod page;
mod plan;
mod report;
mod sale;
mod selling;
mod shop;
mod staff;
mod stock;
mod table;
mod warehouse;
mod weather;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::timeout;
use windlass::{Coordinator, ErrorKind};

use super::cleaning::{Place, TIDYING};
use super::live::Live;
use crate::args::{FlashSaleArgs, Global, Guard, Ports, WarehouseArgs};
use crate::child::Signals;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;
use keys::Keys;
use page::PageFile;
use plan::{Plan, Row};
use report::{Report, Shown, Tried};

pub(super) use shop::shop;

/// The life of a claim in fair weather.
const FAIR_TTL: Duration = Duration::from_secs(30);
/// The life of a claim in foul weather: short, so that a crash does not keep the audience waiting.
const TTL: Duration = Duration::from_millis(400);
/// How long a slow step or a pause lasts: twice as long as any claim lives by itself.
const FAULT_LASTS: Duration = Duration::from_millis(800);

/// What is needed before the first sale.
#[derive(Debug)]
pub(super) struct Prepared {
    place: Place,
    shops: u32,
    buyers: u32,
    rows: Vec<Row>,
}

/// Where sales are held.
pub(super) struct Grounds<'a> {
    store: &'a Coordinator,
    url: &'a str,
    namespace: Option<&'a str>,
    prefix: &'a str,
    keys: Option<PathBuf>,
    stock: u32,
    shops: u32,
    buyers: u32,
    ports: Option<Ports>,
}

impl Grounds<'_> {
    fn name_of(&self, plan: &Plan) -> String {
        format!("{}:{}", self.prefix, plan.slug())
    }
}

/// Looks whether it can be done, before anything is started.
pub(super) async fn prepare(args: &FlashSaleArgs, global: &Global) -> Result<Prepared, Failure> {
    let buyers = args.buyers.unwrap_or(args.stock * 2);
    if let Some(ports) = args.ports
        && ports.count() <= args.shops
    {
        return Err(Failure::usage(
            format!(
                "{} and a balancer need {} ports, and {}-{} has {}",
                shops_in_words(args.shops),
                args.shops + 1,
                ports.from,
                ports.to,
                ports.count()
            ),
            Advice::Hint("name more ports, or none at all for free ones".into()),
        ));
    }
    make_room(buyers)?;
    let place = Place::find(global, "flash-sale").await?;
    if place.kind() == "memory" {
        return Err(Failure::usage(
            "memory: is seen by one process alone, and each shop is a process of its own",
            Advice::Hint("use file:PATH, or leave --store out for a temporary file".into()),
        ));
    }
    let guards = match args.guard.is_empty() {
        true => Guard::value_variants().to_vec(),
        false => {
            let mut guards = args.guard.clone();
            guards.sort_unstable();
            guards.dedup();
            guards
        }
    };
    Ok(Prepared {
        place,
        shops: args.shops,
        buyers,
        rows: Row::all(&guards),
    })
}

/// Each buyer needs a connection to the balancer, each of those one to a shop, and that perhaps one to the warehouse.
fn make_room(buyers: u32) -> Result<(), Failure> {
    let needed = u64::from(buyers) * 4 + 200;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if maximum.is_some_and(|maximum| maximum < needed) {
        return Err(Failure::usage(
            format!(
                "{buyers} buyers need {needed} open files, and a process may have {}",
                maximum.unwrap_or_default()
            ),
            Advice::Hint("fewer buyers, or a higher limit: ulimit -Hn".into()),
        ));
    }
    // If this fails, some buyers are turned away and come again.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            maximum,
        },
    );
    Ok(())
}

impl Prepared {
    /// Removes from the store what has no end of its own.
    pub(super) async fn clean(&self) {
        let work = async {
            let grounds = self.grounds(1, None);
            let plans = self.rows.iter().flat_map(|row| [row.fair(), row.foul()]);
            let plans: Vec<Plan> = plans.flatten().collect();
            if self.place.is_one_redis()
                && let Ok(keys) = Keys::on_redis(&self.place.url).await
            {
                for plan in plans.iter().filter(|plan| plan.guard < Guard::Lock) {
                    let _ = keys.delete(&grounds.name_of(plan)).await;
                }
            }
            for plan in plans.iter().filter(|plan| plan.counts()) {
                let _ = self
                    .place
                    .store
                    .counter(&grounds.name_of(plan))
                    .reset()
                    .await;
            }
        };
        let _ = timeout(TIDYING, work).await;
    }

    fn grounds(&self, stock: u32, ports: Option<Ports>) -> Grounds<'_> {
        let Place {
            store, url, prefix, ..
        } = &self.place;
        let keys = self.place.folder.path().join("keys.db");
        Grounds {
            store,
            url,
            namespace: self.place.namespace.as_deref(),
            prefix,
            keys: (!self.place.is_one_redis()).then_some(keys),
            stock,
            shops: self.shops,
            buyers: self.buyers,
            ports,
        }
    }
}

/// Holds all sales, and shows what they came to.
pub(super) async fn show(
    args: &FlashSaleArgs,
    prepared: &Prepared,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let grounds = prepared.grounds(args.stock, args.ports);
    // Before the sales, not after half a minute of them.
    let file = match &args.html {
        Some(path) => Some(PageFile::open(path).map_err(|e| unwritable(path, &e))?),
        None => None,
    };
    let mut report = Report::new(prepared, &grounds);
    if cfg!(debug_assertions) {
        printer.warn("this is a debug build: its speed says nothing about a release");
    }
    if !printer.is_json() {
        printer.out(table::heading(&report, printer));
    }
    let mut live = Live::new(printer);
    let rows = &prepared.rows;
    table::begin(rows, &mut live, printer);
    for (number, &row) in rows.iter().enumerate() {
        let shown = hold_both(row, &grounds, |doing, sold| {
            live.draw(|width| table::frame(&report, rows, doing, sold, width, printer));
        })
        .await?;
        report.push(shown);
        table::row(&report, number, &mut live, printer);
    }
    live.end(|width| table::all(&report, width, printer));
    table::verdicts(&report, printer);
    if let (Some(path), Some(file)) = (&args.html, file) {
        let written = file.write(&page::page(&report));
        written.map_err(|e| unwritable(path, &e))?;
        printer.note(format_args!("the report is in {}", path.display()));
    }
    match report.broken() {
        None => Ok(Exit::SUCCESS),
        Some(row) => Err(Failure::internal(format!(
            "{} should have held, and did not: this is a fault of windlass",
            row.title().trim()
        ))),
    }
}

/// Both sales of a row; `glance` is told what is going on.
async fn hold_both(
    row: Row,
    grounds: &Grounds<'_>,
    mut glance: impl FnMut(&str, usize),
) -> Result<Shown, Failure> {
    if row.guard() == Guard::Counter
        && let Err(error) = grounds.store.counter(grounds.prefix).get().await
    {
        return match error.kind() {
            ErrorKind::Unsupported => Ok(Shown::not_here(row, error.to_string())),
            _ => Err(error.into()),
        };
    }
    let mut hold = async |plan: Option<Plan>, words: &str| match plan {
        None => Ok(None),
        Some(plan) => {
            glance(words, 0);
            let outcome = sale::hold(&plan, grounds, |sold| glance(words, sold)).await?;
            Ok::<_, Failure>(Some(Tried { plan, outcome }))
        }
    };
    let fair = hold(row.fair(), "fair weather").await?;
    let foul = hold(row.foul(), "foul weather").await?;
    Ok(Shown::new(row, fair, foul))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(
        format!("cannot write {}: {error}", path.display()),
        Advice::Hint("name a file in a folder that exists".into()),
    )
}

fn shops_in_words(shops: u32) -> String {
    match shops {
        1 => "one shop".to_owned(),
        shops => format!("{shops} shops"),
    }
}

/// The stock alone, for shops that are started by hand.
pub(super) async fn warehouse(args: &WarehouseArgs, printer: &Printer) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()
        .map_err(|e| Failure::internal(format!("cannot listen to signals: {e}")))?;
    let warehouse = warehouse::Warehouse::open(args.listen, args.stock, Vec::new())
        .await
        .map_err(|e| shop::taken(args.listen, &e))?;
    weather::say(format_args!("listening {}", warehouse.addr()));
    let signal = signals.next().await;
    let ledger = warehouse.ledger();
    let (stock, left, sold) = (ledger.stock(), ledger.left(), ledger.sales().len() as i64);
    let books = serde_json::json!({
        "stock": stock,
        "sold": sold,
        "oversold": (sold - stock).max(0),
        "lost_updates": sold - (stock - left),
        "left": left,
        "refused": ledger.stale(),
    });
    printer.answer(
        &books,
        format_args!(
            "{stock} in stock, {sold} sold, {} oversold, {} lost updates, {left} left, {} refused",
            (sold - stock).max(0),
            sold - (stock - left),
            ledger.stale()
        ),
    );
    let _ = signal;
    Ok(Exit::SUCCESS)
}

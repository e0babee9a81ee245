//! `windlass demo flash-sale`: several shops sell one stock to many buyers.
//!
//! ```text
//! buyers ──── balancer ──┬── shop ──┬── warehouse     the stock: read, write, and a column for the fencing token
//!                        ├── shop ──┤
//!                        └── shop ──┴── store         the lock: Redis, a file, …
//! ```
//!
//! Each shop is a process of this binary; buyers, balancer and warehouse run in the demo itself. Each guard has two
//! sales: one without faults, which is timed, and one with faults, which shows what the guard withstands.
//!
//! - [`plan`]: which sales there are; [`sale`]: runs one; [`outcome`]: its result
//! - [`shop`], [`seller`], [`raw_keys`], [`warehouse_client`], [`faults`]: the process of a shop
//! - [`warehouse`], [`ledger`]: the stock
//! - [`shop_processes`], [`balancer`], [`buyers`]: the surroundings of the shops
//! - [`report`]: verdicts; [`table`], [`page`]: their output

mod balancer;
mod buyers;
mod faults;
mod ledger;
mod outcome;
mod page;
mod plan;
mod raw_keys;
mod report;
mod sale;
mod seller;
mod shop;
mod shop_processes;
mod table;
mod warehouse;
mod warehouse_client;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::ValueEnum as _;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::time::timeout;
use windlass::{Coordinator, ErrorKind};

use crate::args::{FlashSaleArgs, Guard, Ports, WarehouseArgs};
use crate::demo_store::{CLEANUP_TIMEOUT, DemoStore};
use crate::live_lines::LiveLines;
use plan::{ReportRow, SalePlan};
use raw_keys::RawKeys;
use report::{Report, RowResult, SaleResult};
use windlass_term::{Advice, Exit, Failure, GlobalArgs, OutputFile, Printer, Signals};

pub(super) use shop::shop;

/// TTL of the lock in a sale without faults.
const FAULTLESS_TTL: Duration = Duration::from_secs(30);
/// TTL of the lock in a sale with faults: short, so that recovery from a crash does not take long.
const TTL: Duration = Duration::from_millis(400);
/// Duration of a slow step or a suspension: twice the TTL.
const FAULT_LASTS: Duration = Duration::from_millis(800);

/// The store and the parameters, checked before the first sale.
#[derive(Debug)]
pub(super) struct PreparedFlashSale {
    demo_store: DemoStore,
    shops: u32,
    buyers: u32,
    rows: Vec<ReportRow>,
}

/// The parameters that all sales share.
pub(super) struct SaleSetup<'a> {
    store: &'a Coordinator,
    url: &'a str,
    namespace: Option<&'a str>,
    prefix: &'a str,
    key_file: Option<PathBuf>,
    stock: u32,
    shops: u32,
    buyers: u32,
    ports: Option<Ports>,
}

impl SaleSetup<'_> {
    fn name_of(&self, plan: &SalePlan) -> String {
        format!("{}:{}", self.prefix, plan.slug())
    }
}

/// Checks the arguments and opens the store, before anything is started.
pub(super) async fn prepare(
    args: &FlashSaleArgs,
    global: &GlobalArgs,
) -> Result<PreparedFlashSale, Failure> {
    let buyers = args.buyers.unwrap_or(args.stock * 2);
    if let Some(ports) = args.ports
        && ports.count() <= args.shops
    {
        return Err(Failure::usage(
            format!(
                "{} and a load balancer need {} ports, but {}-{} has {}",
                shop_count(args.shops),
                args.shops + 1,
                ports.from,
                ports.to,
                ports.count()
            ),
            Advice::Hint("give more ports, or omit --ports for free ones".into()),
        ));
    }
    raise_file_limit(buyers)?;
    let demo_store = DemoStore::open(global, "flash-sale").await?;
    if demo_store.kind() == "memory" {
        return Err(Failure::usage(
            "memory: cannot be shared by processes, and each shop is a process",
            Advice::Hint("use file:PATH, or omit --store for a temporary file".into()),
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
    Ok(PreparedFlashSale {
        demo_store,
        shops: args.shops,
        buyers,
        rows: ReportRow::all(&guards),
    })
}

/// Each buyer needs a connection to the balancer, each of those one to a shop, and that one perhaps to the warehouse.
fn raise_file_limit(buyers: u32) -> Result<(), Failure> {
    let needed = u64::from(buyers) * 4 + 200;
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= needed) {
        return Ok(());
    }
    if maximum.is_some_and(|maximum| maximum < needed) {
        return Err(Failure::usage(
            format!(
                "{buyers} buyers need {needed} open files, but the limit is {}",
                maximum.unwrap_or_default()
            ),
            Advice::Hint("use fewer buyers, or raise the limit (ulimit -Hn)".into()),
        ));
    }
    // If this fails, some connections of buyers fail and are retried.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: Some(needed),
            maximum,
        },
    );
    Ok(())
}

impl PreparedFlashSale {
    /// Removes the keys that do not expire.
    pub(super) async fn clean(&self) {
        let work = async {
            let setup = self.setup(1, None);
            let plans = self
                .rows
                .iter()
                .flat_map(|row| [row.faultless(), row.faulty()]);
            let plans: Vec<SalePlan> = plans.flatten().collect();
            if self.demo_store.is_one_redis()
                && let Ok(keys) = RawKeys::on_redis(&self.demo_store.url).await
            {
                for plan in plans.iter().filter(|plan| plan.guard < Guard::Lock) {
                    let _ = keys.delete(&setup.name_of(plan)).await;
                }
            }
            for plan in plans.iter().filter(|plan| plan.uses_counter()) {
                let _ = self
                    .demo_store
                    .store
                    .counter(&setup.name_of(plan))
                    .reset()
                    .await;
            }
        };
        let _ = timeout(CLEANUP_TIMEOUT, work).await;
    }

    fn setup(&self, stock: u32, ports: Option<Ports>) -> SaleSetup<'_> {
        let DemoStore {
            store, url, prefix, ..
        } = &self.demo_store;
        let key_file = self.demo_store.folder.path().join("keys.db");
        SaleSetup {
            store,
            url,
            namespace: self.demo_store.namespace.as_deref(),
            prefix,
            key_file: (!self.demo_store.is_one_redis()).then_some(key_file),
            stock,
            shops: self.shops,
            buyers: self.buyers,
            ports,
        }
    }
}

/// Runs all sales and prints the report.
pub(super) async fn show(
    args: &FlashSaleArgs,
    prepared: &PreparedFlashSale,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let setup = prepared.setup(args.stock, args.ports);
    // Opened before the sales, so that an unwritable path fails early.
    let file = match &args.html {
        Some(path) => Some(OutputFile::open(path).map_err(|e| unwritable(path, &e))?),
        None => None,
    };
    let mut report = Report::new(prepared, &setup);
    if cfg!(debug_assertions) {
        printer.warn("this is a debug build: the figures do not apply to a release build");
    }
    if !printer.is_json() {
        printer.out(table::heading(&report, printer));
    }
    let mut live = LiveLines::new(printer);
    let rows = &prepared.rows;
    table::begin(rows, &mut live, printer);
    for (number, &row) in rows.iter().enumerate() {
        let shown = run_row(row, &setup, |doing, sold| {
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
        printer.note(format_args!("the report was written to {}", path.display()));
    }
    match report.failed() {
        None => Ok(Exit::SUCCESS),
        Some(row) => Err(Failure::internal(format!(
            "{} failed, which is a bug in Windlass",
            row.title().trim()
        ))),
    }
}

/// Runs both sales of a row; `progress` is called with the current step and the number of items sold.
async fn run_row(
    row: ReportRow,
    setup: &SaleSetup<'_>,
    mut progress: impl FnMut(&str, usize),
) -> Result<RowResult, Failure> {
    if row.guard() == Guard::Counter
        && let Err(error) = setup.store.counter(setup.prefix).get().await
    {
        return match error.kind() {
            ErrorKind::Unsupported => Ok(RowResult::unsupported(row, error.to_string())),
            _ => Err(error.into()),
        };
    }
    let mut run = async |plan: Option<SalePlan>, step: &str| match plan {
        None => Ok(None),
        Some(plan) => {
            progress(step, 0);
            let outcome = sale::run(&plan, setup, |sold| progress(step, sold)).await?;
            Ok::<_, Failure>(Some(SaleResult { plan, outcome }))
        }
    };
    let faultless = run(row.faultless(), "without faults").await?;
    let faulty = run(row.faulty(), "with faults").await?;
    Ok(RowResult::new(row, faultless, faulty))
}

fn unwritable(path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(
        format!("cannot write {}: {error}", path.display()),
        Advice::Hint("choose a file in a folder that exists".into()),
    )
}

fn shop_count(shops: u32) -> String {
    match shops {
        1 => "one shop".to_owned(),
        shops => format!("{shops} shops"),
    }
}

/// Runs the warehouse alone, for shops that are started separately.
pub(super) async fn warehouse(args: &WarehouseArgs, printer: &Printer) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let warehouse = warehouse::Warehouse::open(args.listen, args.stock, Vec::new())
        .await
        .map_err(|e| shop::cannot_listen(args.listen, &e))?;
    faults::say(format_args!("listening {}", warehouse.addr()));
    signals.next().await;
    let ledger = warehouse.ledger();
    let (stock, left, sold) = (ledger.stock(), ledger.left(), ledger.sales().len() as i64);
    let totals = serde_json::json!({
        "stock": stock,
        "sold": sold,
        "oversold": (sold - stock).max(0),
        "lost_updates": sold - (stock - left),
        "left": left,
        "refused": ledger.stale(),
    });
    printer.record(
        &totals,
        format_args!(
            "{stock} in stock, {sold} sold, {} oversold, {} lost updates, {left} left, {} refused",
            (sold - stock).max(0),
            sold - (stock - left),
            ledger.stale()
        ),
    );
    Ok(Exit::SUCCESS)
}

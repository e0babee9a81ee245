//! The demonstrations of `windlass demo`: what goes wrong without a lock, and what each kind of lock withstands.
//!
//! - `flash_sale`: several shops sell one stock, under nine guards
//! - `marketplace`: traders list and buy goods, under WATCH, locks and a script
//! - `demo_store`: the store that a demo uses, and its cleanup; `live_lines`: lines that are redrawn on a terminal

mod args;
mod demo_store;
mod flash_sale;
mod live_lines;
mod marketplace;

use windlass_term::{Advice, Exit, Failure, GlobalArgs, Printer, Signals, unless_interrupted};

pub use self::args::DemoArgs;
use self::args::DemoCommand;

/// Runs a demo. A signal ends it at any time and removes what it wrote.
pub async fn demo(args: DemoArgs, global: &GlobalArgs, printer: &Printer) -> Result<Exit, Failure> {
    match args.command {
        DemoCommand::FlashSale(args) => {
            let signals = &mut Signals::listen()?;
            let prepared = flash_sale::prepare(&args, global);
            let prepared = match unless_interrupted(signals, prepared).await {
                Ok(prepared) => prepared?,
                Err(exit) => return Ok(exit),
            };
            let shown = flash_sale::show(&args, &prepared, printer);
            let shown = unless_interrupted(signals, shown).await;
            prepared.clean().await;
            shown.unwrap_or_else(Ok)
        }
        DemoCommand::Marketplace(args) => {
            let signals = &mut Signals::listen()?;
            let prepared = marketplace::prepare(&args, global, printer);
            let prepared = match unless_interrupted(signals, prepared).await {
                Ok(prepared) => prepared?,
                Err(exit) => return Ok(exit),
            };
            let shown = marketplace::show(&args, &prepared, printer);
            let shown = unless_interrupted(signals, shown).await;
            prepared.clean().await;
            shown.unwrap_or_else(Ok)
        }
        // The process that started these ends them.
        DemoCommand::Shop(args) => flash_sale::shop(args, global, printer).await,
        DemoCommand::Warehouse(args) => flash_sale::warehouse(&args, printer).await,
    }
}

/// The run is invalid: its figures would mean nothing.
fn invalid_run(message: impl Into<String>) -> Failure {
    Failure {
        kind: "invalid-run",
        name: None,
        message: message.into(),
        advice: Advice::Hint("try a machine that is less busy, or smaller numbers".into()),
        exit: Exit::FAILED,
    }
}

/// A prefix that is unique to this run, so that runs do not meet each other or other users of the store.
fn unique_prefix(demo: &str) -> String {
    format!("windlass-demo:{demo}:{:08x}", rand::random::<u32>())
}

//! `windlass demo`: programs with numbers, for whoever wants to see what a lock is for.

mod cleaning;
mod flash_sale;
mod live;
mod marketplace;

use crate::args::{DemoCommand, Global};
use crate::child::Signals;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};
use crate::printer::Printer;

/// Shows what was asked for. A signal ends it at any time, and leaves nothing behind.
pub(super) async fn demo(
    command: DemoCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = match &command {
        // These are ended by whoever has started them.
        DemoCommand::Shop(_) | DemoCommand::Warehouse(_) => None,
        _ => Some(
            Signals::listen()
                .map_err(|e| Failure::internal(format!("cannot listen to signals: {e}")))?,
        ),
    };
    let signals = &mut signals;
    match command {
        DemoCommand::FlashSale(args) => {
            let prepared = match unless_signalled(signals, flash_sale::prepare(&args, global)).await
            {
                Ok(prepared) => prepared?,
                Err(exit) => return Ok(exit),
            };
            let shown = flash_sale::show(&args, &prepared, printer);
            let shown = unless_signalled(signals, shown).await;
            prepared.clean().await;
            shown.unwrap_or_else(Ok)
        }
        DemoCommand::Marketplace(args) => {
            let prepared = marketplace::prepare(&args, global, printer);
            let prepared = match unless_signalled(signals, prepared).await {
                Ok(prepared) => prepared?,
                Err(exit) => return Ok(exit),
            };
            let shown = marketplace::show(&args, &prepared, printer);
            let shown = unless_signalled(signals, shown).await;
            prepared.clean().await;
            shown.unwrap_or_else(Ok)
        }
        DemoCommand::Shop(args) => flash_sale::shop(args, global, printer).await,
        DemoCommand::Warehouse(args) => flash_sale::warehouse(&args, printer).await,
    }
}

/// Does the work unless a signal comes first. Then the work is dropped, and with it all processes and folders of its.
async fn unless_signalled<T>(
    signals: &mut Option<Signals>,
    work: impl Future<Output = T>,
) -> Result<T, Exit> {
    let Some(signals) = signals else {
        return Ok(work.await);
    };
    tokio::select! {
        biased;
        signal = signals.next() => Err(Exit::by_signal(signal)),
        done = work => Ok(done),
    }
}

/// Something was not as a demonstration needs it.
fn spoilt(message: impl Into<String>) -> Failure {
    Failure {
        message: message.into(),
        advice: Advice::Hint("a quieter machine, or smaller numbers, may help".into()),
        exit: Exit::FAILED,
    }
}

/// A name that no other run uses, so that runs do not meet and nothing of anybody's is touched.
fn unique_prefix(demo: &str) -> String {
    format!("windlass-demo:{demo}:{:08x}", rand::random::<u32>())
}

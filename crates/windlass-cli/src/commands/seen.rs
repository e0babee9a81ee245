//! `windlass seen`: exact deduplication.

use serde::Serialize;
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use crate::args::SeenArgs;
use crate::item_input::ItemInput;

#[derive(Serialize)]
struct SeenAnswer<'a> {
    item: &'a str,
    new: bool,
}

pub(super) async fn seen(
    args: SeenArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let seen = store.seen(&args.name).window(args.window);
    let mut input = ItemInput::new(args.items, printer);
    let mut exit = Exit::SUCCESS;
    while let Some(batch) = input.next().await? {
        let answers = seen.first_all(&batch).await?;
        input.clear();
        for (item, new) in batch.iter().zip(answers) {
            let item = String::from_utf8_lossy(item);
            let word = if new { "new" } else { "seen" };
            printer.answer(
                word,
                &SeenAnswer { item: &item, new },
                format_args!("{item}: {word}"),
            );
            if !new {
                exit = Exit::NO;
            }
        }
        // Items that were not checked are not recorded, so a later call can check them.
        if printer.is_unwritten() {
            break;
        }
    }
    Ok(exit)
}

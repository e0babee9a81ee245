//! `windlass seen`: exact de-duplication.

use serde::Serialize;

use crate::args::{Global, SeenArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::feed::Feed;
use crate::printer::Printer;
use crate::store;

#[derive(Serialize)]
struct Answer<'a> {
    item: &'a str,
    new: bool,
}

pub(super) async fn seen(
    args: SeenArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let seen = store.seen(&args.name).window(args.window);
    let mut feed = Feed::new(args.items, printer);
    let mut exit = Exit::SUCCESS;
    while let Some(batch) = feed.next().await? {
        let answers = seen.first_all(&batch).await?;
        feed.clear();
        for (item, new) in batch.iter().zip(answers) {
            let item = String::from_utf8_lossy(item);
            let word = if new { "new" } else { "seen" };
            printer.answer(&Answer { item: &item, new }, format_args!("{item}: {word}"));
            if !new {
                exit = Exit::NO;
            }
        }
        // The rest can still be told apart later: what is asked is also remembered.
        if printer.is_unwritten() {
            break;
        }
    }
    Ok(exit)
}

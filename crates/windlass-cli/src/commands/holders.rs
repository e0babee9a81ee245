//! Prints holders and tables, as text and as JSON.

use serde::Serialize;
use windlass::{Coordinator, Holder, Kind, Occupancy, RwLock};
use windlass_term::{Printer, Tone, printable};

use crate::humanize;

/// Maximum number of holders in text output.
pub(super) const MAX_SHOWN: usize = 20;

/// The JSON form of a holder.
#[derive(Serialize)]
pub(super) struct HolderAnswer<'a> {
    owner: &'a str,
    fence: Option<u64>,
    weight: u32,
    remaining_ms: Option<u64>,
    age_ms: Option<u64>,
    note: Option<&'a str>,
}

impl<'a> From<&'a Holder> for HolderAnswer<'a> {
    fn from(holder: &'a Holder) -> HolderAnswer<'a> {
        HolderAnswer {
            owner: &holder.owner,
            fence: holder.fence.map(|fence| fence.get()),
            weight: holder.weight,
            remaining_ms: holder.remaining.map(humanize::millis),
            age_ms: holder.age.map(humanize::millis),
            note: holder.note.as_deref(),
        }
    }
}

/// The JSON form of several holders.
pub(super) fn holders(holders: &[Holder]) -> Vec<HolderAnswer<'_>> {
    holders.iter().map(HolderAnswer::from).collect()
}

/// Prints the holders of permits.
pub(super) fn print_permits(holders: &[Holder], printer: &Printer) {
    let rows = holders.iter().map(|holder| {
        let [owner, fence, held, left, note] = cells(holder);
        [owner, fence, holder.weight.to_string(), held, left, note]
    });
    let headings = ["OWNER", "FENCE", "WEIGHT", "HELD", "LEFT", "NOTE"];
    print_table(headings, rows.collect(), printer);
}

/// Prints holders.
pub(super) fn print_holders(holders: &[Holder], printer: &Printer) {
    let rows = holders.iter().map(cells).collect();
    print_table(["OWNER", "FENCE", "HELD", "LEFT", "NOTE"], rows, printer);
}

fn cells(holder: &Holder) -> [String; 5] {
    [
        holder.owner.clone(),
        or_dash(holder.fence.map(|fence| fence.to_string())),
        or_dash(holder.age.map(humanize::duration)),
        left(Some(holder)),
        holder.note.clone().unwrap_or_default(),
    ]
}

/// The message below a table that does not show all holders.
pub(super) const MORE: &str = "not all holders are shown; use --json for all";

/// Prints a table with columns as wide as their contents.
pub(super) fn print_table<const N: usize>(
    headings: [&str; N],
    mut rows: Vec<[String; N]>,
    printer: &Printer,
) {
    // Most cells are text of other clients.
    for cell in rows.iter_mut().flatten() {
        *cell = printable(cell).into_owned();
    }
    rows.insert(0, headings.map(str::to_owned));
    let widths: [usize; N] = std::array::from_fn(|column| {
        let width = |row: &[String; N]| row[column].chars().count();
        rows.iter().map(width).max().unwrap_or(0)
    });
    for (index, row) in rows.iter().enumerate() {
        let cells = row.iter().zip(widths);
        let padded: Vec<String> = cells
            .map(|(cell, width)| format!("{cell:<width$}"))
            .collect();
        let line = padded.join("  ").trim_end().to_owned();
        printer.out(match index {
            0 => printer.tint(Tone::Strong, &line),
            _ => line,
        });
    }
}

/// The remaining time.
pub(super) fn left(holder: Option<&Holder>) -> String {
    match holder {
        Some(holder) => holder
            .remaining
            .map_or("forever".to_owned(), humanize::duration),
        None => "-".to_owned(),
    }
}

pub(super) fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// "; 2 waiters", or nothing.
pub(super) fn waiters_suffix(waiters: u64) -> String {
    match waiters {
        0 => String::new(),
        1 => "; 1 waiter".to_owned(),
        waiters => format!("; {waiters} waiters"),
    }
}

/// How much is in use.
pub(super) fn used(seen: &Occupancy) -> String {
    let (used, size) = (seen.used, seen.size);
    match seen.kind {
        Kind::ReadWrite if used >= u64::from(RwLock::MAX_READERS) => "writer".to_owned(),
        Kind::ReadWrite if used == 1 => "1 reader".to_owned(),
        Kind::ReadWrite => format!("{used} readers"),
        Kind::Semaphore | Kind::Barrier => format!("{used}/{size}"),
        Kind::Lock | Kind::Election | Kind::Once => used.to_string(),
    }
}

/// The message for an empty list.
pub(super) fn nothing(store: &Coordinator) -> String {
    format!("nothing is held or waited for in {}", store.address())
}

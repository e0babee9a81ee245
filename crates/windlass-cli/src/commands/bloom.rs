//! `windlass bloom`: approximate deduplication with Bloom filters.

use serde::Serialize;
use windlass::{Bloom, BloomFilter, BloomKey, Coordinator};
use windlass_term::{Advice, Exit, Failure, GlobalArgs, Printer, store};

use super::inventory;
use crate::args::{
    BloomCommand, BloomCreateArgs, BloomInfoArgs, BloomItemsArgs, BloomKeyArgs, BloomNameArgs,
    BloomUnionArgs, InventoryKind,
};
use crate::humanize;
use crate::item_input::ItemInput;

pub(super) async fn bloom(
    command: BloomCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    match command {
        BloomCommand::Ls(args) => {
            inventory::ls(&args, &[InventoryKind::Bloom], global, printer).await
        }
        BloomCommand::Create(args) => create(&args, &store, printer).await,
        BloomCommand::Add(args) => items(args, ItemOperation::Add, &store, printer).await,
        BloomCommand::Check(args) => items(args, ItemOperation::Check, &store, printer).await,
        BloomCommand::Info(args) => info(&args, &store, printer).await,
        BloomCommand::Union(args) => union(&args, &store, printer).await,
        BloomCommand::Rm(args) => remove(&args, &store, printer).await,
    }
}

/// The JSON answer of `create`, `info` and `union`.
#[derive(Serialize)]
struct BloomAnswer<'a> {
    name: &'a str,
    kind: &'static str,
    capacity: u64,
    error_rate: f64,
    bits: u64,
    hashes: u32,
    bytes: u64,
    /// Whether its items are hashed with a key.
    keyed: bool,
    /// `None` if the bits could not be counted.
    estimate: Option<u64>,
    error_rate_now: Option<f64>,
    generations: Option<u64>,
}

async fn describe<'a>(name: &'a str, filter: &BloomFilter) -> Result<BloomAnswer<'a>, Failure> {
    let info = filter.info().await?;
    Ok(BloomAnswer {
        bits: info.bits,
        bytes: info.bytes,
        estimate: Some(info.estimate),
        error_rate_now: Some(info.error_rate),
        generations: Some(info.generations),
        ..planned(name, filter)
    })
}

/// What is known without counting bits.
fn planned<'a>(name: &'a str, filter: &BloomFilter) -> BloomAnswer<'a> {
    let plan = filter.plan();
    let kind = match plan.kind {
        windlass::BloomKind::Growing => "growing",
        windlass::BloomKind::Rotating { .. } => "rotating",
        _ => "fixed",
    };
    BloomAnswer {
        name,
        kind,
        capacity: plan.capacity,
        error_rate: plan.error_rate,
        bits: plan.shape.total_bits(),
        hashes: plan.shape.hashes,
        bytes: plan.shape.bytes(),
        keyed: plan.key_check.is_some(),
        estimate: None,
        error_rate_now: None,
        generations: None,
    }
}

async fn create(
    args: &BloomCreateArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let filter = configured(args, store)?.create().await?;
    let info = match describe(&args.name, &filter).await {
        Ok(info) => info,
        // It is created, and how full it is matters less.
        Err(failure) => {
            printer.warn(format_args!(
                "its bits cannot be counted: {}",
                failure.message
            ));
            planned(&args.name, &filter)
        }
    };
    let (capacity, rate, bytes, hashes) = (info.capacity, info.error_rate, info.bytes, info.hashes);
    let text = format!(
        "{}: capacity {} at an error rate of {rate}, {}, {}",
        args.name,
        humanize::count(capacity, "item"),
        humanize::count(bytes, "byte"),
        humanize::count(hashes, "hash"),
    );
    printer.answer("created", &info, text);
    Ok(Exit::SUCCESS)
}

/// The filter of this name, with the key of these options.
fn named(name: &str, key: &BloomKeyArgs, store: &Coordinator) -> Result<Bloom, Failure> {
    let bloom = store.bloom(name);
    let Some(path) = &key.key_file else {
        return Ok(bloom);
    };
    let secret = std::fs::read(path).map_err(|error| {
        Failure::usage(
            format!("the key file {} cannot be read: {error}", path.display()),
            Advice::Hint("--key-file names a file that holds the key".to_owned()),
        )
    })?;
    Ok(bloom.keyed(BloomKey::new(&secret)?))
}

fn configured(args: &BloomCreateArgs, store: &Coordinator) -> Result<Bloom, Failure> {
    let mut bloom = named(&args.name, &args.key, store)?;
    if args.growing {
        bloom = bloom.growing();
    }
    if let Some(window) = args.rotate {
        bloom = bloom.rotating(window).slices(args.slices);
    }
    Ok(match (args.bits, args.hashes) {
        (Some(bits), Some(hashes)) => bloom.sized(bits, hashes),
        _ => bloom
            .capacity(args.capacity.unwrap_or_default())
            .error_rate(args.error_rate),
    })
}

#[derive(Clone, Copy, PartialEq)]
enum ItemOperation {
    Add,
    Check,
}

#[derive(Serialize)]
struct BloomItemAnswer<'a> {
    item: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    new: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    seen: Option<bool>,
}

async fn items(
    args: BloomItemsArgs,
    operation: ItemOperation,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let filter = named(&args.name, &args.key, store)?.open().await?;
    let mut input = ItemInput::new(args.items, printer);
    let mut exit = Exit::SUCCESS;
    while let Some(batch) = input.next().await? {
        let answers = match operation {
            ItemOperation::Add => filter.insert_all(&batch).await?,
            ItemOperation::Check => filter.contains_all(&batch).await?,
        };
        input.clear();
        for (item, yes) in batch.iter().zip(answers) {
            let item = String::from_utf8_lossy(item);
            let answer = BloomItemAnswer {
                item: &item,
                new: (operation == ItemOperation::Add).then_some(yes),
                seen: (operation == ItemOperation::Check).then_some(yes),
            };
            let (outcome, word) = match (operation, yes) {
                (ItemOperation::Add, true) => ("new", "new"),
                (ItemOperation::Check, false) => ("not-seen", "not seen"),
                _ => ("seen", "seen"),
            };
            printer.answer(outcome, &answer, format_args!("{item}: {word}"));
            if !yes {
                exit = Exit::NO;
            }
        }
        if printer.is_unwritten() {
            break;
        }
    }
    Ok(exit)
}

async fn info(
    args: &BloomInfoArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let filter = named(&args.name, &args.key, store)?.open().await?;
    let info = describe(&args.name, &filter).await?;
    let text = format!(
        "{}: about {} of {}, {} bits in {}, {}, error rate now {:.2e} (configured: {})",
        args.name,
        info.estimate.unwrap_or_default(),
        humanize::count(info.capacity, "item"),
        info.bits,
        humanize::count(info.bytes, "byte"),
        humanize::count(info.hashes, "hash"),
        info.error_rate_now.unwrap_or_default(),
        info.error_rate
    );
    printer.answer("found", &info, text);
    Ok(Exit::SUCCESS)
}

async fn union(
    args: &BloomUnionArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let filter = named(&args.name, &args.key, store)?.open().await?;
    let other = named(&args.other, &args.key, store)?.open().await?;
    filter.union(&other).await?;
    let info = describe(&args.name, &filter).await?;
    let text = format!(
        "{}: added the items of {}, now about {}",
        args.name,
        args.other,
        humanize::count(info.estimate.unwrap_or_default(), "item")
    );
    printer.answer("merged", &info, text);
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct BloomRemovedAnswer<'a> {
    name: &'a str,
    removed: bool,
}

async fn remove(
    args: &BloomNameArgs,
    store: &Coordinator,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let name = args.name.as_str();
    let removed = store.bloom(name).remove().await?;
    let (outcome, text) = match removed {
        true => ("removed", format!("{name}: removed")),
        false => ("not-found", format!("{name}: no such filter")),
    };
    printer.answer(outcome, &BloomRemovedAnswer { name, removed }, text);
    Ok(if removed { Exit::SUCCESS } else { Exit::NO })
}

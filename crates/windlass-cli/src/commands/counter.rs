//! `windlass counter`: shared counters.

use serde::Serialize;
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use super::inventory;
use crate::args::{
    CounterAddArgs, CounterCommand, CounterGetArgs, CounterResetArgs, InventoryKind,
};

pub(super) async fn counter(
    command: CounterCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        CounterCommand::Ls(args) => {
            inventory::ls(&args, &[InventoryKind::Counter], global, printer).await
        }
        CounterCommand::Add(args) => add(&args, global, printer).await,
        CounterCommand::Get(args) => get(&args, global, printer).await,
        CounterCommand::Reset(args) => reset(&args, global, printer).await,
    }
}

#[derive(Serialize)]
struct CounterAnswer<'a> {
    name: &'a str,
    value: i64,
}

async fn add(
    args: &CounterAddArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut counter = store.counter(&args.name);
    if let Some(max) = args.max {
        counter = counter.max(max);
    }
    if let Some(min) = args.min {
        counter = counter.min(min);
    }
    if let Some(expire) = args.expire {
        counter = counter.expire(expire);
    }
    if let Some(window) = args.window {
        counter = counter.window(window);
    }
    let counted = match &args.once {
        Some(operation) => counter.add_once(operation, args.amount).await?,
        None => counter.add(args.amount).await?,
    };
    let (name, value) = (&args.name, counted.value);
    let (outcome, text) = if counted.repeated {
        let text = format!("{name} was {value} when this ID was first added");
        ("repeated", text)
    } else if counted.added {
        ("added", format!("{name} is {value}"))
    } else {
        let text = format!(
            "{name} stays {value}: adding {} would exceed its bounds",
            args.amount
        );
        ("refused", text)
    };
    printer.answer(outcome, &CounterAnswer { name, value }, text);
    Ok(if counted.added {
        Exit::SUCCESS
    } else {
        Exit::NO
    })
}

async fn get(
    args: &CounterGetArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let mut counter = store.counter(&args.name);
    if let Some(window) = args.window {
        counter = counter.window(window);
    }
    let (name, value) = (&args.name, counter.get().await?);
    printer.answer(
        "found",
        &CounterAnswer { name, value },
        format_args!("{name} is {value}"),
    );
    Ok(Exit::SUCCESS)
}

async fn reset(
    args: &CounterResetArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let (name, value) = (&args.name, store.counter(&args.name).reset().await?);
    printer.answer(
        "reset",
        &CounterAnswer { name, value },
        format_args!("{name} was {value}"),
    );
    Ok(Exit::SUCCESS)
}

//! `windlass topic`: publish/subscribe messaging.

use serde::Serialize;
use windlass::Event;
use windlass_term::{Exit, Failure, GlobalArgs, Printer, store};

use super::inventory;
use crate::args::{InventoryKind, TopicCommand, TopicPublishArgs, TopicSubscribeArgs};
use crate::item_input::ItemInput;

pub(super) async fn topic(
    command: TopicCommand,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        TopicCommand::Ls(args) => {
            inventory::ls(&args, &[InventoryKind::Topic], global, printer).await
        }
        TopicCommand::Publish(args) => publish(args, global, printer).await,
        TopicCommand::Subscribe(args) => subscribe(&args, global, printer).await,
    }
}

async fn publish(
    args: TopicPublishArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let topic = store.topic::<()>(&args.name);
    let mut input = ItemInput::new(vec![args.message], printer);
    while let Some(batch) = input.next().await? {
        for message in batch {
            topic.publish_bytes(&message).await?;
        }
    }
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct MessageAnswer<'a> {
    name: &'a str,
    message: &'a str,
}

#[derive(Serialize)]
struct GapAnswer<'a> {
    name: &'a str,
    gap: bool,
    missed: Option<u64>,
}

async fn subscribe(
    args: &TopicSubscribeArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let name = args.name.as_str();
    let mut subscription = store.topic::<()>(name).subscribe_bytes().await?;
    printer.note(format_args!("subscribed to {name}"));
    let mut received = 0;
    while args.count.is_none_or(|count| received < count) {
        match subscription.next().await? {
            Event::Message(bytes) => {
                let message = String::from_utf8_lossy(&bytes);
                let answer = MessageAnswer {
                    name,
                    message: &message,
                };
                printer.payload("message", &answer, &message);
                if printer.is_unwritten() {
                    break;
                }
                received += 1;
            }
            Event::Gap { missed } => {
                if printer.is_json() {
                    let gap = true;
                    printer.answer("gap", &GapAnswer { name, gap, missed }, "");
                } else {
                    printer.warn(match missed {
                        Some(1) => "1 message was dropped: it arrived faster than messages are printed".to_owned(),
                        Some(missed) => format!("{missed} messages were dropped: they arrived faster than they were printed"),
                        None => "the connection was interrupted: messages may be missing".to_owned(),
                    });
                }
            }
            _ => {}
        }
    }
    Ok(Exit::SUCCESS)
}

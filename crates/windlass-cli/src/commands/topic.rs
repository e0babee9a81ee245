//! `windlass topic`: what is published reaches whoever listens.

use serde::Serialize;
use windlass::Event;

use crate::args::{Global, TopicCommand, TopicPublishArgs, TopicSubscribeArgs};
use crate::exit::Exit;
use crate::failure::Failure;
use crate::feed::Feed;
use crate::printer::Printer;
use crate::store;

pub(super) async fn topic(
    command: TopicCommand,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    match command {
        TopicCommand::Publish(args) => publish(args, global, printer).await,
        TopicCommand::Subscribe(args) => subscribe(&args, global, printer).await,
    }
}

async fn publish(
    args: TopicPublishArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let topic = store.topic::<()>(&args.name);
    let mut feed = Feed::new(vec![args.message], printer);
    while let Some(batch) = feed.next().await? {
        for message in batch {
            topic.publish_bytes(&message).await?;
        }
    }
    Ok(Exit::SUCCESS)
}

#[derive(Serialize)]
struct Message<'a> {
    name: &'a str,
    message: &'a str,
}

#[derive(Serialize)]
struct Gap<'a> {
    name: &'a str,
    gap: bool,
    missed: Option<u64>,
}

async fn subscribe(
    args: &TopicSubscribeArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let store = store::open(global).await?;
    let name = args.name.as_str();
    let mut subscription = store.topic::<()>(name).subscribe_bytes().await?;
    printer.note(format_args!("listening to {name}"));
    let mut heard = 0;
    while args.count.is_none_or(|count| heard < count) {
        match subscription.next().await? {
            Event::Message(bytes) => {
                let message = String::from_utf8_lossy(&bytes);
                let answer = Message {
                    name,
                    message: &message,
                };
                printer.answer(&answer, &message);
                if printer.is_unwritten() {
                    break;
                }
                heard += 1;
            }
            Event::Gap { missed } => {
                if printer.is_json() {
                    let gap = true;
                    printer.answer(&Gap { name, gap, missed }, "");
                } else {
                    printer.warn(match missed {
                        Some(missed) => format!("{missed} messages came too fast, and are missing"),
                        None => "the connection was lost: messages may be missing".to_owned(),
                    });
                }
            }
            _ => {}
        }
    }
    Ok(Exit::SUCCESS)
}

//! `windlass topic …`

use clap::{Args, Subcommand};

use super::LsArgs;

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Publish a message to the current subscribers
    Publish(TopicPublishArgs),
    /// Print messages as they arrive
    Subscribe(TopicSubscribeArgs),
    /// Explain why topics cannot be listed
    Ls(LsArgs),
}

#[derive(Args, Debug)]
pub(crate) struct TopicPublishArgs {
    /// Name of the topic
    pub(crate) name: String,

    /// Message; - publishes each line of stdin
    pub(crate) message: String,
}

#[derive(Args, Debug)]
pub(crate) struct TopicSubscribeArgs {
    /// Name of the topic
    pub(crate) name: String,

    /// Exit after N messages [default: run until a signal]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

//! `windlass topic …`

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub(crate) enum TopicCommand {
    /// Publish a message to whoever is subscribed now
    Publish(TopicPublishArgs),
    /// Print messages as they come
    Subscribe(TopicSubscribeArgs),
}

#[derive(Args, Debug)]
pub(crate) struct TopicPublishArgs {
    /// The topic's name
    pub(crate) name: String,

    /// The message, as it is; - publishes each line of stdin
    pub(crate) message: String,
}

#[derive(Args, Debug)]
pub(crate) struct TopicSubscribeArgs {
    /// The topic's name
    pub(crate) name: String,

    /// End after so many messages [default: go on until a signal comes]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) count: Option<u64>,
}

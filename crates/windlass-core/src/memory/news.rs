//! News in memory: those who listen are called.

use std::future::ready;
use std::sync::{Arc, Weak};

use super::World;
use crate::store::{Channel, Hears, Listening, NewsStore, Pending};

impl World {
    pub fn announce(&self, channel: &Channel, news: &[u8]) {
        self.listeners.heard(&key(channel), news);
    }
}

impl NewsStore for World {
    fn listen(&self, channel: Channel, ear: Weak<dyn Hears>) -> Pending<'_, Listening> {
        let key = key(&channel);
        let (number, _first) = self.listeners.add(&key, ear);
        let listeners = Arc::clone(&self.listeners);
        let listening = Listening::new(move || {
            listeners.remove(&key, number);
        });
        Box::pin(ready(Ok(listening)))
    }
}

fn key(channel: &Channel) -> String {
    format!("{} {}", channel.kind, channel.name)
}

//! News over a quorum: heard from every node, and so more than once.

use std::sync::{Arc, Weak};

use super::Quorum;
use super::node::Node;
use windlass_core::store::{Channel, Hears, Listening, NewsStore, Pending};

impl NewsStore for Quorum {
    fn listen(&self, channel: Channel, ear: Weak<dyn Hears>) -> Pending<'_, Listening> {
        Box::pin(async move {
            let question = |node: &Arc<Node>| -> Pending<'static, Listening> {
                let store = node.voter.store().news();
                let (channel, ear) = (channel.clone(), Weak::clone(&ear));
                Box::pin(async move { store.listen(channel, ear).await })
            };
            let all = self.shared.ask_all(question).await?;
            Ok(Listening::new(move || drop(all)))
        })
    }
}

//! News over a quorum: heard from every node, and so more than once.

use std::sync::{Arc, Weak};

use super::node::Node;
use super::{Quorum, Shared};
use crate::backend::{Channel, Hears, Listening, NewsStore, Pending};
use crate::error::Result;

impl NewsStore for Quorum {
    fn listen(&self, channel: Channel, ear: Weak<dyn Hears>) -> Pending<'_, Listening> {
        Box::pin(self.shared.listen(channel, ear))
    }
}

impl Shared {
    pub(super) async fn listen(
        self: &Arc<Shared>,
        channel: Channel,
        ear: Weak<dyn Hears>,
    ) -> Result<Listening> {
        let question = |node: &Arc<Node>| -> Pending<'static, Listening> {
            let store = node.voter.store().news();
            let (channel, ear) = (channel.clone(), Weak::clone(&ear));
            Box::pin(async move { store.listen(channel, ear).await })
        };
        let all = self.ask_all(question).await?;
        Ok(Listening::new(move || drop(all)))
    }
}

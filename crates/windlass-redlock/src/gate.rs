//! Gates over a quorum: what a majority has admitted, no majority admits anything lower after.

use std::sync::Arc;
use std::time::Duration;

use super::node::Node;
use super::{Quorum, Shared};
use windlass_core::Fence;
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::store::{Admission, GateStore, Pending};

impl GateStore for Quorum {
    fn admit(&self, name: Name, fence: Fence, remember: Duration) -> Pending<'_, Admission> {
        Box::pin(self.shared.admit(name, fence, remember))
    }
}

impl Shared {
    async fn admit(
        self: &Arc<Shared>,
        name: Name,
        fence: Fence,
        remember: Duration,
    ) -> Result<Admission> {
        let question = |node: &Arc<Node>| -> Pending<'static, Admission> {
            let (node, shared, name) = (Arc::clone(node), Arc::clone(self), name.clone());
            Box::pin(async move {
                let connection = node.clear(&shared).await?;
                node.remembers(remember, &shared)?;
                let gates = node.voter.store().gates();
                let answer = gates.admit(name, fence, remember).await?;
                node.same(connection, answer)
            })
        };
        let answers = self.ask_all(question).await?;
        let stale = answers.into_iter().filter_map(|answer| match answer {
            Admission::Stale { highest } => Some(highest),
            Admission::Admitted => None,
        });
        Ok(match stale.max() {
            Some(highest) => Admission::Stale { highest },
            None => Admission::Admitted,
        })
    }
}

impl Node {
    /// Whether it cannot have forgotten what it admitted within that time.
    fn remembers(&self, time: Duration, shared: &Shared) -> Result<()> {
        let Some((durable, up)) = self.memory(shared.clock.now()) else {
            return Ok(());
        };
        if durable || up > time {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Unreachable,
            "admit",
            format!(
                "it was started {} s ago without durable storage, and may have forgotten what it \
                 admitted within the {} s that the gate remembers",
                up.as_secs(),
                time.as_secs()
            ),
        )
        .with_hint("run the nodes with appendonly yes and appendfsync always, or let the gate remember less"))
    }
}

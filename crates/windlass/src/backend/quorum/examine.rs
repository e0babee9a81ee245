//! What an operator should know about the nodes of a quorum.

use std::sync::Arc;

use super::node::Node;
use super::{Failures, Round, Shared, Standing};
use crate::backend::Severity::{Fine, Problem, Warning};
use crate::backend::{Finding, Pending};
use crate::error::Result;

impl Shared {
    pub(super) async fn examine(self: &Arc<Shared>) -> Result<Vec<Finding>> {
        let question = |node: &Arc<Node>| -> Pending<'static, (Vec<Finding>, Standing, bool)> {
            let (node, shared) = (Arc::clone(node), Arc::clone(self));
            Box::pin(async move {
                let findings = node.voter.store().examine().await?;
                let standing = node.voter.standing().await?;
                let votes = node.clear(&shared).await.is_ok();
                Ok((findings, standing, votes))
            })
        };
        let mut round = Round::new(self.nodes.iter().map(question));
        let mut answers: Vec<_> = self.nodes.iter().map(|_| None).collect();
        let mut failures = Failures::default();
        let heard = round.hear(|node, answer| {
            match answer {
                Ok(answer) => answers[node] = Some(answer),
                Err(e) => failures.add(node, e),
            }
            std::ops::ControlFlow::<()>::Continue(())
        });
        self.clock.within(2 * self.node_timeout, heard).await;
        failures.silent(round.silent());
        let voters = answers.iter().flatten().filter(|(_, _, votes)| *votes);
        let mut findings = vec![self.quorum(voters.count())];
        for (node, error) in failures.each(self) {
            let message = format!("{node}: {error}; one vote less");
            // Whether that is a problem is said above.
            findings.push(Finding::new(Warning, "node", message));
        }
        for (node, answer) in self.nodes.iter().zip(answers) {
            let Some((own, standing, votes)) = answer else {
                continue;
            };
            let of = |finding: Finding| {
                let message = format!("{}: {}", node.name, finding.message);
                Finding::new(finding.severity, finding.topic, message)
            };
            // What lost memory means here is said below.
            let own = own.into_iter().filter(|f| f.topic != "persistence");
            findings.extend(own.map(of));
            findings.push(of(memory(&standing, votes, self.max_ttl.as_secs())));
        }
        Ok(findings)
    }

    fn quorum(&self, voters: usize) -> Finding {
        let nodes = self.nodes.len();
        let spare = voters.saturating_sub(self.majority);
        let severity = match voters {
            n if n < self.majority => Problem,
            n if n < nodes => Warning,
            _ => Fine,
        };
        let meaning = match voters < self.majority {
            true => "no lock can be acquired".to_owned(),
            false => format!("{spare} more may fail"),
        };
        let message = format!(
            "{voters} of {nodes} nodes have a vote, and {} must agree: {meaning}; no claim may live \
             longer than {} s",
            self.majority,
            self.max_ttl.as_secs()
        );
        Finding::new(severity, "quorum", message)
    }
}

fn memory(standing: &Standing, votes: bool, max_ttl: u64) -> Finding {
    let up = standing.up.as_secs();
    match (standing.durable, votes) {
        (true, _) => Finding::new(
            Fine,
            "persistence",
            format!(
                "every write reaches the disk: it may vote at once after a restart (up {up} s)"
            ),
        ),
        (false, true) => Finding::new(
            Warning,
            "persistence",
            format!(
                "no append-only file with appendfsync always: after a restart it has no vote for \
                 {max_ttl} s (up {up} s)"
            ),
        ),
        (false, false) => Finding::new(
            Warning,
            "quarantine",
            format!(
                "started {up} s ago without durable storage: it may have forgotten what it granted, and \
                 has no vote until {max_ttl} s have passed"
            ),
        ),
    }
}

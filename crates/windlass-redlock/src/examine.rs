//! What an operator should know about the nodes of a quorum.

use std::sync::Arc;
use std::time::Duration;

use super::node::Node;
use super::{Failures, Round, Shared, Standing};
use windlass_core::clock_skew::{OurClock, Reading, Spread};
use windlass_core::error::Result;
use windlass_core::store::Severity::{Fine, Problem, Warning};
use windlass_core::store::{Finding, Pending};

/// What a node has said of itself.
struct Answer {
    findings: Vec<Finding>,
    standing: Standing,
    votes: bool,
    clock: Reading,
}

impl Shared {
    pub(super) async fn examine(self: &Arc<Shared>) -> Result<Vec<Finding>> {
        let ours = OurClock::new();
        let question = |node: &Arc<Node>| -> Pending<'static, Answer> {
            let (node, shared) = (Arc::clone(node), Arc::clone(self));
            Box::pin(async move {
                let findings = node.voter.store().examine().await?;
                let standing = node.voter.standing().await?;
                let votes = node.clear(&shared).await.is_ok();
                let asked = ours.now();
                let told = node.voter.time().await?;
                let between = (asked, ours.now());
                Ok(Answer {
                    findings,
                    standing,
                    votes,
                    clock: Reading::new(&node.name, told, Duration::from_micros(1), between),
                })
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
        let voters = answers.iter().flatten().filter(|answer| answer.votes);
        let mut findings = vec![self.quorum(voters.count())];
        let clocks = answers.iter().flatten();
        let clocks: Vec<Reading> = clocks.map(|answer| answer.clock.clone()).collect();
        findings.extend(skew(&clocks));
        for (node, error) in failures.each(self) {
            let message = format!("{node}: {error}; one vote less");
            // Whether that is a problem is said above.
            findings.push(Finding::new(Warning, "node", message));
        }
        for (node, answer) in self.nodes.iter().zip(answers) {
            let Some(answer) = answer else {
                continue;
            };
            let of = |finding: Finding| {
                let message = format!("{}: {}", node.name, finding.message);
                Finding::new(finding.severity, finding.topic, message)
            };
            // What lost memory means here is said below.
            let own = answer
                .findings
                .into_iter()
                .filter(|f| f.topic != "persistence");
            findings.extend(own.map(of));
            findings.push(of(memory(
                &answer.standing,
                answer.votes,
                self.max_ttl.as_secs(),
            )));
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

/// How far the clocks of nodes are apart.
fn skew(clocks: &[Reading]) -> Option<Finding> {
    let spread = Spread::of(clocks)?;
    let (count, possible) = (clocks.len(), spread.possible);
    let Spread {
        ahead,
        behind,
        certain,
        ..
    } = spread;
    Some(match spread.matters() {
        true => Finding::new(
            Warning,
            "clock skew",
            format!(
                "{ahead} is at least {certain} ms ahead of {behind}: claims live for so long, not until then, so \
                 that alone ends none; but whoever sets one of these clocks right makes what that node has \
                 granted longer or shorter by it; fences need no clock"
            ),
        ),
        false => Finding::new(
            Fine,
            "clock skew",
            format!(
                "{count} nodes are at most {possible} ms apart: none of their clocks need be set, which could end \
                 claims too early"
            ),
        ),
    })
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

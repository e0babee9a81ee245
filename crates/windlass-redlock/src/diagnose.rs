//! What an operator should know about the nodes of a quorum.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use super::calls::NodeCalls;
use super::errors::NodeFailures;
use super::nodes::{QuorumNode, QuorumNodes};
use windlass_core::clock_skew::{LocalClock, Reading, Spread};
use windlass_core::error::Result;
use windlass_core::store::Severity::{Fine, Problem, Warning};
use windlass_core::store::{Finding, Pending};
use windlass_redis::NodeStatus;

/// What one node reports.
struct NodeReport {
    findings: Vec<Finding>,
    status: NodeStatus,
    has_vote: bool,
    clock: Reading,
}

pub(super) async fn diagnose(nodes: &Arc<QuorumNodes>) -> Result<Vec<Finding>> {
    let our_clock = LocalClock::new();
    let call = |node: &Arc<QuorumNode>| -> Pending<'static, NodeReport> {
        let (node, nodes) = (Arc::clone(node), Arc::clone(nodes));
        Box::pin(async move {
            let findings = node.client.store().diagnose().await?;
            let status = node.client.status().await?;
            let has_vote = node.verify(&nodes).await.is_ok();
            let sent = our_clock.now();
            let time = node.client.time().await?;
            let between = (sent, our_clock.now());
            Ok(NodeReport {
                findings,
                status,
                has_vote,
                clock: Reading::new(&node.name, time, Duration::from_micros(1), between),
            })
        })
    };
    let mut calls = NodeCalls::new(nodes.iter().map(call));
    let mut reports: Vec<_> = nodes.iter().map(|_| None).collect();
    let mut failures = NodeFailures::default();
    let all = calls.receive(|node, reply| {
        match reply {
            Ok(report) => reports[node] = Some(report),
            Err(e) => failures.add(node, e),
        }
        ControlFlow::<()>::Continue(())
    });
    nodes.clock.within(2 * nodes.node_timeout, all).await;
    failures.add_unanswered(calls.unanswered());
    let votes = reports.iter().flatten().filter(|report| report.has_vote);
    let mut findings = vec![quorum(nodes, votes.count())];
    let clocks = reports.iter().flatten();
    let clocks: Vec<Reading> = clocks.map(|report| report.clock.clone()).collect();
    findings.extend(skew(&clocks));
    for (node, reason) in failures.reasons(nodes) {
        let message = format!("{node}: {reason}; one vote less");
        // Whether that is a problem is in the finding about the quorum.
        findings.push(Finding::new(Warning, "node", message));
    }
    for (node, report) in nodes.iter().zip(reports) {
        let Some(report) = report else {
            continue;
        };
        let of_node = |finding: Finding| {
            let message = format!("{}: {}", node.name, finding.message);
            Finding::new(finding.severity, finding.topic, message)
        };
        // In a quorum, lost data means something else than on a single server.
        let own = report.findings.into_iter();
        let own = own.filter(|finding| finding.topic != "persistence");
        findings.extend(own.map(of_node));
        let max_ttl = nodes.max_ttl.as_secs();
        let persistence = persistence(&report.status, report.has_vote, max_ttl);
        findings.push(of_node(persistence));
    }
    Ok(findings)
}

fn quorum(nodes: &QuorumNodes, votes: usize) -> Finding {
    let majority = nodes.majority;
    let severity = match votes {
        n if n < majority => Problem,
        n if n < nodes.len() => Warning,
        _ => Fine,
    };
    let meaning = match votes < majority {
        true => "no lock can be acquired".to_owned(),
        false => format!("{} more may fail", votes - majority),
    };
    let message = format!(
        "{votes} of {} nodes have a vote, and {majority} must agree: {meaning}; the longest ttl is {} s",
        nodes.len(),
        nodes.max_ttl.as_secs()
    );
    Finding::new(severity, "quorum", message)
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
                "{ahead} is at least {certain} ms ahead of {behind}: a ttl is a duration, so this ends no claim; \
                 but setting one of these clocks lengthens or shortens the claims on that node by as much; \
                 fencing tokens need no clock"
            ),
        ),
        false => Finding::new(
            Fine,
            "clock skew",
            format!(
                "{count} nodes are at most {possible} ms apart: no clock needs to be set, which could end claims \
                 too early"
            ),
        ),
    })
}

fn persistence(status: &NodeStatus, has_vote: bool, max_ttl: u64) -> Finding {
    let uptime = status.up.as_secs();
    match (status.durable, has_vote) {
        (true, _) => Finding::new(
            Fine,
            "persistence",
            format!(
                "every write reaches the disk: it may vote at once after a restart (up {uptime} s)"
            ),
        ),
        (false, true) => Finding::new(
            Warning,
            "persistence",
            format!(
                "no append-only file with appendfsync always: after a restart it has no vote for {max_ttl} s \
                 (up {uptime} s)"
            ),
        ),
        (false, false) => Finding::new(
            Warning,
            "quarantine",
            format!(
                "started {uptime} s ago without durable storage: it may have lost what it granted, and has no vote \
                 until it has been up for {max_ttl} s"
            ),
        ),
    }
}

//! One error for an operation that too few nodes completed: it names each node, the reason, and
//! what to do.

use std::time::Duration;

use super::nodes::QuorumNodes;
use windlass_core::error::{Error, ErrorKind};

/// The hint of a node in quarantine.
pub(super) const MAKE_DURABLE: &str = "make the nodes durable (appendonly yes, appendfsync always, \
                                       no-appendfsync-on-rewrite no): they then vote at once after later \
                                       restarts, though not after this one";

/// The nodes whose replies do not count, and why.
#[derive(Debug, Default)]
pub(super) struct NodeFailures(Vec<(usize, Error)>);

impl NodeFailures {
    pub(super) fn add(&mut self, node: usize, error: Error) {
        self.0.push((node, error));
    }

    /// Adds nodes that did not reply in time.
    pub(super) fn add_unanswered(&mut self, nodes: impl Iterator<Item = usize>) {
        for node in nodes {
            let error = Error::new(ErrorKind::OutcomeUnknown, "call", "no answer in time");
            self.add(node, error);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// The name and the reason of each.
    pub(super) fn reasons<'a>(
        &'a self,
        nodes: &'a QuorumNodes,
    ) -> impl Iterator<Item = (&'a str, String)> {
        let reason = |(node, error): &'a (usize, Error)| (&*nodes.node(*node).name, error.reason());
        self.0.iter().map(reason)
    }

    /// The first node with this hint, and its reason.
    pub(super) fn find_hint(&self, hint: &str) -> Option<(usize, String)> {
        let mut each = self.0.iter();
        let (node, error) = each.find(|(_, error)| error.hint() == Some(hint))?;
        Some((*node, error.reason()))
    }

    /// Whether one of them may have done what was requested.
    fn any_may_have_happened(&self) -> bool {
        self.0.iter().any(|(_, error)| error.may_have_happened())
    }

    /// The error when all nodes were called and `done` of them did what was requested.
    pub(super) fn error(&self, nodes: &QuorumNodes, done: usize) -> Error {
        self.error_of(nodes, nodes.len(), done)
    }

    /// The error when only `called` nodes were called.
    pub(super) fn error_of(&self, nodes: &QuorumNodes, called: usize, done: usize) -> Error {
        let reasons = self.reasons(nodes);
        let reasons = reasons.map(|(node, reason)| format!("{node}: {reason}"));
        let answered = called - self.0.len();
        let message = format!(
            "{answered} of {called} nodes answered, and {} must agree; {}",
            nodes.majority,
            reasons.collect::<Vec<_>>().join("; ")
        );
        Error::new(self.kind(nodes.majority), "call", message)
            .with_part_done(done > 0 || self.any_may_have_happened())
            .with_hint(self.hint(nodes))
    }

    /// The kind that a majority reports, if it is the same one; otherwise unreachable.
    fn kind(&self, majority: usize) -> ErrorKind {
        let final_kinds = [
            ErrorKind::AccessDenied,
            ErrorKind::WrongType,
            ErrorKind::Unsupported,
        ];
        let reported = |kind: &ErrorKind| {
            let same = self.0.iter().filter(|(_, e)| e.kind() == *kind);
            same.count() >= majority
        };
        let kind = final_kinds.into_iter().find(reported);
        kind.unwrap_or(ErrorKind::Unreachable)
    }

    /// One hint that fits the reasons of all nodes.
    fn hint(&self, nodes: &QuorumNodes) -> String {
        let now = nodes.clock.now();
        let mut quarantines = Vec::new();
        let mut unreachable = Vec::new();
        let mut others: Vec<&str> = Vec::new();
        for (node, error) in &self.0 {
            let node = nodes.node(*node);
            match (error.kind(), error.hint()) {
                (_, Some(MAKE_DURABLE)) => {
                    let remaining = node.quarantine.remaining(now, nodes.max_ttl);
                    quarantines.push(remaining.unwrap_or_default());
                }
                // The hint of a single server that is unreachable is given once for all of them.
                (ErrorKind::Unreachable, hint)
                    if error.operation() == "connect" || hint.is_none() =>
                {
                    unreachable.push(&*node.name);
                }
                (ErrorKind::OutcomeUnknown, None) => unreachable.push(&*node.name),
                (_, Some(hint)) if !others.contains(&hint) => others.push(hint),
                _ => {}
            }
        }
        let answered = nodes.len() - self.0.len();
        let missing = nodes.majority.saturating_sub(answered).max(1);
        let mut parts = Vec::new();
        if !unreachable.is_empty() {
            parts.push(check_reachable(&unreachable, nodes.len()));
        }
        parts.extend(others.into_iter().map(str::to_owned));
        if !quarantines.is_empty() {
            parts.push(wait_for_quarantines(quarantines, missing));
        }
        match parts.is_empty() {
            true => "see the reason of each node".to_owned(),
            false => parts.join("; ").replace("?; ", "? "),
        }
    }
}

fn check_reachable(nodes: &[&str], of: usize) -> String {
    match nodes {
        [one] => format!("is {one} running, and can it be reached from here?"),
        all if all.len() == of => {
            "are the nodes running, and can they be reached from here?".into()
        }
        some => format!(
            "are {} running, and can they be reached from here?",
            some.join(" and ")
        ),
    }
}

/// How long until as many quarantines end as votes are `missing`, or all of them if they are fewer.
fn wait_for_quarantines(mut remaining: Vec<Duration>, missing: usize) -> String {
    remaining.sort_unstable();
    let enough = remaining[missing.min(remaining.len()) - 1];
    // Rounded up: an earlier attempt would fail again.
    let seconds = enough.as_millis().div_ceil(1000);
    format!("wait {seconds} s; or {MAKE_DURABLE}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_waits_for_as_many_quarantines_as_votes_are_missing() {
        let wait = |ms: &[u64], missing| {
            let remaining = ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
            wait_for_quarantines(remaining, missing)
        };
        assert!(wait(&[900, 44_001, 7000], 1).starts_with("wait 1 s; or "));
        assert!(wait(&[900, 44_001, 7000], 2).starts_with("wait 7 s; or "));
        assert!(wait(&[900, 44_001, 7000], 3).starts_with("wait 45 s; or "));
        assert!(wait(&[900], 2).starts_with("wait 1 s; or "));
    }

    #[test]
    fn the_hint_names_unreachable_nodes() {
        assert_eq!(
            check_reachable(&["a:1"], 3),
            "is a:1 running, and can it be reached from here?"
        );
        assert!(check_reachable(&["a:1", "b:2"], 3).starts_with("are a:1 and b:2 running"));
        let all = check_reachable(&["a:1", "b:2", "c:3"], 3);
        assert!(all.starts_with("are the nodes running"));
    }
}

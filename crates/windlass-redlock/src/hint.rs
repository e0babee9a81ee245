//! What to do when too few nodes vote: it depends on why each of them does not.

use std::time::Duration;

use super::Shared;
use windlass_core::error::{Error, ErrorKind};

/// The hint of a node that may have forgotten what it granted.
pub(super) const KEEP: &str = "let the nodes keep what they grant (appendonly yes, appendfsync always, \
                               no-appendfsync-on-rewrite no): then they vote at once after every \
                               later start, but not after this one";

/// One hint for all the nodes whose answers do not count.
pub(super) fn hint(failures: &[(usize, Error)], shared: &Shared) -> String {
    let now = shared.clock.now();
    let mut waits = Vec::new();
    let mut out_of_reach = Vec::new();
    let mut others: Vec<&str> = Vec::new();
    for (node, error) in failures {
        let node = &shared.nodes[*node];
        match (error.kind(), error.hint()) {
            (_, Some(KEEP)) => waits.push(node.barred_for(now, shared).unwrap_or_default()),
            // The hint of one server that cannot be reached, told for all of them.
            (ErrorKind::Unreachable, hint) if error.operation() == "connect" || hint.is_none() => {
                out_of_reach.push(&*node.name);
            }
            (ErrorKind::OutcomeUnknown, None) => out_of_reach.push(&*node.name),
            (_, Some(hint)) if !others.contains(&hint) => others.push(hint),
            _ => {}
        }
    }
    let answered = shared.nodes.len() - failures.len();
    let missing = shared.majority.saturating_sub(answered).max(1);
    let mut parts = Vec::new();
    if !out_of_reach.is_empty() {
        parts.push(reach(&out_of_reach, shared.nodes.len()));
    }
    parts.extend(others.into_iter().map(str::to_owned));
    if !waits.is_empty() {
        parts.push(patience(waits, missing));
    }
    match parts.is_empty() {
        true => "look at the reason that each node gives".to_owned(),
        false => parts.join("; ").replace("?; ", "? "),
    }
}

fn reach(nodes: &[&str], of: usize) -> String {
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

/// How long until those that are only too young make up what is missing, or all of them if they cannot.
fn patience(mut waits: Vec<Duration>, missing: usize) -> String {
    waits.sort_unstable();
    let enough = waits[missing.min(waits.len()) - 1];
    // Rounded up: asking earlier would be in vain.
    let seconds = enough.as_millis().div_ceil(1000);
    format!("wait {seconds} s; or {KEEP}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_as_are_missing_are_waited_for() {
        let waits = |ms: &[u64]| ms.iter().map(|ms| Duration::from_millis(*ms)).collect();
        assert!(patience(waits(&[900, 44_001, 7000]), 1).starts_with("wait 1 s; or "));
        assert!(patience(waits(&[900, 44_001, 7000]), 2).starts_with("wait 7 s; or "));
        assert!(patience(waits(&[900, 44_001, 7000]), 3).starts_with("wait 45 s; or "));
        assert!(patience(waits(&[900]), 2).starts_with("wait 1 s; or "));
    }

    #[test]
    fn those_out_of_reach_are_named() {
        assert_eq!(
            reach(&["a:1"], 3),
            "is a:1 running, and can it be reached from here?"
        );
        assert!(reach(&["a:1", "b:2"], 3).starts_with("are a:1 and b:2 running"));
        assert!(reach(&["a:1", "b:2", "c:3"], 3).starts_with("are the nodes running"));
    }
}

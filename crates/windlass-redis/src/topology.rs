//! What the nodes of a cluster say: who has which slot, and where to go instead.

use std::ops::RangeInclusive;

use redis::Value;

use super::address::HostPort;
use super::errors::CommandError;

/// Who has which slot, as one node knows it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClusterLayout {
    /// Whether the node finds that the cluster works.
    pub(super) is_ok: bool,
    /// The newest change that the node has heard of.
    pub(super) epoch: u64,
    pub(super) masters: Vec<HostPort>,
    /// How many replicas each master has.
    pub(super) replicas: Vec<usize>,
    /// Slots, and the number of their master in `masters`.
    pub(super) ranges: Vec<(RangeInclusive<u16>, u16)>,
}

impl ClusterLayout {
    /// From the answers to `CLUSTER INFO` and `CLUSTER SLOTS` of a node at `host`.
    pub(super) fn read(answers: &[Value], host: &str) -> Option<ClusterLayout> {
        let [info, slots] = answers else {
            return None;
        };
        let info: String = redis::from_redis_value_ref(info).ok()?;
        let field = |name: &str| {
            info.lines()
                .find_map(|line| line.strip_prefix(name))
                .map(str::trim)
        };
        let mut layout = ClusterLayout {
            is_ok: field("cluster_state:") == Some("ok"),
            epoch: newest_epoch(&info)?,
            ..ClusterLayout::default()
        };
        let Value::Array(slots) = slots else {
            return None;
        };
        for entry in slots {
            let Value::Array(parts) = entry else {
                return None;
            };
            let [Value::Int(first), Value::Int(last), master, replicas @ ..] = parts.as_slice()
            else {
                return None;
            };
            let master = address(master, host)?;
            let known = layout.masters.iter().position(|known| *known == master);
            let number = known.unwrap_or_else(|| {
                layout.masters.push(master);
                layout.replicas.push(replicas.len());
                layout.masters.len() - 1
            });
            let range = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
            layout.ranges.push((range, u16::try_from(number).ok()?));
        }
        Some(layout)
    }

    /// How many slots some master has.
    pub(super) fn covered(&self) -> usize {
        self.ranges.iter().map(|(range, _)| range.len()).sum()
    }
}

/// The newest change that a node has heard of, in what it says to `CLUSTER INFO`.
pub(super) fn newest_epoch(info: &str) -> Option<u64> {
    let mut lines = info.lines();
    let number = lines.find_map(|line| line.strip_prefix("cluster_current_epoch:"))?;
    number.trim().parse().ok()
}

/// `[host or nil, port, …]`.
fn address(node: &Value, same_host: &str) -> Option<HostPort> {
    let Value::Array(parts) = node else {
        return None;
    };
    let [host, Value::Int(port), ..] = parts.as_slice() else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) if !host.is_empty() && host != b"?" => {
            String::from_utf8(host.clone()).ok()?
        }
        _ => same_host.to_owned(),
    };
    let port = u16::try_from(*port).ok()?;
    Some(HostPort { host, port })
}

/// What to do about a failure.
#[derive(Debug, PartialEq)]
pub(super) enum Redirection {
    /// The slot is there now.
    Moved(HostPort),
    /// This time, ask there: the slot is on its way.
    Ask(HostPort),
    /// AcquireRequest again in a moment: some keys of the slot are here, and some there.
    TryAgain,
    /// Nothing was sent, as nobody is there.
    NotSent,
    /// Somebody else may have the slot by now; but whether it was done is not known, or it cannot be done
    /// by anybody yet.
    Doubt,
    /// It has nothing to do with where it was sent.
    None,
}

impl Redirection {
    pub(super) fn of(failure: &CommandError, same_host: &str) -> Redirection {
        let e = match failure {
            CommandError::Sent(e) => e,
            CommandError::NotSent(_) => return Redirection::NotSent,
            CommandError::Rejected(_) => return Redirection::NotSent,
        };
        let to = || HostPort::parse(e.redirect_node()?.0, same_host);
        match failure.code() {
            Some("MOVED") => to().map_or(Redirection::Doubt, Redirection::Moved),
            Some("ASK") => to().map_or(Redirection::Doubt, Redirection::Ask),
            Some("TRYAGAIN") => Redirection::TryAgain,
            Some("CLUSTERDOWN") => Redirection::Doubt,
            Some(_) if failure.is_not_master() => Redirection::Doubt,
            Some(_) => Redirection::None,
            None => Redirection::Doubt,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn layouts_are_understood() {
        let node = |host: Value, port| Value::Array(vec![host, Value::Int(port), text("id")]);
        let range = |first, last, nodes: Vec<Value>| {
            let mut parts = vec![Value::Int(first), Value::Int(last)];
            parts.extend(nodes);
            Value::Array(parts)
        };
        let info = text("cluster_state:ok\r\ncluster_current_epoch:6\r\n");
        let slots = Value::Array(vec![
            range(0, 10, vec![node(text("a"), 1), node(text("b"), 2)]),
            range(11, 20, vec![node(Value::Nil, 3)]),
            range(21, 30, vec![node(text("a"), 1), node(text("b"), 2)]),
        ]);
        let layout = ClusterLayout::read(&[info, slots], "me").unwrap();
        assert!(layout.is_ok);
        assert_eq!(layout.epoch, 6);
        let shown: Vec<String> = layout.masters.iter().map(HostPort::to_string).collect();
        assert_eq!(shown, ["a:1", "me:3"]);
        assert_eq!(layout.replicas, [1, 0]);
        assert_eq!(layout.ranges, [(0..=10, 0), (11..=20, 1), (21..=30, 0)]);
        assert_eq!(layout.covered(), 31);
        assert_eq!(ClusterLayout::read(&[Value::Nil, Value::Nil], "me"), None);
    }
}

//! What the nodes of a cluster say: the layout, and redirections.

use std::ops::RangeInclusive;

use redis::Value;

use super::address::HostPort;
use super::connector::info_field;
use super::errors::CommandError;

/// The masters and their slots, as one node knows them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct ClusterLayout {
    /// Whether the node finds the cluster healthy.
    pub(super) is_ok: bool,
    /// The newest epoch that the node has heard of.
    pub(super) epoch: u64,
    pub(super) masters: Vec<HostPort>,
    /// The number of replicas of each master.
    pub(super) replicas: Vec<usize>,
    /// Slots, and the index of their master in `masters`.
    pub(super) ranges: Vec<(RangeInclusive<u16>, u16)>,
}

impl ClusterLayout {
    /// From the replies to `CLUSTER INFO` and `CLUSTER SLOTS` of a node at `host`.
    pub(super) fn read(replies: &[Value], host: &str) -> Option<ClusterLayout> {
        let [info, slots] = replies else {
            return None;
        };
        let info: String = redis::from_redis_value_ref(info).ok()?;
        let mut layout = ClusterLayout {
            is_ok: info_field(&info, "cluster_state:") == Some("ok"),
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
            let index = known.unwrap_or_else(|| {
                layout.masters.push(master);
                layout.replicas.push(replicas.len());
                layout.masters.len() - 1
            });
            let range = u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?;
            layout.ranges.push((range, u16::try_from(index).ok()?));
        }
        Some(layout)
    }

    /// How many slots have a master.
    pub(super) fn covered(&self) -> usize {
        self.ranges.iter().map(|(range, _)| range.len()).sum()
    }
}

/// The newest epoch that a node has heard of, in its `CLUSTER INFO`.
pub(super) fn newest_epoch(info: &str) -> Option<u64> {
    info_field(info, "cluster_current_epoch:")?.parse().ok()
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

/// What a failed command says about where its slot is.
#[derive(Debug, PartialEq)]
pub(super) enum Redirection {
    /// The slot has moved there. Nothing was done.
    Moved(HostPort),
    /// The slot is being moved there: this command goes there. Nothing was done.
    Ask(HostPort),
    /// The slot is being moved, and the keys of the command are on both nodes. Nothing was done.
    TryAgain,
    /// Nothing was sent.
    NotSent,
    /// Another node may serve the slot by now. Either the command may have run, or no node can run
    /// it yet.
    Unclear,
    /// The failure has nothing to do with the node.
    None,
}

impl Redirection {
    pub(super) fn of(error: &CommandError, same_host: &str) -> Redirection {
        let CommandError::Sent(e) = error else {
            return Redirection::NotSent;
        };
        let to = || HostPort::parse(e.redirect_node()?.0, same_host);
        match error.code() {
            Some("MOVED") => to().map_or(Redirection::Unclear, Redirection::Moved),
            Some("ASK") => to().map_or(Redirection::Unclear, Redirection::Ask),
            Some("TRYAGAIN") => Redirection::TryAgain,
            Some("CLUSTERDOWN") => Redirection::Unclear,
            Some(_) if error.is_not_master() => Redirection::Unclear,
            Some(_) => Redirection::None,
            None => Redirection::Unclear,
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
    fn layouts_are_parsed() {
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

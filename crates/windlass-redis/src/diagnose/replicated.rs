//! Findings about sentinels, replicas and the nodes of a cluster.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use redis::AsyncConnectionConfig;

use super::{RESOLUTION, ServerInfo, eviction, get, micros, parse, persistence, version};
use crate::address::{HostPort, ServerOptions};
use crate::cluster::Cluster;
use crate::connection::Connection;
use crate::sentinel::Sentinels;
use crate::slots::SLOTS;
use windlass_core::clock_skew::{LocalClock, Reading, Spread};
use windlass_core::error::Result;
use windlass_core::join::join_all;
use windlass_core::store::Finding;
use windlass_core::store::Severity::{Fine, Problem, Warning};

/// How long a node that does not answer is waited for.
const LIMIT: Duration = Duration::from_secs(1);

/// The sentinels of a service, and the replicas of its master.
pub(super) async fn sentinels(sentinels: &Sentinels, master: &str) -> Vec<Finding> {
    let count = sentinels.count();
    let replies = sentinels.ask_all(LIMIT).await;
    let known: Vec<_> = replies
        .iter()
        .filter_map(|(_, reply)| reply.as_ref().ok())
        .collect();
    let (answering, majority) = (known.len(), sentinels.majority());
    let quorum = known.iter().map(|k| k.number("quorum")).max().unwrap_or(0);
    let others = known
        .iter()
        .map(|k| k.number("num-other-sentinels"))
        .max()
        .unwrap_or(0);
    let all = others + 1;
    let service = sentinels.service();
    let (severity, meaning) = if answering < majority || (answering as u64) < quorum {
        (
            Problem,
            "too few to agree: if the master fails, no replica is promoted",
        )
    } else if answering < count {
        (Warning, "enough to promote a replica, but not all")
    } else {
        (Fine, "enough to promote a replica if the master fails")
    };
    let mut findings = vec![Finding::new(
        severity,
        "sentinels",
        format!(
            "{answering} of the {count} named answer for {service:?}, {all} exist, quorum {quorum}: {meaning}"
        ),
    )];
    let masters: std::collections::BTreeSet<_> = known.iter().map(|k| &k.master).collect();
    if masters.len() > 1 {
        let shown: Vec<String> = masters.iter().map(|m| m.to_string()).collect();
        findings.push(Finding::new(
            Warning,
            "agreement",
            format!(
                "the sentinels name {}: a failover is in progress",
                shown.join(" and ")
            ),
        ));
    }
    let info = parse(master);
    findings.push(lag(&[("the master", &info)]));
    let mut nodes: Vec<HostPort> = known
        .first()
        .map(|k| k.master.clone())
        .into_iter()
        .collect();
    nodes.extend(replicas(&info).into_iter().map(|replica| replica.address));
    findings.push(skew(sentinels.servers(), &nodes).await);
    findings
}

/// The nodes of a cluster.
pub(super) async fn cluster(cluster: &Arc<Cluster>) -> Result<Vec<Finding>> {
    cluster.refresh().await?;
    let layout = cluster.layout();
    let ask = |(address, connection): (HostPort, Arc<Connection>)| {
        Box::pin(async move {
            let text: Option<String> = connection.query(&redis::cmd("INFO")).await.ok();
            (address.to_string(), connection, text)
        })
    };
    let texts = join_all(cluster.masters().into_iter().map(ask).collect()).await;
    let silent = texts.iter().filter(|(_, _, text)| text.is_none());
    let silent: Vec<&str> = silent.map(|(name, _, _)| name.as_str()).collect();
    let infos: Vec<(&str, ServerInfo<'_>)> = texts
        .iter()
        .filter_map(|(name, _, text)| Some((name.as_str(), parse(text.as_deref()?))))
        .collect();
    let mut findings = Vec::new();
    findings.extend(worst(&infos, version));
    findings.push(match layout.is_ok && silent.is_empty() {
        true => Finding::new(
            Fine,
            "cluster",
            format!("{} masters, state ok", layout.masters.len()),
        ),
        false if layout.is_ok => Finding::new(
            Problem,
            "cluster",
            format!(
                "{} does not answer: locks in its slots cannot be acquired",
                silent.join(", ")
            ),
        ),
        false => Finding::new(
            Problem,
            "cluster",
            "state fail: some or all locks cannot be acquired",
        ),
    });
    let covered = layout.covered();
    findings.push(match covered == usize::from(SLOTS) {
        true => Finding::new(Fine, "slots", format!("all {SLOTS} are covered")),
        false => Finding::new(
            Problem,
            "slots",
            format!("{covered} of {SLOTS} are covered: locks in the others cannot be acquired"),
        ),
    });
    let alone = layout.masters.iter().zip(&layout.replicas);
    let alone = alone.filter(|(_, replicas)| **replicas == 0);
    let alone: Vec<String> = alone.map(|(master, _)| master.to_string()).collect();
    findings.push(match alone.is_empty() {
        true => Finding::new(
            Warning,
            "replicas",
            "every master has one; replication is asynchronous: a failover may lose the newest grants, \
             and only fencing protects against that",
        ),
        false => Finding::new(
            Warning,
            "replicas",
            format!("{} has none: if it fails, its locks cannot be acquired until it is back", alone.join(", ")),
        ),
    });
    let named: Vec<(&str, &ServerInfo<'_>)> =
        infos.iter().map(|(name, info)| (*name, info)).collect();
    findings.push(lag(&named));
    findings.extend(worst(&infos, persistence));
    findings.extend(worst(&infos, eviction));
    let masters: Vec<&Arc<Connection>> = texts.iter().map(|(_, master, _)| master).collect();
    findings.extend(min_replicas(&masters).await);
    findings.push(skew(cluster.server_options(), &layout.masters).await);
    Ok(findings)
}

/// The most severe finding of one check, and its server.
fn worst(
    infos: &[(&str, ServerInfo<'_>)],
    check: impl Fn(&ServerInfo<'_>) -> Finding,
) -> Option<Finding> {
    let found = infos.iter().map(|(name, info)| (name, check(info)));
    let (name, mut finding) = found.max_by_key(|(_, finding)| finding.severity)?;
    if finding.severity > Fine {
        finding.message = format!("{name}: {}", finding.message);
    }
    Some(finding)
}

/// Whether a master that is cut off from its replicas stops granting.
pub(super) async fn min_replicas(masters: &[&Arc<Connection>]) -> Option<Finding> {
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET").arg("min-replicas-to-write");
    let calls = masters
        .iter()
        .map(|master| Box::pin(master.query::<HashMap<String, String>>(&ask)));
    let replies = join_all(calls.collect()).await;
    // A master may be down, or the user may lack permission for CONFIG.
    let known: Vec<_> = replies.into_iter().filter_map(Result::ok).collect();
    let unknown = masters.len() - known.len();
    let is_zero = |settings: &HashMap<_, String>| settings.values().any(|least| least == "0");
    Some(match known.iter().any(is_zero) {
        false if known.is_empty() => return None,
        false if unknown > 0 => Finding::new(
            Warning,
            "min-replicas",
            format!("min-replicas-to-write is set, but {unknown} did not answer"),
        ),
        false => Finding::new(
            Fine,
            "min-replicas",
            "min-replicas-to-write is set: a master that is cut off stops granting",
        ),
        true => Finding::new(
            Warning,
            "min-replicas",
            "min-replicas-to-write is 0: a master that is cut off goes on granting while another \
             one is promoted; only fencing protects against that",
        ),
    })
}

struct ReplicaInfo {
    address: HostPort,
    is_online: bool,
    /// Bytes that the replica has not acknowledged.
    behind: u64,
    /// Seconds since the last acknowledgement.
    silent: u64,
}

/// `slave0:ip=127.0.0.1,port=6380,state=online,offset=42,lag=0`.
fn replicas(info: &ServerInfo<'_>) -> Vec<ReplicaInfo> {
    let sent: u64 = get(info, "master_repl_offset").parse().unwrap_or(0);
    let lines = (0..).map_while(|i: u32| info.get(format!("slave{i}").as_str()));
    let read = |line: &&str| {
        let field = |name: &str| {
            let mut pairs = line.split(',').filter_map(|pair| pair.split_once('='));
            pairs.find(|(key, _)| *key == name).map(|(_, value)| value)
        };
        Some(ReplicaInfo {
            address: HostPort {
                host: field("ip")?.to_owned(),
                port: field("port")?.parse().ok()?,
            },
            is_online: field("state") == Some("online"),
            behind: sent.saturating_sub(field("offset")?.parse().ok()?),
            silent: field("lag").and_then(|lag| lag.parse().ok()).unwrap_or(0),
        })
    };
    lines.filter_map(read).collect()
}

/// How far replicas are behind: what a failover would lose.
fn lag(masters: &[(&str, &ServerInfo<'_>)]) -> Finding {
    let mut all = Vec::new();
    for (name, info) in masters {
        let found = replicas(info);
        if !found.iter().any(|replica| replica.is_online) {
            return Finding::new(
                Problem,
                "lag",
                format!("{name} has no replica in sync: a failover would lose held locks"),
            );
        }
        all.extend(found);
    }
    let silent = all.iter().map(|replica| replica.silent).max().unwrap_or(0);
    let behind = all.iter().map(|replica| replica.behind).max().unwrap_or(0);
    let count = all.len();
    match silent > 5 {
        true => Finding::new(
            Warning,
            "lag",
            format!(
                "a replica acknowledged last {silent} s ago: a failover to it would lose the grants since"
            ),
        ),
        false => Finding::new(
            Fine,
            "lag",
            format!("{count} in sync, at most {behind} bytes behind, which a failover would lose"),
        ),
    }
}

/// How far the clocks of nodes are apart.
async fn skew(options: &ServerOptions, nodes: &[HostPort]) -> Finding {
    let ours = LocalClock::new();
    let calls = nodes
        .iter()
        .map(|node| Box::pin(clock(options, node, ours)));
    let readings = join_all(calls.collect()).await.into_iter().flatten();
    let readings: Vec<Reading> = readings.collect();
    let Some(spread) = Spread::of(&readings) else {
        return Finding::new(Warning, "clock skew", "no node answered TIME");
    };
    let (count, possible) = (readings.len(), spread.possible);
    let Spread {
        ahead,
        behind,
        certain,
        ..
    } = spread;
    match spread.matters() {
        true => Finding::new(
            Warning,
            "clock skew",
            format!(
                "of {count} nodes, {ahead} is at least {certain} ms ahead of {behind}: a failover makes leases, \
                 limiters and windows longer or shorter by that, and fences go back if two masters follow each other \
                 within that time"
            ),
        ),
        false => Finding::new(
            Fine,
            "clock skew",
            format!(
                "{count} nodes are at most {possible} ms apart: a failover does not change leases and limiters"
            ),
        ),
    }
}

/// A reading of a node's clock.
async fn clock(options: &ServerOptions, node: &HostPort, ours: LocalClock) -> Option<Reading> {
    let ask = async {
        let config = AsyncConnectionConfig::new().set_connection_timeout(Some(LIMIT));
        let client = options.client(node).ok()?;
        let mut connection = client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .ok()?;
        let asked = ours.now();
        let time: (i64, i64) = redis::cmd("TIME").query_async(&mut connection).await.ok()?;
        let between = (asked, ours.now());
        Some(Reading::new(
            &node.to_string(),
            micros(time),
            RESOLUTION,
            between,
        ))
    };
    tokio::time::timeout(LIMIT, ask).await.ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replicas_in_info_are_parsed() {
        let text = "master_repl_offset:100\r\n\
                    slave0:ip=10.0.0.1,port=1,state=online,offset=90,lag=1\r\n\
                    slave1:ip=10.0.0.2,port=2,state=wait_bgsave,offset=0,lag=0\r\n";
        let info = parse(text);
        let found = replicas(&info);
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].behind, found[0].silent), (10, 1));
        assert!(found[0].is_online && !found[1].is_online);
        assert_eq!(lag(&[("m", &info)]).severity, Fine);
        let nobody = parse("master_repl_offset:100\r\n");
        assert_eq!(lag(&[("m", &nobody)]).severity, Problem);
        let slow = parse("slave0:ip=h,port=1,state=online,offset=0,lag=9\r\n");
        assert_eq!(lag(&[("m", &slow)]).severity, Warning);
    }
}

//! Findings about a Redis server for the operator (`windlass doctor`); of Sentinel and clusters see
//! [`replicated`].

mod replicated;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::connection::Connection;
use crate::keys::Keys;
use crate::router::Router;
use windlass_core::error::Result;
use windlass_core::store::Severity::{Fine, Problem, Warning};
use windlass_core::store::{Finding, Severity};

/// The fields of `INFO`.
type ServerInfo<'a> = HashMap<&'a str, &'a str>;

pub(super) async fn diagnose(router: &Router) -> Result<Vec<Finding>> {
    let connection = match router {
        Router::Single(connection) => connection,
        Router::Cluster(cluster) => {
            let mut findings = replicated::cluster(cluster).await?;
            let ranges = cluster.layout().ranges;
            let counters = cluster
                .masters()
                .into_iter()
                .zip(0..)
                .map(|((_, node), which)| {
                    let owned = ranges.iter().filter(|(_, owner)| *owner == which);
                    let slots = owned.flat_map(|(slots, _)| slots.clone());
                    (
                        node,
                        slots
                            .map(|slot| router.keys().fences(slot)[0].clone())
                            .collect(),
                    )
                });
            findings.extend(fences(router.keys(), counters.collect()).await);
            return Ok(findings);
        }
    };
    let text: String = connection.query(&redis::cmd("INFO")).await?;
    let info = parse(&text);
    let mut findings = vec![version(&info), role(&info)];
    let setting = match get(&info, "aof_enabled") {
        "1" => appendfsync(connection).await,
        _ => None,
    };
    findings.push(persistence_by(&info, setting.as_deref()));
    findings.extend(replicas(&info));
    findings.push(eviction(&info));
    if let Some(sentinels) = connection.sentinels() {
        findings.extend(replicated::sentinels(sentinels, &text).await);
        findings.extend(replicated::min_replicas(&[connection]).await);
    }
    findings.push(clock(connection).await?);
    let counter = vec![router.keys().fence().to_owned()];
    findings.extend(fences(router.keys(), vec![(Arc::clone(connection), counter)]).await);
    Ok(findings)
}

/// How high the fence counters of these servers are. `None` if there are none yet, or none can be
/// read.
async fn fences(keys: &Keys, servers: Vec<(Arc<Connection>, Vec<String>)>) -> Option<Finding> {
    let (mut highest, mut ahead) = (None, 0);
    for (server, counters) in servers {
        let mut commands = redis::Pipeline::new();
        commands.cmd("TIME");
        for counter in counters {
            commands.cmd("GET").arg(counter);
        }
        let Ok(replies) = server.send_all(&commands).await else {
            continue;
        };
        let mut replies = replies.into_iter().map(|reply| reply.ok());
        let time = replies.next().flatten().map(redis::from_redis_value);
        let Some(Ok(time)) = time else {
            continue;
        };
        let clock = micros(time).unsigned_abs();
        for counter in replies.flatten() {
            if let Ok(Some(counter)) = redis::from_redis_value::<Option<u64>>(counter) {
                highest = highest.max(Some(counter));
                ahead = ahead.max(counter.saturating_sub(clock) / 1_000_000);
            }
        }
    }
    let highest = highest?;
    let advice = format!(
        "Check the server's clock, and delete the counter ({})",
        keys.fence()
    );
    if let Some(exhausted) = Finding::of_exhausted_fences(highest, &advice) {
        return Some(exhausted);
    }
    let (severity, message) = if ahead > 0 {
        let message = format!(
            "the counter {highest} is {ahead} s ahead of the server's clock: fences grow, but if \
             the counter is lost before the clock has caught up, they go back"
        );
        (Warning, message)
    } else {
        let message = format!("the last is {highest}, behind the server's clock: fences grow");
        (Fine, message)
    };
    Some(Finding::new(severity, "last fence", message))
}

fn parse(text: &str) -> ServerInfo<'_> {
    text.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .collect()
}

fn get<'a>(info: &ServerInfo<'a>, key: &str) -> &'a str {
    info.get(key).copied().unwrap_or("unknown")
}

fn version(info: &ServerInfo<'_>) -> Finding {
    let (product, version) = match info.get("valkey_version") {
        Some(version) => ("Valkey", *version),
        None => ("Redis", get(info, "redis_version")),
    };
    let mut numbers = version.split('.').map(|n| n.parse::<u32>().unwrap_or(0));
    let old = product == "Redis" && (numbers.next(), numbers.next()) < (Some(6), Some(2));
    let (severity, meaning) = if old {
        (Problem, "older than 6.2: not supported")
    } else {
        (Fine, "supported")
    };
    let mode = get(info, "redis_mode");
    Finding::new(
        severity,
        "version",
        format!("{product} {version} ({mode}), {meaning}"),
    )
}

fn role(info: &ServerInfo<'_>) -> Finding {
    match get(info, "role") {
        "master" => Finding::new(Fine, "role", "master: takes writes"),
        role => Finding::new(
            Problem,
            "role",
            format!("{role}: locks cannot be acquired here; connect to the master"),
        ),
    }
}

/// When the server forces its append-only file to disk; `None` if the user lacks permission for
/// `CONFIG`.
async fn appendfsync(connection: &Arc<Connection>) -> Option<String> {
    let mut ask = redis::cmd("CONFIG");
    ask.arg("GET").arg("appendfsync");
    let known: HashMap<String, String> = connection.query(&ask).await.ok()?;
    known.into_values().next()
}

fn persistence(info: &ServerInfo<'_>) -> Finding {
    persistence_by(info, None)
}

/// By the setting of `appendfsync`, if it is known. A server that is killed loses nothing that it has
/// written; only a machine that fails does.
fn persistence_by(info: &ServerInfo<'_>, appendfsync: Option<&str>) -> Finding {
    let (severity, message): (Severity, &str) = match (get(info, "aof_enabled"), appendfsync) {
        ("1", Some("always")) => (
            Fine,
            "append-only file, appendfsync always: held locks survive a power cut",
        ),
        ("1", Some("everysec")) => (
            Fine,
            "append-only file, appendfsync everysec: held locks survive a restart of the server; a \
             power cut loses those of about the last second, and two holders are then possible \
             until their leases end",
        ),
        ("1", Some("no")) => (
            Warning,
            "append-only file, appendfsync no: held locks survive a restart of the server; a power \
             cut loses those that the kernel has not written yet, often those of the last 30 \
             seconds, and two holders are then possible until their leases end",
        ),
        ("1", _) => (
            Fine,
            "append-only file: held locks survive a restart, except for what appendfsync may lose",
        ),
        _ => (
            Warning,
            "no append-only file: a restart loses held locks, so two holders are possible until \
             leases end; fences keep growing, because a lost counter restarts from the clock",
        ),
    };
    Finding::new(severity, "persistence", message)
}

fn replicas(info: &ServerInfo<'_>) -> Option<Finding> {
    let count: u32 = get(info, "connected_slaves").parse().unwrap_or(0);
    (count > 0).then(|| {
        Finding::new(
            Warning,
            "replicas",
            format!(
                "{count} connected; replication is asynchronous: a failover may lose the newest \
                 grants, and only fencing protects against that"
            ),
        )
    })
}

fn eviction(info: &ServerInfo<'_>) -> Finding {
    let policy = get(info, "maxmemory_policy");
    let unlimited = get(info, "maxmemory") == "0";
    let (severity, message) = match (policy, unlimited) {
        ("noeviction", _) => (Fine, "noeviction: locks are never evicted".to_owned()),
        (policy, true) => (
            Fine,
            format!("{policy}, but no maxmemory: nothing is evicted"),
        ),
        (policy, false) => (
            Problem,
            format!("{policy}: when memory is full, held locks are evicted; use noeviction"),
        ),
    };
    Finding::new(severity, "eviction", message)
}

/// The reply to `TIME`, in microseconds.
pub(super) fn micros((seconds, micros): (i64, i64)) -> i64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

/// The resolution of `TIME`.
const RESOLUTION: Duration = Duration::from_micros(1);

async fn clock(connection: &Arc<Connection>) -> Result<Finding> {
    let before = SystemTime::now();
    let (seconds, micros): (u64, u64) = connection.query(&redis::cmd("TIME")).await?;
    let after = SystemTime::now();
    let unix_ms = |t: SystemTime| t.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let server = u128::from(seconds) * 1000 + u128::from(micros) / 1000;
    let skew = if server < unix_ms(before) {
        unix_ms(before) - server
    } else {
        server.saturating_sub(unix_ms(after))
    };
    Ok(if skew > 1000 {
        Finding::new(
            Warning,
            "clock",
            format!(
                "differs from the local clock by {skew} ms: leases depend on neither, but one of \
                 the two is wrong"
            ),
        )
    } else {
        Finding::new(
            Fine,
            "clock",
            format!("within {skew} ms of the local clock"),
        )
    })
}

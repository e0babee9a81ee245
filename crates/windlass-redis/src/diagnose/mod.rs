//! What an operator should know about a Redis server that keeps locks.

mod replicated;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::connection::Connection;
use crate::router::Router;
use windlass_core::error::Result;
use windlass_core::store::Severity::{Fine, Problem, Warning};
use windlass_core::store::{Finding, Severity};

/// What a server tells of itself.
pub(super) type Info<'a> = HashMap<&'a str, &'a str>;

pub(super) async fn diagnose(wire: &Router) -> Result<Vec<Finding>> {
    let link = match wire {
        Router::Single(link) => link,
        Router::Cluster(cluster) => return replicated::cluster(cluster).await,
    };
    let text: String = link.query(&redis::cmd("INFO")).await?;
    let info = parse(&text);
    let mut findings = vec![version(&info), role(&info), persistence(&info)];
    findings.extend(replicas(&info));
    findings.push(eviction(&info));
    if let Some(sentinels) = link.sentinels() {
        findings.extend(replicated::sentinels(sentinels, &text).await);
        findings.extend(replicated::min_replicas(&[link]).await);
    }
    findings.push(clock(link).await?);
    Ok(findings)
}

pub(super) fn parse(text: &str) -> Info<'_> {
    text.lines()
        .filter_map(|line| line.trim_end().split_once(':'))
        .collect()
}

pub(super) fn get<'a>(info: &Info<'a>, key: &str) -> &'a str {
    info.get(key).copied().unwrap_or("unknown")
}

pub(super) fn version(info: &Info<'_>) -> Finding {
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

fn role(info: &Info<'_>) -> Finding {
    match get(info, "role") {
        "master" => Finding::new(Fine, "role", "primary: takes writes"),
        role => Finding::new(
            Problem,
            "role",
            format!("{role}: locks cannot be taken here; connect to the primary"),
        ),
    }
}

pub(super) fn persistence(info: &Info<'_>) -> Finding {
    let (severity, message): (Severity, &str) = if get(info, "aof_enabled") == "1" {
        (
            Fine,
            "append-only file: held locks survive a restart, up to what appendfsync may lose",
        )
    } else {
        (
            Warning,
            "no append-only file: a restart forgets held locks, so two holders are possible until \
             leases end; fences go on growing, because a lost counter restarts from the clock",
        )
    };
    Finding::new(severity, "persistence", message)
}

fn replicas(info: &Info<'_>) -> Option<Finding> {
    let count: u32 = get(info, "connected_slaves").parse().unwrap_or(0);
    (count > 0).then(|| {
        Finding::new(
            Warning,
            "replicas",
            format!(
                "{count} connected; replication is asynchronous: a failover may forget the newest \
                 grants, and only fences protect then"
            ),
        )
    })
}

pub(super) fn eviction(info: &Info<'_>) -> Finding {
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

/// What `TIME` answers, in microseconds.
pub(super) fn micros((seconds, micros): (i64, i64)) -> i64 {
    seconds.saturating_mul(1_000_000).saturating_add(micros)
}

/// In such steps.
pub(super) const STEP: Duration = Duration::from_micros(1);

async fn clock(link: &Arc<Connection>) -> Result<Finding> {
    let before = SystemTime::now();
    let (seconds, micros): (u64, u64) = link.query(&redis::cmd("TIME")).await?;
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
                "differs from this machine's by {skew} ms: harmless for leases, which use neither, \
                 but one of the two is wrong"
            ),
        )
    } else {
        Finding::new(Fine, "clock", format!("within {skew} ms of this machine's"))
    })
}

//! Checks of a PostgreSQL server that stores locks, for `windlass doctor`.

use std::collections::HashMap;
use std::time::Duration;

use super::connection::Lanes;
use super::errors::{LostReply, malformed_reply};
use super::wake_up::{Delivery, WakeUps};
use windlass_core::clock_skew::{LocalClock, Reading, Spread};
use windlass_core::error::Result;
use windlass_core::store::Finding;
use windlass_core::store::Severity::{Fine, Problem, Warning};

/// The oldest version that the functions run on.
const OLDEST_VERSION: u64 = 140_000;

pub(super) async fn diagnose(lanes: &Lanes, wake_ups: &WakeUps) -> Result<Vec<Finding>> {
    let sql = format!("SELECT * FROM {}()", lanes.function("diagnose"));
    wake_ups.start();
    let clock = LocalClock::new();
    let sent = clock.now();
    let rows = lanes.call("", LostReply::Harmless, sql, Vec::new()).await?;
    let received = clock.now();
    let mut values = HashMap::new();
    for row in rows {
        let topic: String = row.try_get(0).map_err(malformed_reply)?;
        let value: Option<String> = row.try_get(1).map_err(malformed_reply)?;
        values.insert(topic, value.unwrap_or_default());
    }
    let server = Server { values };
    let mut findings = vec![server.version(), server.persistence()];
    findings.extend(server.isolation());
    findings.extend(server.timeouts());
    findings.push(server.space());
    findings.push(server.last_fence());
    let time = server.number("clock") as i64;
    let reading = Reading::new(
        "the server",
        time,
        Duration::from_micros(1),
        (sent, received),
    );
    findings.push(skew(&[Reading::ours(), reading]));
    findings.push(delivery(wake_ups).await);
    Ok(findings)
}

struct Server {
    values: HashMap<String, String>,
}

impl Server {
    fn value(&self, topic: &str) -> &str {
        self.values.get(topic).map_or("", String::as_str)
    }

    fn number(&self, topic: &str) -> u64 {
        self.value(topic).parse().unwrap_or(0)
    }

    fn version(&self) -> Finding {
        let version = self.value("server_version");
        match self.number("server_version_num") < OLDEST_VERSION {
            true => Finding::new(
                Problem,
                "version",
                format!("PostgreSQL {version}, older than 14: not supported"),
            ),
            false => Finding::new(Fine, "version", format!("PostgreSQL {version}, supported")),
        }
    }

    fn persistence(&self) -> Finding {
        if self.number("unlogged") > 0 {
            let message = "tables of the schema are UNLOGGED: a crash of the server frees every lock \
                           while its holders still work; fences stay, and continue from the clock";
            return Finding::new(Warning, "persistence", message);
        }
        if self.value("fsync") == "off" {
            let message = "fsync is off: a power cut may corrupt the database, or free locks that \
                           are held";
            return Finding::new(Problem, "persistence", message);
        }
        match self.value("synchronous_commit") {
            "off" => {
                let message = "synchronous_commit is off: a crash may undo grants of the last \
                               moments, so two clients may hold a lock until the first one renews";
                Finding::new(Warning, "persistence", message)
            }
            mode => {
                let message = format!("every grant is on disk (synchronous_commit = {mode})");
                Finding::new(Fine, "persistence", message)
            }
        }
    }

    fn isolation(&self) -> Option<Finding> {
        let level = self.value("default_transaction_isolation");
        (level != "read committed").then(|| {
            let message = format!(
                "default_transaction_isolation is {level:?}: decisions about one name that meet \
                 fail and are retried; set it to read committed for this role"
            );
            Finding::new(Warning, "isolation", message)
        })
    }

    fn timeouts(&self) -> Option<Finding> {
        let short: Vec<String> = ["statement_timeout", "lock_timeout"]
            .iter()
            .filter(|name| (1..1000).contains(&self.number(name)))
            .map(|name| format!("{name} = {} ms", self.number(name)))
            .collect();
        (!short.is_empty()).then(|| {
            let message = format!("{}: decisions may fail under load", short.join(", "));
            Finding::new(Warning, "timeouts", message)
        })
    }

    fn space(&self) -> Finding {
        let (bytes, dead, live) = (
            self.number("bytes"),
            self.number("dead rows"),
            self.number("live rows"),
        );
        let message = format!(
            "{} kB in tables, {live} live and {dead} dead rows",
            bytes.div_ceil(1024)
        );
        if self.value("autovacuum") == "off" {
            let message = format!("{message}; autovacuum is off: tables grow with every decision");
            return Finding::new(Warning, "space", message);
        }
        Finding::new(Fine, "space", message)
    }

    fn last_fence(&self) -> Finding {
        let last = self.number("last fence");
        let advice = "Use another schema (?schema=), and reset the gates";
        Finding::of_exhausted_fences(last, advice).unwrap_or_else(|| {
            let message = format!(
                "{last}: fences grow with every grant, and are raised to the clock when the server \
                 starts or a standby takes over"
            );
            Finding::new(Fine, "last fence", message)
        })
    }
}

fn skew(readings: &[Reading]) -> Finding {
    match Spread::of(readings) {
        Some(spread) if spread.matters() => Finding::new(
            Warning,
            "clock skew",
            format!(
                "{} is at least {} ms ahead of {}: locks are timed by the server alone, but \
                 times in this output are off, and fences after a failover continue from the clock",
                spread.ahead, spread.certain, spread.behind
            ),
        ),
        _ => Finding::new(
            Fine,
            "clock skew",
            "the server's clock agrees with this machine's",
        ),
    }
}

async fn delivery(wake_ups: &WakeUps) -> Finding {
    match wake_ups.known_delivery().await {
        Delivery::Works => Finding::new(
            Fine,
            "wake-ups",
            "LISTEN works: a waiter learns of its grant at once",
        ),
        Delivery::Deaf => Finding::new(
            Warning,
            "wake-ups",
            "LISTEN does not work over this URL, which names a pooler: waiters look every second; \
             name the server itself with ?listen=URL",
        ),
        Delivery::Unknown => Finding::new(
            Warning,
            "wake-ups",
            "no connection for LISTEN: waiters learn of a grant by their next heartbeat",
        ),
    }
}

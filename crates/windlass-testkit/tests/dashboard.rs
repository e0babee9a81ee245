//! The dashboard and the alerts of `docs/`, on a real Prometheus that scrapes a real service.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use windlass_testkit::{PrometheusServer, RedisServer, TestProcess, eventually_blocking};

const LONG: Duration = Duration::from_secs(60);

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap()
}

/// The queries of the dashboard, with its variables set.
fn queries() -> Vec<String> {
    let dashboard: Value = serde_json::from_str(&read("docs/grafana/windlass.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array());
    let expressions = targets.flatten().map(|target| target["expr"].as_str());
    let expressions = expressions.map(|expression| {
        expression
            .unwrap()
            .replace("$__rate_interval", "1m")
            .replace("$job", "service")
            .replace("$instance", ".*")
    });
    expressions.collect()
}

/// The metrics that a text mentions, without the suffixes of histograms.
fn metrics_in(text: &str) -> Vec<String> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    let names = words.filter(|word| word.starts_with("windlass_"));
    names.map(str::to_owned).collect()
}

#[test]
fn queries_and_alerts_work_on_a_real_prometheus() {
    let redis = RedisServer::start().unwrap();
    let service = TestProcess::spawn(
        Command::new(env!("CARGO_BIN_EXE_monitored_service"))
            .arg(redis.url())
            .stdin(Stdio::null()),
    );
    let service = service.unwrap();
    let address = service.wait_for_line(|line| line.contains(':'), LONG);
    let address = address.expect("the service prints its address");
    let alerts = root().join("docs/prometheus/alerts.yml");
    let alerts = alerts.canonicalize().unwrap();
    let prometheus = PrometheusServer::start(address.parse().unwrap(), &alerts).unwrap();
    let series = |query: &str| {
        prometheus
            .query(query)
            .unwrap_or_else(|e| panic!("{query}: {e}"))
    };

    assert!(eventually_blocking(LONG, || {
        !series("windlass_held{name=\"leader\"} == 1").is_empty()
    }));
    // An outage, which loses the lease of the leader.
    redis.kill().unwrap();
    assert!(eventually_blocking(LONG, || {
        !series("windlass_lost_total{name=\"leader\",reason=\"expired\"} > 0").is_empty()
    }));
    redis.restart().unwrap();

    for query in queries() {
        // Jobs are not part of the service: the query must be valid, and its metrics exist.
        if query.contains("windlass_run_") {
            series(&query);
            continue;
        }
        let found = eventually_blocking(LONG, || !series(&query).is_empty());
        assert!(found, "no data: {query}");
    }
    // Losses, failed renewals, reconnects and failed connections are seen, and not only registered.
    for query in [
        "windlass_renewal_failures_total > 0",
        "windlass_reconnects_total > 0",
        "windlass_connection_failures_total > 0",
        "windlass_limit_decisions_total{limiter=\"login\",decision=\"denied\"} > 0",
        "windlass_limit_decisions_total{limiter=\"events\",basis=\"leased\"} > 0",
        "windlass_limit_decisions_total{limiter=\"login\",basis=\"local\"} > 0",
        "windlass_once_total{outcome=\"replayed\"} > 0",
        "windlass_lost_total{reason=\"max_hold\"} > 0",
        "windlass_store_call_seconds_count{outcome!=\"ok\"} > 0",
    ] {
        assert!(
            eventually_blocking(LONG, || !series(query).is_empty()),
            "{query}"
        );
    }
    let names = series("count by (__name__) ({__name__=~\"windlass_.*\"})");
    let names: Vec<&str> = names
        .iter()
        .filter_map(|one| one["metric"]["__name__"].as_str())
        .collect();
    let of_jobs = read("crates/windlass-cli/src/commands/metrics_file.rs");
    let used = [
        read("docs/grafana/windlass.json"),
        read("docs/prometheus/alerts.yml"),
    ]
    .concat();
    let explained = read("docs/metrics.md") + &read("docs/monitor-windlass.md");
    for name in metrics_in(&used) {
        let exists = match name.starts_with("windlass_run_") {
            true => of_jobs.contains(&format!("\"{name}\"")),
            // The alerts' texts name histograms without a suffix.
            false => names.iter().any(|known| known.starts_with(name.as_str())),
        };
        assert!(exists, "{name} does not exist");
    }
    let of_jobs = metrics_in(&of_jobs).into_iter();
    let of_jobs = of_jobs.filter(|name| name.starts_with("windlass_run_"));
    for name in of_jobs.chain(names.into_iter().map(str::to_owned)) {
        let suffixes = ["_bucket", "_sum", "_count"];
        let plain = suffixes.iter().find_map(|suffix| name.strip_suffix(suffix));
        let plain = plain.unwrap_or(&name);
        assert!(
            explained.contains(&format!("`{plain}`")),
            "{plain} is not explained"
        );
    }
    // Each alert can be evaluated, and the loss of the leader fires.
    let rules = || prometheus.rules().unwrap();
    let evaluated = |rule: &Value| rule["health"] == "ok";
    assert!(
        eventually_blocking(LONG, || rules().iter().all(evaluated)),
        "{:?}",
        rules()
    );
    assert_eq!(
        rules().len(),
        read("docs/prometheus/alerts.yml")
            .matches("- alert:")
            .count()
    );
    assert!(eventually_blocking(LONG, || {
        let rules = rules();
        let mut lost = rules
            .iter()
            .filter(|rule| rule["name"] == "WindlassLeaseLost");
        lost.any(|rule| rule["state"] == "firing")
    }));
}

#[test]
fn alerts_fire_as_their_tests_say() {
    let folder = root().join("docs/prometheus");
    for args in [["check", "alerts.yml"], ["test", "alerts_test.yml"]] {
        let mut promtool = Command::new("promtool");
        promtool
            .current_dir(&folder)
            .args([args[0], "rules", args[1]]);
        let done = promtool
            .output()
            .expect("install the Debian package \"prometheus\"");
        assert!(
            done.status.success(),
            "{args:?}: {}{}",
            String::from_utf8_lossy(&done.stdout),
            String::from_utf8_lossy(&done.stderr)
        );
    }
    // Each alert has a test in which it fires.
    let tests = read("docs/prometheus/alerts_test.yml");
    let alerts = read("docs/prometheus/alerts.yml");
    for alert in alerts
        .lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: "))
    {
        let fires = tests
            .split("alertname: ")
            .any(|test| test.starts_with(&format!("{alert}\n")) && test.contains("exp_labels"));
        assert!(fires, "{alert} is not tested");
    }
}

#[test]
fn page_shows_the_opentelemetry_example() {
    let example = read("examples/opentelemetry/src/main.rs");
    let (_, code) = example.split_once("\n\n").unwrap();
    assert!(read("docs/monitor-windlass.md").contains(code));
    assert!(code.trim().lines().count() <= 25);
}

//! Limiters in a file, over a reboot.

use std::path::Path;

use windlass::{Quota, connect};

/// Simulates a reboot, which restarts the machine's clock.
fn another_boot(path: &Path, uptime_ago_micros: i64) {
    let database = rusqlite::Connection::open(path).unwrap();
    database
        .execute("UPDATE fences SET boot = 'another'", [])
        .unwrap();
    // What was written before the reboot has times far ahead of the new clock.
    let mut query = database.prepare("SELECT name, state FROM limits").unwrap();
    let rows: Vec<(String, String)> = query
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    for (name, state) in rows {
        let moved: Vec<String> = state
            .split(' ')
            .enumerate()
            .map(|(i, word)| match word.parse::<i64>() {
                // In a bucket the fourth word is a time, in a window the third, in a log the fourth and
                // the fifth.
                Ok(time)
                    if (state.starts_with('t') && i == 3)
                        || (state.starts_with('f') && i == 2)
                        || (state.starts_with('l') && (i == 3 || i == 4)) =>
                {
                    (time + uptime_ago_micros).to_string()
                }
                _ => word.to_owned(),
            })
            .collect();
        database
            .execute(
                "UPDATE limits SET state = ?2, ends = ends + ?3, written = written + ?3
                 WHERE name = ?1",
                (name, moved.join(" "), uptime_ago_micros),
            )
            .unwrap();
    }
}

#[tokio::test]
async fn usage_survives_a_reboot() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("windlass.db");
    let url = format!("file:{}", path.display());
    let quotas = [
        ("bucket", Quota::per_hour(3)),
        ("window", Quota::per_hour(3).fixed_window()),
        ("log", Quota::per_hour(3).sliding_log()),
        ("all", Quota::per_hour(0).burst(3)),
    ];
    let w = connect(&url).await.unwrap();
    for (name, quota) in quotas {
        assert!(
            w.limiter(name, quota)
                .check_n("a", 2)
                .await
                .unwrap()
                .is_allowed()
        );
    }
    let used = w.limiter("bucket", quotas[0].1).peek("a").await.unwrap();
    drop(w);
    for ahead in [400_000_000_000, -1_000_000] {
        another_boot(&path, ahead);
        let w = connect(&url).await.unwrap();
        for (name, quota) in quotas {
            let limiter = w.limiter(name, quota);
            let seen = limiter.peek("a").await.unwrap();
            assert_eq!(seen.remaining(), 1, "{name}");
            assert!(
                !limiter.check_n("a", 2).await.unwrap().is_allowed(),
                "{name}"
            );
        }
        let now = w.limiter("bucket", quotas[0].1).peek("a").await.unwrap();
        // Not a year, and not immediately.
        let (now, then) = (now.reset_after().unwrap(), used.reset_after().unwrap());
        assert!(
            now.abs_diff(then) < std::time::Duration::from_secs(60),
            "{now:?} and {then:?}"
        );
    }
}

//! A second process on the same file: this test program, started again with `WINDLASS_TEST_ROLE`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::Connection;
use windlass::connect;
use windlass_testkit::TestProcess;
use windlass_testkit::conformance::SOON;

pub(super) fn url(path: &Path) -> String {
    format!("file:{}", path.display())
}

/// Starts the child, as an argument of `prefix` if that is not empty.
pub(super) fn start(prefix: &[&str], role: &str, path: &Path) -> TestProcess {
    let me = std::env::current_exe().unwrap();
    let mut command = match prefix.split_first() {
        None => Command::new(me),
        Some((program, arguments)) => {
            let mut command = Command::new(program);
            command.args(arguments).arg(me);
            command
        }
    };
    command
        .args(["--exact", "child::main", "--nocapture"])
        .env("WINDLASS_TEST_ROLE", role)
        .env("WINDLASS_TEST_URL", url(path));
    TestProcess::spawn(&mut command).unwrap()
}

/// The rest of the child's next line that starts with `word`.
pub(super) fn said(child: &TestProcess, word: &str) -> String {
    let line = child.wait_for_line(|line| line.starts_with(word), SOON);
    let line = line.unwrap_or_else(|| panic!("no {word:?} in {:?}", child.stdout_lines()));
    line[word.len()..].trim().to_owned()
}

/// Not a test: the child. Does nothing without a role.
#[tokio::test]
async fn main() {
    let Ok(role) = std::env::var("WINDLASS_TEST_ROLE") else {
        return;
    };
    let url = std::env::var("WINDLASS_TEST_URL").unwrap();
    // Keeps a transaction open, as another tool may do.
    if role == "block" {
        let database = Connection::open(url.strip_prefix("file:").unwrap()).unwrap();
        database.busy_timeout(SOON).unwrap();
        database.execute_batch("BEGIN IMMEDIATE").unwrap();
        println!("blocks");
        return std::future::pending().await;
    }
    let w = match connect(&url).await {
        Ok(w) => w,
        Err(e) => {
            println!("refused {e}; {}", e.hint().unwrap_or_default());
            return;
        }
    };
    match role.as_str() {
        // Holds until the loss is reported.
        "hold" => {
            let ttl = Duration::from_secs(6);
            let guard = w.lock("stock").ttl(ttl).acquire().await.unwrap();
            println!("held {}", guard.fence());
            guard.lost().await;
            println!("lost");
        }
        // Leaves a lock that outlives this process, and a gate.
        "detach" => {
            let guard = w.lock("stock").ttl(Duration::from_secs(600));
            let detached = guard.acquire().await.unwrap().detach().await.unwrap();
            let admitted = w.gate("stock").admit(detached.fence).await.unwrap();
            assert!(admitted.is_admitted());
            println!("detached {}", detached.fence);
            std::future::pending().await
        }
        // Writes as fast as it can, until it is killed.
        "churn" => {
            println!("ready");
            for i in 0u64.. {
                let lock = w.lock(&format!("stock/{}", i % 50));
                drop(lock.try_acquire().await.unwrap());
                let _ = w.counter("rounds").add(1).await.unwrap();
            }
        }
        "try" => match w.lock("stock").try_acquire().await.unwrap().is_busy() {
            true => println!("busy"),
            false => println!("free"),
        },
        other => panic!("no role {other:?}"),
    }
}

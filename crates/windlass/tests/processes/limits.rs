//! Leased limiters in several processes, some of which are killed or frozen in the middle: all of them
//! together never use more than the quota.

use std::io::Write as _;
use std::process::Command;
use std::time::{Duration, Instant};

use windlass::{Coordinator, Quota, connect};
use windlass_testkit::conformance::TestStore;
use windlass_testkit::conformance::leased::{BURST, RATE, never_exceeds, rush};
use windlass_testkit::{Flavor, TestProcess};

const PROCESSES: usize = 4;
const RUN_FOR: Duration = Duration::from_secs(6);

fn start(url: &str, role: &str) -> TestProcess {
    let me = std::env::current_exe().unwrap();
    let mut command = Command::new(me);
    command
        .args(["--exact", "limits::worker", "--nocapture"])
        .env("WINDLASS_TEST_ROLE", role)
        .env("WINDLASS_TEST_URL", url);
    TestProcess::spawn(&mut command).unwrap()
}

/// Not a test: what a worker process does. Without a role there is nothing to do.
#[test]
fn worker() {
    let Ok(role) = std::env::var("WINDLASS_TEST_ROLE") else {
        return;
    };
    let url = std::env::var("WINDLASS_TEST_URL").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let w = connect(&url).await.unwrap();
        use_up(&w, &role).await;
    });
}

/// Uses whatever it gets, and prints between which two moments.
async fn use_up(w: &Coordinator, role: &str) {
    let limiter = w.limiter("fleet", Quota::per_second(RATE).burst(BURST));
    let mut out = std::io::stdout().lock();
    let used = |from, to| {
        // One write a line: who is killed in the middle leaves whole lines behind, and one that
        // nobody can read.
        let line = format!("used {from} {to}\n");
        out.write_all(line.as_bytes())
            .and_then(|()| out.flush())
            .unwrap();
    };
    rush(&limiter, role == "leased", u64::MAX, used).await;
}

async fn processes_together_never_exceed_the_quota(store: &TestStore) {
    let roles = ["leased", "leased", "leased", "strict"];
    let mut lines: Vec<String> = Vec::new();
    let mut workers: Vec<TestProcess> = roles.iter().map(|r| start(store.url(), r)).collect();
    let end = Instant::now() + RUN_FOR;
    let mut round = 0;
    while Instant::now() < end {
        let pause = Duration::from_millis(rand::random_range(100..400));
        tokio::time::sleep(pause).await; // let them work
        let victim = rand::random_range(0..PROCESSES);
        round += 1;
        if round % 2 == 0 {
            workers[victim].kill9().unwrap();
            lines.extend(workers[victim].stdout_lines());
            workers[victim] = start(store.url(), roles[victim]);
        } else {
            // Frozen for longer than a loan is good.
            workers[victim].pause().unwrap();
            tokio::time::sleep(Duration::from_millis(rand::random_range(20..250))).await;
            workers[victim].resume().unwrap();
        }
    }
    for worker in &workers {
        worker.kill9().unwrap();
        tokio::time::sleep(Duration::from_millis(50)).await; // until what it printed is read
        lines.extend(worker.stdout_lines());
    }
    let mut uses: Vec<(u64, u64)> = lines
        .iter()
        .filter_map(|line| {
            let (before, after) = line.strip_prefix("used ")?.split_once(' ')?;
            Some((before.parse().ok()?, after.parse().ok()?))
        })
        .collect();
    println!("{}: {} uses, {round} faults", store.url(), uses.len());
    never_exceeds(&mut uses);
    assert!(
        uses.len() as u64 > 4 * BURST,
        "{} is too little",
        uses.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_together_never_exceed_the_quota_on_redis() {
    processes_together_never_exceed_the_quota(&TestStore::redis(Flavor::Redis)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_together_never_exceed_the_quota_on_file() {
    processes_together_never_exceed_the_quota(&TestStore::file()).await;
}

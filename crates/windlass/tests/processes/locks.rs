//! Several processes, some of which are killed or frozen at the worst moment.
//!
//! A worker process is this test program, started again with `WINDLASS_TEST_ROLE` set.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use windlass::{Coordinator, connect};
use windlass_testkit::conformance::{TestStore, wait_for_waiters};
use windlass_testkit::history::boot_nanos;
use windlass_testkit::{
    EtcdVersion, FencedRegister, Flavor, RegisterClient, TestProcess, Written, eventually,
};

const PROCESSES: usize = 4;
const TASKS: usize = 50;
const RUN_FOR: Duration = Duration::from_secs(6);
/// The longest time that a run takes on a busy machine until it has enough writes.
const LONGEST: Duration = Duration::from_secs(30);
const ENOUGH: u64 = 50;
const TTL: Duration = Duration::from_millis(400);
const SOON: Duration = Duration::from_secs(10);

fn start(role: &str, url: &str, register: Option<SocketAddr>) -> TestProcess {
    let me = std::env::current_exe().unwrap();
    let mut command = Command::new(me);
    command
        .args(["--exact", "locks::worker", "--nocapture"])
        .env("WINDLASS_TEST_ROLE", role)
        .env("WINDLASS_TEST_URL", url);
    if let Some(addr) = register {
        command.env("WINDLASS_TEST_REGISTER", addr.to_string());
    }
    TestProcess::spawn(&mut command).unwrap()
}

/// Not a test: the worker process. Does nothing without a role.
#[test]
fn worker() {
    let Ok(role) = std::env::var("WINDLASS_TEST_ROLE") else {
        return;
    };
    let url = std::env::var("WINDLASS_TEST_URL").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let w = connect(&url).await.unwrap();
        match role.as_str() {
            "count" => {
                let addr = std::env::var("WINDLASS_TEST_REGISTER").unwrap();
                count(&w, addr.parse().unwrap()).await;
            }
            "hold" => hold(&w).await,
            "wait" => {
                let guard = w.lock("stock").ttl(TTL).acquire().await.unwrap();
                println!("got {}", guard.fence());
                std::future::pending::<()>().await;
            }
            other => panic!("no role {other:?}"),
        }
    });
}

/// Holds the lock, and prints until when it was certainly held, by a clock that all processes
/// share, and whether a fenced write comes too late.
async fn hold(w: &Coordinator) {
    let guard = w.lock("stock").ttl(TTL).acquire().await.unwrap();
    println!("held {}", guard.fence());
    let mut until = 0;
    let watching = async {
        loop {
            // Read before the check: the lock was held at this time.
            let now = boot_nanos();
            if guard.is_held() {
                until = now;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = watching => {}
        () = guard.lost() => {}
    }
    println!("lost held={} until {until}", guard.is_held());
    let admitted = w.gate("stock").admit(guard.fence()).await.unwrap();
    println!("gate {}", admitted.is_admitted());
    std::future::pending::<()>().await;
}

/// Read, modify, write under the lock, by many concurrent tasks.
async fn count(w: &Coordinator, register: SocketAddr) {
    let end = Instant::now() + LONGEST;
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let w = w.clone();
            tokio::spawn(async move {
                while Instant::now() < end {
                    let Ok(guard) = w.lock("counter").ttl(TTL).acquire().await else {
                        continue; // the store may be blocked by a dead process's transaction
                    };
                    let fence = guard.fence().get();
                    let written = tokio::task::spawn_blocking(move || {
                        let mut client = RegisterClient::connect(register)?;
                        let seen = client.read()?;
                        // A process frozen here resumes with a stale fence.
                        std::thread::sleep(Duration::from_millis(1));
                        client.write(fence, seen + 1)
                    })
                    .await
                    .unwrap();
                    // Stale only if the lease was lost in between.
                    if matches!(written, Ok(Written::Stale)) {
                        println!("stale");
                    }
                    let _ = guard.release().await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// Kills and freezes workers at random while they count.
async fn counting_with_random_kills(store: &TestStore) {
    let register = FencedRegister::start().unwrap();
    let spawn = || start("count", store.url(), Some(register.addr()));
    let mut workers: Vec<_> = (0..PROCESSES).map(|_| spawn()).collect();
    let (end, latest) = (Instant::now() + RUN_FOR, Instant::now() + LONGEST);
    let mut round = 0;
    // On a busy machine, longer: a few writes would prove nothing.
    let goes_on = || {
        let now = Instant::now();
        now < end || now < latest && register.writes().0 <= ENOUGH
    };
    while goes_on() {
        // A killed process blocks the others for this long: leave them some time to work.
        let linger = store.dead_claim_lifetime(TTL);
        let pause = rand::random_range(linger / 2..linger * 5 / 4);
        tokio::time::sleep(pause).await; // let them work
        let victim = rand::random_range(0..PROCESSES);
        round += 1;
        if round % 2 == 0 {
            workers[victim].kill9().unwrap();
            workers[victim] = spawn();
        } else {
            workers[victim].pause().unwrap();
            tokio::time::sleep(linger + linger / 2).await; // frozen beyond its lease
            workers[victim].resume().unwrap();
        }
    }
    drop(workers);
    // What they sent before they were killed arrives.
    let settled = || async { register.writes().0 == register.value() };
    assert!(eventually(SOON, settled).await, "an update was lost");
    let (accepted, stale) = register.writes();
    println!(
        "{}: {accepted} writes, {stale} refused, {round} faults",
        store.url()
    );
    assert!(accepted > ENOUGH, "the workers hardly worked: {accepted}");
    assert_eq!(register.lost_updates(), 0, "an update was lost");
    // A killed process blocks no other for longer than its TTL.
    let w = connect(store.url()).await.unwrap();
    let attempt = w.lock("counter").acquire_within(SOON).await.unwrap();
    assert!(attempt.acquired().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_with_random_kills_on_file() {
    counting_with_random_kills(&TestStore::file()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_with_random_kills_on_redis() {
    counting_with_random_kills(&TestStore::redis(Flavor::Redis)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_with_random_kills_on_zookeeper() {
    counting_with_random_kills(&TestStore::zookeeper()).await;
}

/// A memory store has one process: tasks are aborted instead of killed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_update_is_lost_with_aborted_tasks_on_memory() {
    let store = TestStore::memory();
    let register = FencedRegister::start().unwrap();
    let w = store.connect().await;
    let spawn = || {
        let (w, addr) = (w.clone(), register.addr());
        tokio::spawn(async move { count(&w, addr).await })
    };
    let mut groups: Vec<_> = (0..PROCESSES).map(|_| spawn()).collect();
    for _ in 0..6 {
        tokio::time::sleep(Duration::from_millis(300)).await; // let them work
        let victim = rand::random_range(0..PROCESSES);
        groups[victim].abort();
        groups[victim] = spawn();
    }
    groups.iter().for_each(|group| group.abort());
    let (accepted, _) = register.writes();
    assert!(accepted > ENOUGH, "the tasks hardly worked: {accepted}");
    assert_eq!(register.lost_updates(), 0, "an update was lost");
}

/// A holder frozen beyond its TTL learns of the loss when it resumes, and its write is rejected.
async fn frozen_holder_is_fenced_off(store: &TestStore) {
    let holder = start("hold", store.url(), None);
    let held = holder.wait_for_line(|line| line.starts_with("held "), SOON);
    let old: u64 = held.expect("it acquires")[5..].parse().unwrap();
    holder.pause().unwrap();
    let w = connect(store.url()).await.unwrap();
    let since = Instant::now();
    let guard = w.lock("stock").acquire().await.unwrap();
    let granted = boot_nanos();
    assert!(
        since.elapsed() < store.dead_claim_lifetime(TTL) + SOON,
        "{:?}",
        since.elapsed()
    );
    assert!(guard.fence().get() > old);
    assert!(
        w.gate("stock")
            .admit(guard.fence())
            .await
            .unwrap()
            .is_admitted()
    );
    holder.resume().unwrap();
    let lost = holder.wait_for_line(|line| line.starts_with("lost"), SOON);
    let lost = lost.expect("reported when it resumes");
    let until = lost.strip_prefix("lost held=false until ").expect(&lost);
    let until: u64 = until.parse().unwrap();
    assert!(
        until < granted,
        "two held it: {until} is not before {granted}"
    );
    let gate = holder.wait_for_line(|line| line.starts_with("gate"), SOON);
    assert_eq!(gate.expect("it tries"), "gate false");
    assert!(guard.is_held(), "undisturbed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_holder_is_fenced_off_on_file() {
    frozen_holder_is_fenced_off(&TestStore::file()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_holder_is_fenced_off_on_redis() {
    frozen_holder_is_fenced_off(&TestStore::redis(Flavor::Redis)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_holder_is_fenced_off_on_zookeeper() {
    frozen_holder_is_fenced_off(&TestStore::zookeeper()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn frozen_holder_is_fenced_off_on_etcd() {
    frozen_holder_is_fenced_off(&TestStore::etcd(EtcdVersion::V3_4)).await;
}

/// A killed holder and a killed waiter block other clients for one TTL at most.
async fn killed_processes_are_skipped(store: &TestStore) {
    let w = connect(store.url()).await.unwrap();
    let holder = start("hold", store.url(), None);
    holder
        .wait_for_line(|line| line.starts_with("held "), SOON)
        .expect("it acquires");
    let doomed = start("wait", store.url(), None);
    wait_for_waiters(&w, "stock", 1).await;
    let survivor = start("wait", store.url(), None);
    wait_for_waiters(&w, "stock", 2).await;
    doomed.kill9().unwrap();
    holder.kill9().unwrap();
    let killed = Instant::now();
    let got = survivor.wait_for_line(|line| line.starts_with("got "), SOON);
    assert!(got.is_some(), "never served");
    assert!(
        killed.elapsed() < store.dead_claim_lifetime(TTL) + SOON,
        "{:?}",
        killed.elapsed()
    );
    drop(survivor);
    let free = eventually(SOON, || async {
        let attempt = w.lock("stock").try_acquire().await.unwrap();
        attempt.acquired().is_some()
    });
    assert!(free.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_are_skipped_on_file() {
    killed_processes_are_skipped(&TestStore::file()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_are_skipped_on_redis() {
    killed_processes_are_skipped(&TestStore::redis(Flavor::Redis)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_are_skipped_on_zookeeper() {
    killed_processes_are_skipped(&TestStore::zookeeper()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_processes_are_skipped_on_etcd() {
    killed_processes_are_skipped(&TestStore::etcd(EtcdVersion::V3_4)).await;
}

//! Many processes share semaphores and read-write locks, and are killed, frozen, and wrong about the
//! time of day.
//!
//! A worker process is this very test program, started again with `WINDLASS_TEST_ROLE` set.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use windlass::{Coordinator, Lease, Order, connect};
use windlass_testkit::conformance::TestStore;
use windlass_testkit::history::{
    HeldInterval, History, HistoryRecorder, boot_nanos, fence_went_back, max_concurrent_weight,
};
use windlass_testkit::{FencedRegister, Flavor, RegisterClient, TestProcess};

const PROCESSES: usize = 8;
const TASKS: usize = 6;
const TTL: Duration = Duration::from_millis(400);
const SIZE: u32 = 5;

/// Set to run for longer or shorter.
fn run_for() -> Duration {
    let seconds = std::env::var("WINDLASS_TEST_CROWD_SECONDS");
    Duration::from_secs(seconds.map_or(60, |s| s.parse().unwrap()))
}

struct PoolFixture {
    url: String,
    history: History,
    register: FencedRegister,
}

impl PoolFixture {
    fn new(store: &TestStore) -> PoolFixture {
        PoolFixture {
            url: store.url().to_owned(),
            history: History::start().unwrap(),
            register: FencedRegister::start().unwrap(),
        }
    }

    /// A worker that believes the time of day to be off by so much.
    fn worker(&self, off: Option<&str>) -> TestProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        if let Some(off) = off {
            // Not by the program `faketime`, which would stand between the worker and its killer.
            command.env("LD_PRELOAD", libfaketime());
            command.env("FAKETIME", off).env("WINDLASS_TEST_OFF", off);
            // The boot clock is the kernel's, and no setting of the time of day moves it.
            command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        command
            .args(["--exact", "pools::worker", "--nocapture"])
            .env("WINDLASS_TEST_ROLE", "crowd")
            .env("WINDLASS_TEST_URL", &self.url)
            .env("WINDLASS_TEST_NOW", epoch_seconds().to_string())
            .env("WINDLASS_TEST_HISTORY", self.history.addr().to_string())
            .env("WINDLASS_TEST_REGISTER", self.register.addr().to_string());
        TestProcess::spawn(&mut command).unwrap()
    }
}

fn libfaketime() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = libraries.find(|path| path.exists());
    found.expect("libfaketime is installed: apt-get install faketime")
}

fn epoch_seconds() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap().as_secs()
}

/// Not a test: what a worker process does. Without a role there is nothing to do.
#[test]
fn worker() {
    if std::env::var("WINDLASS_TEST_ROLE").is_err() {
        return;
    }
    let variable = |name: &str| std::env::var(name).unwrap();
    if let Ok(off) = std::env::var("WINDLASS_TEST_OFF") {
        // A test that would pass with right clocks proves nothing about wrong ones.
        let true_now: u64 = variable("WINDLASS_TEST_NOW").parse().unwrap();
        let apart = epoch_seconds().abs_diff(true_now);
        assert!((3000..4200).contains(&apart), "{off}, but {apart} s apart");
    }
    let history: SocketAddr = variable("WINDLASS_TEST_HISTORY").parse().unwrap();
    let register: SocketAddr = variable("WINDLASS_TEST_REGISTER").parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let w = connect(&variable("WINDLASS_TEST_URL")).await.unwrap();
        let tasks: Vec<_> = (0..TASKS)
            .map(|_| tokio::spawn(work(w.clone(), history, register)))
            .collect();
        println!("ready");
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Over and over, at random: a share of the semaphore, or the read-write lock to read or to write.
async fn work(w: Coordinator, history: SocketAddr, register: SocketAddr) {
    let mut recorder = HistoryRecorder::connect(history).unwrap();
    loop {
        // The store may be busy with a dead process's transaction: then it is tried again.
        match rand::random_range(0..10) {
            0..6 => {
                let weight = [1, 1, 1, 2, 3][rand::random_range(0..5)];
                let ttl = TTL * rand::random_range(1..4);
                let semaphore = w.semaphore("crowd", SIZE).ttl(ttl);
                let semaphore = match rand::random_range(0..4) {
                    0 => semaphore.order(Order::Barging),
                    _ => semaphore,
                };
                if let Ok(permit) = semaphore.acquire_many(weight).await {
                    stay(&permit, "permits", weight.into(), &mut recorder).await;
                    let _ = permit.release().await;
                }
            }
            6..9 => {
                if let Ok(guard) = w.rwlock("crowd").ttl(TTL).read().await {
                    stay(&guard, "rw", 1, &mut recorder).await;
                    let _ = guard.release().await;
                }
            }
            _ => {
                if let Ok(guard) = w.rwlock("crowd").ttl(TTL).write().await {
                    let fence = guard.fence().get();
                    let written = tokio::task::spawn_blocking(move || {
                        let mut client = RegisterClient::connect(register)?;
                        let seen = client.read()?;
                        std::thread::sleep(Duration::from_millis(1));
                        client.write(fence, seen + 1)
                    });
                    written.await.unwrap().unwrap();
                    stay(&guard, "rw", WRITER, &mut recorder).await;
                    if rand::random() {
                        let _ = guard.release().await;
                    } else if let Ok(guard) = guard.downgrade().await {
                        stay(&guard, "rw", 1, &mut recorder).await;
                        let _ = guard.release().await;
                    }
                }
            }
        }
    }
}

/// A writer weighs more than all readers there can be.
const WRITER: u64 = 1_000_000;

async fn stay(lease: &Lease, what: &str, weight: u64, recorder: &mut HistoryRecorder) {
    let begin = boot_nanos();
    let pause = Duration::from_micros(rand::random_range(0..3000));
    tokio::time::sleep(pause).await; // work
    let end = boot_nanos();
    // Looked at after the clock: what is valid now was valid then.
    if lease.is_held() && end > begin {
        let held = HeldInterval {
            what: what.to_owned(),
            weight,
            fence: lease.fence().get(),
            begin,
            end,
        };
        recorder.record_interval(&held).unwrap();
    }
}

/// Kills and freezes workers at random; checks what they certainly held.
async fn crowd(store: &TestStore, clocks: &[Option<&str>], length: Duration) {
    let fixture = PoolFixture::new(store);
    let clock = |i: usize| clocks[i % clocks.len()];
    let mut workers: Vec<_> = (0..PROCESSES).map(|i| fixture.worker(clock(i))).collect();
    let end = Instant::now() + length;
    let mut faults = 0;
    while Instant::now() < end {
        let pause = Duration::from_millis(rand::random_range(200..600));
        tokio::time::sleep(pause).await; // let them work
        let victim = rand::random_range(0..PROCESSES);
        faults += 1;
        if faults % 2 == 0 {
            workers[victim].kill9().unwrap();
            workers[victim] = fixture.worker(clock(victim));
        } else {
            workers[victim].pause().unwrap();
            tokio::time::sleep(TTL + TTL / 2).await; // frozen beyond its lease
            workers[victim].resume().unwrap();
        }
    }
    for worker in &workers {
        worker.kill9().unwrap();
    }
    drop(workers);
    // After the longest ttl, and a second for a busy machine, all is usable again: nothing has leaked.
    tokio::time::sleep(3 * TTL + Duration::from_secs(1)).await;
    let w = connect(store.url()).await.unwrap();
    let all = w.semaphore("crowd", SIZE).try_acquire_many(SIZE).await;
    assert!(!all.unwrap().is_busy(), "some permits have leaked");
    let writer = w.rwlock("crowd").try_write().await.unwrap();
    assert!(!writer.is_busy(), "a reader or a writer has leaked");

    let (permits, rw) = (
        fixture.history.intervals_of("permits"),
        fixture.history.intervals_of("rw"),
    );
    let (accepted, stale) = fixture.register.writes();
    println!(
        "{}: {} shares and {} guards held, {accepted} writes, {stale} refused, {faults} faults",
        store.url(),
        permits.len(),
        rw.len(),
    );
    assert!(permits.len() > 200 && rw.len() > 100, "they hardly worked");
    let most = max_concurrent_weight(&permits);
    assert!(most <= SIZE.into(), "{most} permits of {SIZE} at once");
    assert_eq!(
        most,
        u64::from(SIZE),
        "never all in use: not much of a test"
    );
    let most = max_concurrent_weight(&rw);
    assert!(most <= WRITER, "a writer was not alone");
    let writes: Vec<HeldInterval> = rw
        .into_iter()
        .filter(|held| held.weight == WRITER)
        .collect();
    assert_eq!(fence_went_back(&writes), None);
    assert_eq!(fixture.register.lost_updates(), 0, "an update was lost");
    assert_eq!(fixture.register.value(), accepted);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_is_never_exceeded_on_redis() {
    crowd(&TestStore::redis(Flavor::Redis), &[None], run_for()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn capacity_is_never_exceeded_on_file() {
    crowd(&TestStore::file(), &[None], run_for()).await;
}

/// Only the store's clock counts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_clocks_change_nothing_on_redis() {
    let clocks = [Some("+1h"), None, Some("-1h")];
    crowd(&TestStore::redis(Flavor::Redis), &clocks, run_for() / 4).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_clocks_change_nothing_on_file() {
    let clocks = [Some("+1h"), None, Some("-1h")];
    crowd(&TestStore::file(), &clocks, run_for() / 4).await;
}

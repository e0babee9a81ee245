//! The last sum of a buffered counter, and the store's record of its operations.

use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};
use windlass::{Options, connect};
use windlass_testkit::conformance::{SOON, TestStore};
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

const MS: Duration = Duration::from_millis(1);
const HOUR: Duration = Duration::from_secs(3600);

/// However often the buffer is flushed, there is one record; and it outlives any retry.
#[tokio::test]
async fn buffer_leaves_one_record() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server.url()).await.unwrap();
    // A shorter retention would be too short for a buffer, which retries as long as needed.
    let counter = w.counter("views").retention(MS);
    let buffer = counter.buffered_every(HOUR).unwrap();
    for _ in 0..50 {
        buffer.add(1).unwrap();
        buffer.flush().await.unwrap();
    }
    buffer.close().await.unwrap();
    assert_eq!(counter.get().await.unwrap(), 50);
    let keys = server.command(&["KEYS", "windlass:counter:op:*"]).unwrap();
    let keys: Vec<&str> = keys.lines().collect();
    assert_eq!(keys.len(), 1, "{keys:?}");
    let script = "return redis.call('PTTL', redis.call('KEYS', 'windlass:counter:op:*')[1])";
    let left: u64 = server
        .command(&["EVAL", script, "0"])
        .unwrap()
        .parse()
        .unwrap();
    let day = 24 * 3_600_000;
    assert!(left <= day && left > day - 60_000, "{left}");
}

/// Dropped while the store is unreachable: the last sum arrives when it is back, once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_buffer_retries() {
    let server = RedisServer::start().unwrap();
    let direct = connect(&server.url()).await.unwrap();
    for fault in ["refused", "unanswered"] {
        let proxy = FaultProxy::start(server.addr()).unwrap();
        let w = Options::new()
            .call_timeout(150 * MS)
            .connect(&format!("redis://{}", proxy.addr()))
            .await
            .unwrap();
        let buffer = w.counter(fault).buffered_every(HOUR).unwrap();
        // Load the script first: otherwise the lost reply would be the NOSCRIPT error.
        assert_eq!(w.counter(fault).get().await.unwrap(), 0);
        buffer.add(9).unwrap();
        match fault {
            "refused" => {
                proxy.refuse(true);
                proxy.reset_all();
            }
            _ => proxy.blackhole(Direction::ToClient),
        }
        drop(buffer);
        tokio::time::sleep(800 * MS).await; // the first attempts fail
        proxy.heal();
        proxy.refuse(false);
        let counter = direct.counter(fault);
        let sent = eventually(2 * SOON, || async { counter.get().await.unwrap() == 9 });
        assert!(sent.await, "{fault}: the rest is lost");
        tokio::time::sleep(800 * MS).await; // for a duplicate
        assert_eq!(counter.get().await.unwrap(), 9, "{fault}: once");
    }
}

/// Collects warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.0.push_str(&format!("{field}={value:?} "));
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == tracing::Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push(text.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A last sum that the counter rejects, or that the ended runtime cannot send, is logged.
#[test]
fn lost_sums_are_logged() {
    let warnings = Warnings::default();
    let _here = tracing::subscriber::set_default(warnings.clone());
    let store = TestStore::memory();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let logs = |word: &str| {
        let warnings = warnings.0.lock().unwrap();
        warnings
            .iter()
            .any(|w| w.contains("amount=3") && w.contains(word))
    };
    let late = runtime.block_on(async {
        let w = store.connect().await;
        let full = w.counter("full");
        assert!(full.add(i64::MAX).await.unwrap().added);
        let buffer = full.buffered_every(HOUR).unwrap();
        buffer.add(3).unwrap();
        drop(buffer);
        let logged = eventually(SOON, || async { logs("cannot be counted") });
        assert!(logged.await, "{:?}", warnings.0);
        let late = w.counter("late").buffered_every(HOUR).unwrap();
        late.add(3).unwrap();
        late
    });
    drop(late);
    drop(runtime);
    assert!(logs("runtime has ended"), "{:?}", warnings.0);
}

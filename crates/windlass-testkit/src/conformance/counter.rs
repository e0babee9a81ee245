//! Counters.

use std::time::Duration;

use windlass::{ErrorKind, Options};

use super::{SOON, TestStore};
use crate::eventually;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// No addition of many concurrent clients is lost.
pub async fn concurrent_additions_are_not_lost(store: &TestStore) {
    let clients = [store.connect().await, store.connect().await];
    let tasks: Vec<_> = (0..8)
        .map(|i| {
            let counter = clients[i % 2].counter("visits");
            tokio::spawn(async move {
                for n in 0..50 {
                    let _ = counter.add(if n % 5 == 0 { -1 } else { 2 }).await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let visits = clients[0].counter("visits");
    assert_eq!(visits.get().await.unwrap(), 8 * (40 * 2 - 10));
    assert_eq!(visits.reset().await.unwrap(), 560);
    assert_eq!(visits.get().await.unwrap(), 0);
    assert_eq!(visits.reset().await.unwrap(), 0);
    assert_eq!(visits.add(-7).await.unwrap().value, -7, "below zero too");
    let elsewhere = store.connect_with(Options::new().namespace("ns")).await;
    assert_eq!(elsewhere.counter("visits").get().await.unwrap(), 0);
}

/// An addition beyond a bound is rejected, not clamped.
pub async fn addition_beyond_a_bound_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    let seats = w.counter("seats").min(0).max(10);
    assert_eq!(seats.add(8).await.unwrap().value, 8);
    let refused = seats.add(3).await.unwrap();
    assert!(!refused.added);
    assert_eq!(refused.value, 8, "as it was");
    assert_eq!(seats.get().await.unwrap(), 8);
    assert!(seats.add(2).await.unwrap().added);
    assert!(!seats.add(-11).await.unwrap().added);
    assert!(seats.add(-10).await.unwrap().added);
    assert!(!seats.add(-1).await.unwrap().added);
    assert!(seats.add(0).await.unwrap().added);
    // Compared as numbers, not as text: 9 is less than 10.
    let nine = w.counter("nine").max(10);
    assert!(nine.add(9).await.unwrap().added);
    assert!(nine.add(1).await.unwrap().added);
    assert!(!nine.add(1).await.unwrap().added);
    let negative = w.counter("negative").min(-10);
    assert!(negative.add(-9).await.unwrap().added);
    assert!(negative.add(-1).await.unwrap().added);
    assert!(!negative.add(-1).await.unwrap().added);
    // A bound set later allows a value beyond it to move back.
    let over = w.counter("over");
    assert_eq!(over.add(100).await.unwrap().value, 100);
    let over = over.max(50);
    assert!(!over.add(1).await.unwrap().added);
    assert_eq!(over.add(-1).await.unwrap().value, 99);
    // A rejected addition leaves nothing behind.
    let fresh = w.counter("fresh").max(5);
    assert_eq!(fresh.add(6).await.unwrap().value, 0);
    assert_eq!(fresh.reset().await.unwrap(), 0);
}

/// Exact to 64 bits, without overflow.
pub async fn counter_does_not_wrap_around(store: &TestStore) {
    let w = store.connect().await;
    let big = w.counter("big");
    assert_eq!(big.add(i64::MAX - 1).await.unwrap().value, i64::MAX - 1);
    assert_eq!(big.add(1).await.unwrap().value, i64::MAX);
    let refused = big.add(1).await.unwrap();
    assert_eq!((refused.added, refused.value), (false, i64::MAX));
    assert!(!big.add(i64::MAX).await.unwrap().added);
    assert_eq!(big.add(i64::MIN).await.unwrap().value, -1);
    assert!(!big.add(i64::MIN).await.unwrap().added);
    assert_eq!(big.add(i64::MIN + 1).await.unwrap().value, i64::MIN);
    assert!(!big.add(-1).await.unwrap().added);
    assert_eq!(big.reset().await.unwrap(), i64::MIN);
    // Values that a double cannot distinguish.
    let exact = w.counter("exact").max((1 << 60) + 1);
    assert_eq!(exact.add(1 << 60).await.unwrap().value, 1 << 60);
    assert!(!exact.add(2).await.unwrap().added);
    assert_eq!(exact.add(1).await.unwrap().value, (1 << 60) + 1);
    assert!(!exact.add(1).await.unwrap().added);
    assert_eq!(exact.get().await.unwrap(), (1 << 60) + 1);
}

/// A counter expires a fixed time after its first addition, however often it is used.
pub async fn counter_expires(store: &TestStore) {
    let w = store.connect().await;
    let brief = w.counter("brief").expire(ms(1200));
    assert_eq!(brief.add(5).await.unwrap().value, 5);
    tokio::time::sleep(ms(500)).await; // less than half of its TTL: no signal tells how old it is
    let second = brief.add(1).await.unwrap();
    assert!(!w.counter("brief").max(3).add(1).await.unwrap().added);
    tokio::time::sleep(ms(800)).await; // until it has expired, which no store announces
    assert_eq!(second.value, 6);
    assert_eq!(brief.get().await.unwrap(), 0, "1200 ms after it began");
    assert_eq!(brief.add(2).await.unwrap().value, 2);
}

/// A window counts recent additions only.
pub async fn a_window(store: &TestStore) {
    let w = store.connect().await;
    let recent = w.counter("recent").window(ms(600)).max(10);
    assert_eq!(recent.add(6).await.unwrap().value, 6);
    tokio::time::sleep(ms(300)).await;
    assert_eq!(recent.add(3).await.unwrap().value, 9);
    assert!(!recent.add(2).await.unwrap().added);
    tokio::time::sleep(ms(330)).await;
    assert_eq!(recent.get().await.unwrap(), 3, "the first have gone");
    assert_eq!(recent.add(-1).await.unwrap().value, 2);
    assert_eq!(recent.reset().await.unwrap(), 2);
    let huge = w.counter("huge").window(ms(60_000));
    assert!(
        !huge.add(1 << 53).await.unwrap().added,
        "beyond what sums can hold"
    );
    assert!(huge.add((1 << 53) - 1).await.unwrap().added);
    assert!(!huge.add(1).await.unwrap().added);
}

/// An operation id counts once, however often it is sent.
pub async fn add_once_counts_once(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let paid = a.counter("paid");
    let first = paid.add_once("order-7", 30).await.unwrap();
    assert_eq!(
        (first.value, first.added, first.repeated),
        (30, true, false)
    );
    assert_eq!(paid.add(5).await.unwrap().value, 35);
    for w in [&a, &b] {
        let again = w.counter("paid").add_once("order-7", 30).await.unwrap();
        assert_eq!((again.value, again.added, again.repeated), (30, true, true));
    }
    assert_eq!(paid.get().await.unwrap(), 35);
    assert!(!paid.add_once("order-8", 1).await.unwrap().repeated);
    let error = paid.add_once("order-7", 31).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(
        !a.counter("other")
            .add_once("order-7", 1)
            .await
            .unwrap()
            .repeated
    );
    // A rejected operation may be retried.
    let full = a.counter("full").max(1);
    assert!(full.add(1).await.unwrap().added);
    assert!(!full.add_once("x", 1).await.unwrap().added);
    assert_eq!(full.add(-1).await.unwrap().value, 0);
    assert!(full.add_once("x", 1).await.unwrap().added);
    // The id is forgotten eventually.
    let brief = a.counter("brief-ops").retention(ms(50));
    assert!(!brief.add_once("x", 1).await.unwrap().repeated);
    tokio::time::sleep(ms(80)).await;
    assert!(!brief.add_once("x", 1).await.unwrap().repeated);
    // Of many concurrent calls, one counts.
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let counter = b.counter("race");
            tokio::spawn(async move { counter.add_once("only", 1).await.unwrap().repeated })
        })
        .collect();
    let mut first = 0;
    for task in tasks {
        first += u64::from(!task.await.unwrap());
    }
    assert_eq!((first, b.counter("race").get().await.unwrap()), (1, 1));
}

/// Each invalid input has its own error.
pub async fn invalid_counter_input_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    let counter = w.counter("kinds");
    assert!(counter.add(1).await.unwrap().added);
    let error = counter.clone().window(ms(60_000)).add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert!(error.hint().is_some());
    counter.reset().await.unwrap();
    assert!(
        counter
            .clone()
            .window(ms(60_000))
            .add(1)
            .await
            .unwrap()
            .added
    );
    let error = counter.clone().window(ms(90_000)).add(1).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WrongType, "{error}");
    assert_eq!(
        counter.get().await.unwrap_err().kind(),
        ErrorKind::WrongType
    );
    for bad in [
        w.counter(""),
        w.counter("x").window(Duration::ZERO),
        w.counter("x").window(Duration::MAX),
        w.counter("x").expire(Duration::from_micros(1)),
        w.counter("x").expire(ms(1_000)).window(ms(1_000)),
    ] {
        assert_eq!(
            bad.add(1).await.unwrap_err().kind(),
            ErrorKind::InvalidInput
        );
    }
    for id in ["", "a\nb", &"x".repeat(257)] {
        let error = w.counter("x").add_once(id, 1).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
    }
    assert!(w.counter("x").max(5).buffered().is_err());
}

/// A buffer collects additions and sends them within the interval, on flush, and on drop.
pub async fn buffering(store: &TestStore) {
    let w = store.connect().await;
    let views = w.counter("views");
    let buffer = views.buffered_every(ms(100)).unwrap();
    for _ in 0..1_000 {
        buffer.add(1).unwrap();
    }
    let sent = eventually(SOON, || async { views.get().await.unwrap() == 1_000 });
    assert!(sent.await, "within the interval");
    assert_eq!(buffer.pending(), 0);
    let slow = views.buffered_every(Duration::from_secs(3600)).unwrap();
    slow.add(5).unwrap();
    slow.add(-2).unwrap();
    assert_eq!((slow.pending(), views.get().await.unwrap()), (3, 1_000));
    assert_eq!(
        slow.get().await.unwrap(),
        1_003,
        "with what was collected here"
    );
    slow.flush().await.unwrap();
    assert_eq!(views.get().await.unwrap(), 1_003);
    slow.flush().await.unwrap();
    slow.add(4).unwrap();
    drop(slow);
    let sent = eventually(SOON, || async { views.get().await.unwrap() == 1_007 });
    assert!(sent.await, "the rest, when dropped");
    buffer.add(i64::MAX).unwrap();
    assert!(buffer.add(1).is_err());
    assert!(buffer.flush().await.is_err(), "beyond 64 bits");
    assert_eq!(buffer.pending(), i64::MAX, "and not lost");
}

/// Closing a buffer sends the rest, reports it, and accepts no more.
pub async fn closing_a_buffer_flushes_it(store: &TestStore) {
    let w = store.connect().await;
    let views = w.counter("closed");
    let hour = Duration::from_secs(3600);
    let buffer = views.buffered_every(hour).unwrap();
    let clone = buffer.clone();
    // Repeated flushes count each sum once.
    for round in 1..=20 {
        buffer.add(round).unwrap();
        clone.add(-1).unwrap();
        buffer.flush().await.unwrap();
    }
    clone.add(7).unwrap();
    buffer.close().await.unwrap();
    assert_eq!(views.get().await.unwrap(), 210 - 20 + 7);
    let error = clone.add(1).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert_eq!(clone.pending(), 0);
    clone.close().await.unwrap();
    drop((buffer, clone));
    // A final sum that is rejected is reported and kept.
    let full = w.counter("full-buffer");
    assert!(full.add(i64::MAX).await.unwrap().added);
    let buffer = full.buffered_every(hour).unwrap();
    buffer.add(5).unwrap();
    for _ in 0..2 {
        let error = buffer.close().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Store, "{error}");
        assert!(error.to_string().contains('5'), "{error}");
        assert_eq!(buffer.pending(), 5);
    }
    assert_eq!(full.reset().await.unwrap(), i64::MAX);
    buffer.close().await.unwrap();
    assert_eq!(full.get().await.unwrap(), 5, "once");
    // Two buffers of one counter do not share operation ids.
    let both = [
        views.buffered_every(hour).unwrap(),
        views.buffered_every(hour).unwrap(),
    ];
    for buffer in &both {
        buffer.add(10).unwrap();
        buffer.close().await.unwrap();
    }
    assert_eq!(views.get().await.unwrap(), 197 + 20);
}

/// Operations of counters do not collide, even if name and id concatenate to the same text.
pub async fn operation_ids_of_different_counters_do_not_collide(store: &TestStore) {
    let w = store.connect().await;
    for (name, id) in [("a", "b c"), ("a b", "c"), ("{x}y", "1 2"), ("{x}y 1", "2")] {
        let counted = w.counter(name).add_once(id, 5).await.unwrap();
        assert!(counted.added && !counted.repeated, "{name} {id}");
        assert_eq!(w.counter(name).get().await.unwrap(), 5);
    }
}

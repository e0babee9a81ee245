//! Bloom filters.

use std::sync::Arc;
use std::time::Duration;

use windlass::{Bloom, BloomKey, Coordinator, ErrorKind};

use super::{SOON, TestStore};
use crate::eventually;

fn small(w: &Coordinator, name: &str) -> Bloom {
    w.bloom(name).capacity(1_000).error_rate(0.01)
}

/// Items inserted by any client are found.
pub async fn inserted_items_are_found(store: &TestStore) {
    let (a, b) = (
        store.connect_with_long_timeout().await,
        store.connect_with_long_timeout().await,
    );
    let (mine, yours) = (
        small(&a, "f").create().await.unwrap(),
        small(&b, "f").create().await.unwrap(),
    );
    assert!(!mine.contains("test1").await.unwrap());
    assert!(mine.insert("test1").await.unwrap());
    assert!(yours.contains("test1").await.unwrap());
    assert!(!yours.insert("test1").await.unwrap());
    assert!(!yours.contains("test2").await.unwrap());
    let other = small(&a, "g").create().await.unwrap();
    assert!(!other.contains("test1").await.unwrap(), "another filter");
    let opened = b.bloom("f").open().await.unwrap();
    assert_eq!(opened.plan(), mine.plan());
    assert!(opened.contains("test1").await.unwrap());
    // A filter with an explicit size, as large as the classic example needs.
    let by_hand = a
        .bloom("by hand")
        .sized(1 << 16, 14)
        .create()
        .await
        .unwrap();
    assert!(by_hand.insert("test1").await.unwrap());
    assert!(by_hand.contains("test1").await.unwrap());
    assert!(!by_hand.contains("test2").await.unwrap());
}

/// Of many clients that insert the same item concurrently, one learns that it was new.
pub async fn exactly_one_concurrent_insert_is_new(store: &TestStore) {
    let kinds: [fn(Bloom) -> Bloom; 3] = [
        |bloom| bloom,
        |bloom| bloom.growing(),
        |bloom| bloom.rotating(Duration::from_secs(3600)),
    ];
    // A memory store lives as long as a client is connected, and one client may end before the next
    // connects.
    let _somebody = store.connect_with_long_timeout().await;
    for (n, kind) in kinds.into_iter().enumerate() {
        let name = format!("f{n}");
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let w = store.connect_with_long_timeout().await;
            let filter = kind(w.bloom(&name).capacity(100_000).error_rate(1e-6));
            let filter = Arc::new(filter.create().await.unwrap());
            tasks.push(tokio::spawn(async move {
                let items: Vec<String> = (0..300).map(|n| format!("item {n}")).collect();
                let (first, second) = items.split_at(150);
                let mut new = filter.insert_all(first).await.unwrap();
                for item in second {
                    new.push(filter.insert(item).await.unwrap());
                }
                new
            }));
        }
        let mut new_count = vec![0; 300];
        for task in tasks {
            for (new_count, new) in new_count.iter_mut().zip(task.await.unwrap()) {
                *new_count += usize::from(new);
            }
        }
        assert!(
            new_count.iter().all(|times| *times == 1),
            "{name}: {new_count:?}"
        );
    }
}

/// Items of any bytes, and batches of any size.
pub async fn items_and_batches_of_any_size_work(store: &TestStore) {
    let w = store.connect_with_long_timeout().await;
    let filter = w.bloom("f").capacity(200_000).create().await.unwrap();
    assert!(filter.insert("").await.unwrap());
    assert!(!filter.insert([]).await.unwrap());
    let large = vec![7u8; 10 << 20];
    assert!(filter.insert(&large).await.unwrap());
    assert!(filter.contains(&large).await.unwrap());
    assert!(!filter.contains(&large[1..]).await.unwrap());
    assert!(filter.insert([0, 159, 146, 150]).await.unwrap(), "not text");

    let nothing: [&str; 0] = [];
    assert!(filter.insert_all(nothing).await.unwrap().is_empty());
    assert!(filter.contains_all(nothing).await.unwrap().is_empty());
    let twice = filter.insert_all(["x", "y", "x"]).await.unwrap();
    assert_eq!(twice, [true, true, false]);
    let many: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let new = filter.insert_all(&many).await.unwrap();
    assert_eq!(new.len(), many.len());
    let new = new.into_iter().filter(|new| *new).count();
    assert!(new > 99_800, "{new}");
    let known = filter.contains_all(&many).await.unwrap();
    assert!(known.iter().all(|known| *known), "none is forgotten");
}

/// The error rate is as low as requested, and the filter estimates its own fill.
pub async fn error_rate_and_estimates_match_parameters(store: &TestStore) {
    let w = store.connect_with_long_timeout().await;
    let capacity = 20_000;
    let filter = w.bloom("f").capacity(capacity).error_rate(0.02);
    let filter = filter.create().await.unwrap();
    let empty = filter.info().await.unwrap();
    assert_eq!((empty.estimate, empty.error_rate), (0, 0.0));
    let items: Vec<String> = (0..capacity).map(|n| n.to_string()).collect();
    filter.insert_all(&items).await.unwrap();
    let strangers: Vec<String> = (0..100_000).map(|n| format!("stranger {n}")).collect();
    let known = filter.contains_all(&strangers).await.unwrap();
    let rate = known.iter().filter(|known| **known).count() as f64 / 100_000.0;
    assert!((rate / 0.02 - 1.0).abs() < 0.1, "{rate}");
    let info = filter.info().await.unwrap();
    assert!(
        (info.estimate as f64 / capacity as f64 - 1.0).abs() < 0.02,
        "{info:?}"
    );
    assert!((info.error_rate / 0.02 - 1.0).abs() < 0.1, "{info:?}");
    let theory = -(0.02f64.ln()) / std::f64::consts::LN_2.powi(2);
    let bits = info.bits as f64 / capacity as f64;
    assert!((bits / theory - 1.0).abs() < 0.02, "{bits}");
    assert_eq!(info.bytes, info.bits.div_ceil(8));
}

/// Two items that XXH3 cannot tell apart: see the tests of `windlass_core::bloom::BloomKey`.
fn crafted_items() -> [Vec<u8>; 2] {
    [[1, 1], [2, 0]].map(|[first, second]| {
        let mut item = vec![0; 256];
        item[..5].copy_from_slice(&[0xb8, 0xfe, 0x6c, 0x39, first]);
        item[64..69].copy_from_slice(&[0x7c, 0x01, 0x81, 0x2c, second]);
        item
    })
}

/// With a key, crafted items do not collide, and clients without that key are refused.
pub async fn keyed_filter_refuses_other_keys(store: &TestStore) {
    let w = store.connect_with_long_timeout().await;
    let [key, other] = [[1; 32], [2; 32]].map(|secret| BloomKey::new(&secret).unwrap());
    let minute = Duration::from_secs(60);
    let kinds: [fn(Bloom, Duration) -> Bloom; 3] = [
        |bloom, _| bloom,
        |bloom, _| bloom.growing(),
        |bloom, window| bloom.rotating(window),
    ];
    for (i, kind) in kinds.into_iter().enumerate() {
        let plain = kind(small(&w, &format!("plain-{i}")), minute);
        let plain = plain.create().await.unwrap();
        let new = plain.insert_all(crafted_items()).await.unwrap();
        assert_eq!(new, [true, false], "they collide");

        let name = format!("keyed-{i}");
        let bloom = || kind(small(&w, &name), minute);
        let filter = bloom().keyed(key.clone()).create().await.unwrap();
        let new = filter.insert_all(crafted_items()).await.unwrap();
        assert_eq!(new, [true, true], "they do not");
        let again = w.bloom(&name).keyed(key.clone()).open().await.unwrap();
        assert!(again.contains_all(crafted_items()).await.unwrap()[1]);
        assert!(!again.insert(&crafted_items()[0]).await.unwrap());
        let before = filter.info().await.unwrap();

        for (stranger, word) in [
            (bloom(), "with a key"),
            (bloom().keyed(other.clone()), "another key"),
            (w.bloom(&name), "with a key"),
            (w.bloom(&name).keyed(other.clone()), "another key"),
        ] {
            let refused = stranger.open().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
            assert!(refused.to_string().contains(word), "{refused}");
        }
        for stranger in [bloom(), bloom().keyed(other.clone())] {
            let refused = stranger.create().await.unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
        }
        assert_eq!(filter.info().await.unwrap(), before, "left as it was");
        let refused = w
            .bloom(&format!("plain-{i}"))
            .keyed(key.clone())
            .open()
            .await;
        let refused = refused.unwrap_err();
        assert!(refused.to_string().contains("without a key"), "{refused}");

        // A handle whose filter was created again with another key.
        assert!(w.bloom(&name).remove().await.unwrap(), "without its key");
        assert!(!w.bloom(&name).remove().await.unwrap());
        let recreated = bloom().keyed(other.clone()).create().await.unwrap();
        let gone = filter.insert("x").await.unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::NotFound, "{gone}");
        assert!(recreated.insert("x").await.unwrap());
        let shown = format!("{recreated:?}");
        assert!(
            shown.contains("BloomKey(***)") && !shown.contains("2, 2"),
            "{shown}"
        );
    }
    let [one, two] = ["one", "two"].map(|name| small(&w, name));
    let one = one.keyed(key.clone()).create().await.unwrap();
    let two = two.keyed(other).create().await.unwrap();
    let refused = one.union(&two).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
    let three = small(&w, "three").keyed(key).create().await.unwrap();
    three.insert("z").await.unwrap();
    one.union(&three).await.unwrap();
    assert!(one.contains("z").await.unwrap());
}

/// Different parameters are rejected and change nothing.
pub async fn different_parameters_are_rejected(store: &TestStore) {
    let (a, b) = (
        store.connect_with_long_timeout().await,
        store.connect_with_long_timeout().await,
    );
    let filter = small(&a, "f").create().await.unwrap();
    filter.insert("x").await.unwrap();
    let before = filter.info().await.unwrap();
    for other in [
        b.bloom("f").capacity(1_001).error_rate(0.01),
        b.bloom("f").capacity(1_000).error_rate(0.011),
        b.bloom("f").sized(9_586, 7),
        small(&b, "f").growing(),
        small(&b, "f").rotating(Duration::from_secs(60)),
    ] {
        let refused = other.create().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
        assert!(refused.hint().is_some());
        assert_eq!(other.open().await.unwrap_err().kind(), ErrorKind::Mismatch);
    }
    assert_eq!(filter.info().await.unwrap(), before);
    // A handle from before the filter was recreated with other parameters.
    assert!(b.bloom("f").open().await.unwrap().remove().await.unwrap());
    assert_eq!(
        filter.insert("y").await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let larger = b.bloom("f").capacity(5_000).create().await.unwrap();
    for n in 0..50 {
        let stale = filter.insert(n.to_string()).await.unwrap_err();
        assert_eq!(stale.kind(), ErrorKind::NotFound, "{stale}");
        let stale = filter.contains(n.to_string()).await.unwrap_err();
        assert_eq!(stale.kind(), ErrorKind::NotFound, "{stale}");
    }
    assert_eq!(larger.info().await.unwrap().estimate, 0, "left as it was");
    assert!(!filter.remove().await.unwrap(), "nor is it removed");
    assert!(larger.insert("z").await.unwrap());
    // Recreated with the same parameters: empty.
    larger.remove().await.unwrap();
    let again = small(&a, "f").create().await.unwrap();
    assert!(!again.contains("x").await.unwrap());
    assert_eq!(again.info().await.unwrap().estimate, 0);
}

/// Each invalid input has its own error.
pub async fn invalid_input_is_rejected(store: &TestStore) {
    let w = store.connect_with_long_timeout().await;
    let f = |name: &str| w.bloom(name);
    for bad in [
        f("f"),
        f("f").error_rate(0.01),
        f("f").capacity(0),
        f("f").capacity(1).error_rate(0.0),
        f("f").capacity(1).error_rate(0.51),
        f("f").capacity(1).error_rate(f64::NAN),
        f("f").capacity(u64::MAX),
        f("f").sized(0, 1),
        f("f").sized(1, 0),
        f("f").sized(1 << 50, 1),
        f("f").sized(100, 65),
        f("f").sized(100, 3).growing(),
        f("f").capacity(9).rotating(Duration::ZERO),
        f("f")
            .capacity(9)
            .rotating(Duration::from_secs(1))
            .slices(1),
        f("").capacity(1),
    ] {
        let refused = bad.create().await.unwrap_err();
        assert_eq!(
            refused.kind(),
            ErrorKind::InvalidInput,
            "{bad:?}: {refused}"
        );
    }
    let missing = w.bloom("f").open().await.unwrap_err();
    assert_eq!(missing.kind(), ErrorKind::NotFound);
    assert!(missing.hint().is_some());
    // The smallest filter.
    let one = w
        .bloom("one")
        .capacity(1)
        .error_rate(0.5)
        .create()
        .await
        .unwrap();
    assert!(one.insert("x").await.unwrap());
}

/// Beyond its capacity, a growing filter opens a new generation and keeps its error rate.
pub async fn growing_filter_exceeds_its_capacity(store: &TestStore) {
    let (a, b) = (
        store.connect_with_long_timeout().await,
        store.connect_with_long_timeout().await,
    );
    let filter = small(&a, "f").growing().create().await.unwrap();
    let other = b.bloom("f").open().await.unwrap();
    let items: Vec<String> = (0..10_000).map(|n| n.to_string()).collect();
    let mut new = Vec::new();
    for (n, part) in items.chunks(1_700).enumerate() {
        let who = if n % 2 == 0 { &filter } else { &other };
        new.extend(who.insert_all(part).await.unwrap());
    }
    let new = new.into_iter().filter(|new| *new).count();
    assert!(new > 9_900, "{new}");
    for filter in [&filter, &other] {
        let known = filter.contains_all(&items).await.unwrap();
        assert!(known.iter().all(|known| *known), "none is forgotten");
    }
    let info = filter.info().await.unwrap();
    assert_eq!(info.generations, 4, "of 1,000, 2,000, 4,000 and 8,000");
    assert!(
        (info.estimate as f64 / 10_000.0 - 1.0).abs() < 0.05,
        "{info:?}"
    );
    assert!(info.error_rate < 0.01, "{info:?}");
    let strangers: Vec<String> = (0..50_000).map(|n| format!("stranger {n}")).collect();
    let wrong = filter.contains_all(&strangers).await.unwrap();
    let wrong = wrong.into_iter().filter(|known| *known).count();
    assert!(wrong < 550, "{wrong} of 50,000 at an error rate of 0.01");
    assert!(filter.remove().await.unwrap());
    let again = small(&a, "f").growing().create().await.unwrap();
    assert_eq!(again.info().await.unwrap().estimate, 0, "all of it is gone");
}

/// A rotating filter keeps items for its window, and forgets them after two.
pub async fn rotating_filter_forgets_after_two_windows(store: &TestStore) {
    let w = store.connect_with_long_timeout().await;
    let window = Duration::from_millis(400);
    let filter = small(&w, "f").rotating(window).create().await.unwrap();
    let start = std::time::Instant::now();
    assert!(filter.insert("x").await.unwrap());
    let known = filter.contains("x").await.unwrap();
    assert!(known || start.elapsed() > window, "within the window");
    let forgotten = eventually(SOON, || async { !filter.contains("x").await.unwrap() }).await;
    assert!(forgotten);
    assert!(start.elapsed() >= window, "{:?}", start.elapsed());
    assert!(filter.insert("x").await.unwrap(), "new again");
    assert!(!filter.insert("x").await.unwrap());
    assert!(filter.remove().await.unwrap());
    let again = small(&w, "f").rotating(window).create().await.unwrap();
    assert!(!again.contains("x").await.unwrap(), "all of it is gone");
}

/// Merges two filters.
pub async fn union_contains_items_of_both(store: &TestStore) {
    let (a, b) = (
        store.connect_with_long_timeout().await,
        store.connect_with_long_timeout().await,
    );
    let (left, right) = (
        small(&a, "left").create().await.unwrap(),
        small(&b, "right").create().await.unwrap(),
    );
    left.insert_all(["a", "b"]).await.unwrap();
    right.insert_all(["b", "c"]).await.unwrap();
    left.union(&right).await.unwrap();
    let all = ["a", "b", "c"];
    assert_eq!(left.contains_all(all).await.unwrap(), [true; 3]);
    assert_eq!(right.contains_all(all).await.unwrap(), [false, true, true]);
    assert!(!left.contains("d").await.unwrap());
    assert!(left.insert("d").await.unwrap(), "it goes on as before");
    left.union(&left).await.unwrap();
    let odd = b.bloom("odd").capacity(7).create().await.unwrap();
    assert_eq!(
        left.union(&odd).await.unwrap_err().kind(),
        ErrorKind::Mismatch
    );
    let grows = small(&a, "g").growing().create().await.unwrap();
    let refused = grows.union(&grows).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
    right.clone().remove().await.unwrap();
    assert_eq!(
        left.union(&right).await.unwrap_err().kind(),
        ErrorKind::NotFound
    );
    let [left, right] =
        ["large-left", "large-right"].map(|name| a.bloom(name).capacity(30_000_000));
    let (left, right) = (left.create().await.unwrap(), right.create().await.unwrap());
    assert!(left.plan().shape.shards > 1);
    let items: Vec<String> = (0..20).map(|n| n.to_string()).collect();
    right.insert_all(&items).await.unwrap();
    left.union(&right).await.unwrap();
    assert_eq!(left.contains_all(&items).await.unwrap(), [true; 20]);
    for filter in [left, right] {
        filter.remove().await.unwrap();
    }
}

/// A filter larger than the longest Redis string.
pub async fn larger_than_512_mib(store: &TestStore) {
    let w = store.connect_with_long_timeout().await;
    let filter = w.bloom("f").capacity(500_000_000).create().await.unwrap();
    assert!(filter.plan().shape.bytes() > 512 << 20);
    assert!(filter.plan().shape.shards > 1);
    let items: Vec<String> = (0..200).map(|n| n.to_string()).collect();
    assert_eq!(filter.insert_all(&items).await.unwrap(), [true; 200]);
    assert_eq!(filter.contains_all(&items).await.unwrap(), [true; 200]);
    assert_eq!(filter.insert_all(&items).await.unwrap(), [false; 200]);
    assert!(!filter.contains("stranger").await.unwrap());
    assert_eq!(filter.info().await.unwrap().estimate, 200);
    assert!(filter.remove().await.unwrap());
}

//! No two keys are alike, and none changes its name.

use super::*;

fn name(text: &str) -> Name {
    Name::new("test", None, text).unwrap()
}

fn slot(key: &str) -> u16 {
    slots::of_key(key.as_bytes())
}

const NAMES: [&str; 11] = [
    "invoice/42",
    "a b c",
    "{user}:1",
    "x{user}y}z",
    "{}abc",
    "a}b",
    "}{",
    "{",
    "{{x}}",
    "foo{bar",
    "foo{}{bar}",
];

fn clients() -> impl Iterator<Item = Keys> {
    [None, Some("acme")]
        .into_iter()
        .map(|prefix| Keys::with_prefix(prefix).unwrap())
}

#[test]
fn every_key_has_the_prefix_and_the_slot_of_the_lock() {
    for k in clients() {
        for text in NAMES {
            let n = name(text);
            let owner = Owner::random();
            let pools = Kind::ALL.into_iter().flat_map(|kind| k.pool(kind, &n));
            let keys = [
                k.queue(&n),
                k.claim(&n, &owner),
                k.gate(&n),
                k.limit(&n),
                k.hold(&n, &Owner::random()),
                k.counter(&n),
                k.counter_op(&n, "{x}"),
                k.bloom(&n),
                k.bloom_bits(&n, 7),
                k.bloom_made(&n),
                k.bloom_grown(&n, 7),
                k.permissions(&n, "aBcD"),
                k.seen(&n) + " item",
                k.once(&n),
                k.wait(&n),
            ];
            let keys = keys.into_iter().chain(k.latch(&n)).chain(pools);
            for key in keys.chain(k.permission_schema(&n)) {
                assert_eq!(slot(&key), slot(&k.lock(&n)), "{key} for {text}");
                assert_eq!(slot(&key), k.slot(&n), "{key} for {text}");
                assert!(key.starts_with(&k.prefix), "{key}");
            }
            let channel = k.notifications(&Channel {
                kind: "topic",
                name: n.clone(),
            });
            let others = [k.fence(), k.master_epoch(), &k.joined(), &k.wake_channel(7)];
            for other in others.into_iter().chain([channel.as_str(), &k.lock(&n)]) {
                assert!(other.starts_with(&k.prefix), "{other}");
            }
        }
    }
}

#[test]
fn names_are_parsed_from_keys_and_keys_differ() {
    let owner = Owner::new("host:1:{x}:}").unwrap();
    let mut seen = std::collections::HashSet::new();
    for k in clients() {
        for text in NAMES {
            let key = k.claim(&name(text), &owner);
            assert_eq!(k.claim_of_key(&key), Some((Kind::Lock, text)));
            for kind in &Kind::ALL[1..] {
                let [state, holders, queue_key] = k.pool(*kind, &name(text));
                assert_eq!(k.claim_of_key(&state), Some((*kind, text)));
                assert_eq!(
                    (k.claim_of_key(&holders), k.claim_of_key(&queue_key)),
                    (None, None)
                );
            }
            assert_eq!(k.limiter_of_key(&k.limit(&name(text))), Some(text));
            assert!(seen.insert(k.queue(&name(text))));
        }
    }
    let [plain, prefixed] = [None, Some("acme")].map(|p| Keys::with_prefix(p).unwrap());
    assert_eq!(
        plain.claim_of_key(&prefixed.claim(&name("a"), &owner)),
        None
    );
    assert_eq!(
        prefixed.claim_of_key(&plain.claim(&name("a"), &owner)),
        None
    );
    assert_eq!(prefixed.limiter_of_key(&plain.limit(&name("a"))), None);
}

/// Keys of clients without a prefix are the same as ever.
#[test]
fn keys_without_a_prefix_do_not_change() {
    let (keys, n) = (Keys::default(), name("a"));
    assert_eq!(keys.lock(&n), "a");
    assert_eq!(keys.queue(&n), "windlass:lock:line:{a}");
    assert_eq!(keys.fence(), "windlass:fence");
    assert_eq!(keys.master_epoch(), "windlass:reign");
    assert_eq!(keys.joined(), "windlass:quorum:joined");
    assert_eq!(keys.wake_channel(1), "windlass:wake:0000000000000001");
    let latch = Channel {
        kind: "latch",
        name: n,
    };
    assert_eq!(
        keys.notifications(&latch),
        "windlass:news:windlass:latch:{a}"
    );
    let keys = Keys::with_prefix(Some("acme")).unwrap();
    let expected = "acme:windlass:news:windlass:latch:{acme:a}";
    assert_eq!(keys.notifications(&latch), expected);
}

#[test]
fn prefixes_that_another_client_could_reach_are_rejected() {
    let long = "x".repeat(Keys::MAX_PREFIX + 1);
    for wrong in [
        "",
        "a:b",
        "a*",
        "{a}",
        "a b",
        "windlass",
        "my-windlass",
        "ä",
        &long,
    ] {
        assert!(Keys::with_prefix(Some(wrong)).is_err(), "{wrong}");
    }
    for right in ["acme", "Acme-2_x.y", &long[1..]] {
        assert!(Keys::with_prefix(Some(right)).is_ok(), "{right}");
    }
}

#[test]
fn each_slot_has_its_own_fence_counter() {
    for k in clients() {
        for number in [0, 1, 4711, SLOTS - 1] {
            for key in k.fences(number) {
                assert_eq!(slot(&key), number, "{key}");
            }
        }
    }
    assert_eq!(Keys::default().slot(&name("x{user}y")), slot("user"));
}

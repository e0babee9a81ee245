//! Permissions.

use windlass::{Coordinator, ErrorKind, PermissionSpace};

use super::TestStore;
use super::cancel::cancel_after;

async fn repos(w: &Coordinator) -> PermissionSpace {
    w.permissions("repos")
        .levels(["no", "read", "write", "read-write"])
        .resources(["repo1", "repo2", "repo3"])
        .define()
        .await
        .unwrap()
}

/// The output of the classic example.
pub async fn classic_piers_and_fiers_example(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let space = repos(&a).await;
    space.set("Piers", "repo1", "read-write").await.unwrap();
    space.set("Piers", "repo2", "read").await.unwrap();
    space.set("Fiers", "repo3", "no").await.unwrap();
    let elsewhere = b.permissions("repos").open().await.unwrap();
    for (subject, resource, level) in [
        ("Piers", "repo1", "read-write"),
        ("Piers", "repo2", "read"),
        ("Piers", "repo3", "no"),
        ("Fiers", "repo3", "no"),
        ("nobody", "repo1", "no"),
    ] {
        assert_eq!(elsewhere.get(subject, resource).await.unwrap(), level);
    }
    let listed = elsewhere.list("Piers").await.unwrap();
    let listed: Vec<_> = listed.iter().map(|(r, l)| (r.as_str(), l.name())).collect();
    assert_eq!(
        listed,
        [("repo1", "read-write"), ("repo2", "read"), ("repo3", "no")]
    );
    let before = space.set("Piers", "repo1", "read").await.unwrap();
    assert_eq!(before, "read-write", "the previous level is returned");
}

/// A higher level includes the lower ones.
pub async fn higher_level_includes_lower_levels(store: &TestStore) {
    let w = store.connect().await;
    let space = repos(&w).await;
    space.set("ann", "repo1", "write").await.unwrap();
    for (level, allowed) in [
        ("no", true),
        ("read", true),
        ("write", true),
        ("read-write", false),
    ] {
        let check = space.check("ann", "repo1", level).await.unwrap();
        assert_eq!(check, allowed, "{level}");
    }
    assert!(!space.check("ann", "repo2", "read").await.unwrap());
    assert!(!space.check("bob", "repo1", "read").await.unwrap());
    assert!(space.clear("ann").await.unwrap());
    assert!(!space.clear("ann").await.unwrap());
    assert!(!space.check("ann", "repo1", "read").await.unwrap());
}

/// Flags are granted and revoked separately, by several clients at once.
pub async fn flags_are_granted_and_revoked_separately(store: &TestStore) {
    let w = store.connect().await;
    let flags: Vec<String> = (0..20).map(|n| format!("f{n}")).collect();
    let space = w.permissions("files").flags(&flags).resources(["a", "b"]);
    let space = space.define().await.unwrap();
    space.set("ann", "b", "f0|f2").await.unwrap();
    assert_eq!(space.get("ann", "b").await.unwrap(), "f0|f2");
    assert_eq!(space.get("ann", "a").await.unwrap(), "none");
    assert_eq!(space.grant("ann", "b", "f1|f2").await.unwrap(), "f2", "had");
    assert_eq!(space.get("ann", "b").await.unwrap(), "f0|f1|f2");
    assert_eq!(space.revoke("ann", "b", "f0+f19").await.unwrap(), "f0");
    assert_eq!(space.get("ann", "b").await.unwrap(), "f1|f2");
    assert!(space.check("ann", "b", "f2").await.unwrap());
    assert!(space.check("ann", "b", "f1|f2").await.unwrap());
    assert!(!space.check("ann", "b", "f0|f1").await.unwrap());
    assert!(space.check("ann", "b", "none").await.unwrap());
    // Concurrently: none undoes another.
    let mut tasks = Vec::new();
    for flag in flags {
        let space = store
            .connect()
            .await
            .permissions("files")
            .open()
            .await
            .unwrap();
        tasks.push(tokio::spawn(async move {
            space.grant("bob", "a", &flag).await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let all = space.get("bob", "a").await.unwrap();
    assert_eq!(all.value(), (1 << 20) - 1, "{all}");
    let ranked = repos(&w).await;
    let refused = ranked.grant("ann", "repo1", "read").await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
}

/// Many subjects and resources in one round trip, in order.
pub async fn many_subjects_and_resources_in_one_call(store: &TestStore) {
    let w = store.connect().await;
    let resources: Vec<String> = (0..100).map(|n| format!("r{n}")).collect();
    let space = w.permissions("many").levels(["no", "some", "all"]);
    let space = space.resources(&resources).define().await.unwrap();
    let subjects: Vec<String> = (0..50).map(|n| format!("s{n}")).collect();
    let level = |s: usize, r: usize| ["no", "some", "all"][(s * 7 + r) % 3];
    let pairs = || (0..50).flat_map(|s| (0..100).map(move |r| (s, r)));
    let given = pairs().map(|(s, r)| (&*subjects[s], &*resources[r], level(s, r)));
    let before = space.set_all(given.clone()).await.unwrap();
    assert_eq!(before.len(), 5_000);
    assert!(before.iter().all(|level| *level == "no"));
    let asked = pairs().map(|(s, r)| (&*subjects[s], &*resources[r]));
    let found = space.get_all(asked).await.unwrap();
    for ((s, r), found) in pairs().zip(&found) {
        assert_eq!(*found, level(s, r), "{s} {r}");
    }
    assert_eq!(
        space.set_all(given.clone()).await.unwrap(),
        found,
        "as they were"
    );
    assert!(space.check_all(given).await.unwrap().iter().all(|yes| *yes));
    let mixed = [
        ("s0", "r0", "some"),
        ("s9", "r99", "no"),
        ("s0", "r1", "some"),
    ];
    let expected: Vec<bool> = [("s0", 0, 0), ("s9", 9, 99), ("s0", 0, 1)]
        .into_iter()
        .zip([1, 0, 1])
        .map(|((_, s, r), needs)| (s * 7 + r) % 3 >= needs)
        .collect();
    assert_eq!(space.check_all(mixed).await.unwrap(), expected);
    // The same field twice: in order.
    let twice = [("t", "r5", "some"), ("t", "r5", "all")];
    let before = space.set_all(twice).await.unwrap();
    assert_eq!(before, ["no", "some"]);
    assert!(space.set_all([]).await.unwrap().is_empty());
    assert!(space.get_all([]).await.unwrap().is_empty());
}

/// Names are appended; programs that know fewer keep working.
pub async fn schema_is_append_only(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let old = a.permissions("s").levels(["no", "read", "write"]);
    let old = old.resources(["x", "y"]).define().await.unwrap();
    old.set("ann", "y", "write").await.unwrap();
    let new = b.permissions("s").levels(["no", "read", "write", "own"]);
    let new = new.resources(["x", "y", "z"]).define().await.unwrap();
    assert_eq!(new.schema().version, 2);
    assert_eq!(new.get("ann", "y").await.unwrap(), "write");
    new.set("ann", "z", "own").await.unwrap();
    new.set("ann", "x", "own").await.unwrap();
    assert_eq!(
        old.get("ann", "z").await.unwrap(),
        "own",
        "found out by itself"
    );
    assert!(old.check("ann", "x", "write").await.unwrap());
    assert_eq!(old.list("ann").await.unwrap().len(), 3);
    let again = a.permissions("s").levels(["no", "read"]).resources(["x"]);
    assert_eq!(
        again.define().await.unwrap().schema().version,
        2,
        "a beginning"
    );
    for other in [
        a.permissions("s")
            .levels(["no", "write", "read"])
            .resources(["x", "y"]),
        a.permissions("s")
            .levels(["no", "read"])
            .resources(["y", "x"]),
        a.permissions("s").flags(["no", "read"]).resources(["x"]),
        a.permissions("s")
            .levels(["no", "read"])
            .bits(5)
            .resources(["x"]),
        a.permissions("s")
            .levels(["no", "read", "write", "own", "more"]),
    ] {
        let refused = other.define().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Mismatch, "{refused}");
        assert!(refused.hint().is_some());
    }
    // Concurrent additions: all clients agree.
    let mut tasks = Vec::new();
    for n in 1..=8 {
        let w = store.connect().await;
        tasks.push(tokio::spawn(async move {
            let names: Vec<String> = (0..n).map(|n| format!("r{n}")).collect();
            let space = w.permissions("race").levels(["no", "yes"]).resources(names);
            space.define().await.unwrap();
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let race = a.permissions("race").open().await.unwrap();
    assert_eq!(race.schema().resources.len(), 8);
}

/// Each invalid input has its own error, and nothing is written.
pub async fn invalid_input_is_rejected(store: &TestStore) {
    let w = store.connect().await;
    let p = |name: &str| w.permissions(name);
    for bad in [
        p("s"),
        p("s").levels(["one"]),
        p("s").levels(["a", "a"]),
        p("s").levels(["a", ""]),
        p("s").levels(["a", "b"]).resources(["x", "x"]),
        p("s").levels(["a", "b"]).resources(["x\n"]),
        p("s").levels(["a", "b"]).bits(40),
        p("").levels(["a", "b"]),
    ] {
        let refused = bad.define().await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    }
    assert_eq!(p("s").open().await.unwrap_err().kind(), ErrorKind::NotFound);
    let space = repos(&w).await;
    for (subject, resource, level, word) in [
        ("ann", "repo9", "read", "repo9"),
        ("ann", "repo1", "nonsense", "nonsense"),
        ("", "repo1", "read", "subject"),
        ("a\tb", "repo1", "read", "subject"),
    ] {
        let refused = space.set(subject, resource, level).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
        assert!(refused.to_string().contains(word), "{refused}");
        assert!(refused.hint().is_some());
        let refused = space.check(subject, resource, level).await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    }
    let half = [("ann", "repo1", "read"), ("ann", "repo9", "read")];
    assert!(space.set_all(half).await.is_err());
    assert_eq!(
        space.get("ann", "repo1").await.unwrap(),
        "no",
        "not by half"
    );
}

/// All subjects with a level are listed, and their memory is reported.
pub async fn subjects_with_a_level_are_listed(store: &TestStore) {
    let w = store.connect().await;
    let space = repos(&w).await;
    // Adjacent resources with similar names.
    let other = w
        .permissions("repos2")
        .levels(["no", "read"])
        .resources(["repo1"]);
    let other = other.define().await.unwrap();
    other.set("stranger", "repo1", "read").await.unwrap();
    let odd = w
        .permissions("re*")
        .levels(["no", "read"])
        .resources(["repo1"]);
    let odd = odd.define().await.unwrap();
    odd.set("odd", "repo1", "read").await.unwrap();
    let names: Vec<String> = (0..3_000).map(|n| format!("user {n}")).collect();
    let level = |n: usize| ["no", "read", "write", "read-write"][n % 4];
    let given = (0..3_000).map(|n| (&*names[n], "repo2", level(n)));
    space.set_all(given).await.unwrap();
    let found = space.who_has("repo2", "write").await.unwrap();
    assert_eq!(found.len(), 1_500);
    for (name, level) in &found {
        let n: usize = name.strip_prefix("user ").unwrap().parse().unwrap();
        assert_eq!(*level, ["no", "read", "write", "read-write"][n % 4]);
    }
    assert!(space.who_has("repo1", "read").await.unwrap().is_empty());
    let odd_ones = odd.who_has("repo1", "read").await.unwrap();
    assert_eq!(odd_ones.len(), 1, "a star means itself");
    let (mut scan, mut last, mut pages) = (space.scan(), 0.0, 0);
    while let Some(page) = scan.next_holders("repo2", "read").await.unwrap() {
        assert!(page.progress >= last && page.progress <= 1.0);
        last = page.progress;
        pages += 1;
    }
    assert!(last == 1.0 && pages > 1, "{pages} pages, {last}");
    let stats = space.stats().await.unwrap();
    assert_eq!(stats.subjects, 3_000);
    assert!(stats.bytes > 3_000 * 9, "{stats:?}");
    let unknown = space.who_has("repo9", "read").await.unwrap_err();
    assert_eq!(unknown.kind(), ErrorKind::InvalidInput);
}

/// A removed resource does not come back with another meaning.
pub async fn removed_resource_does_not_come_back(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    for name in ["repos", "{b}races", "c}"] {
        let space = |w: &Coordinator| w.permissions(name).levels(["no", "read", "own"]);
        let old = space(&a).resources(["x", "y"]).define().await.unwrap();
        old.set("ann", "x", "own").await.unwrap();
        let stale = b.permissions(name).open().await.unwrap();
        assert!(old.remove().await.unwrap());
        let refused = stale.set("ann", "y", "own").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        let new = space(&a).resources(["y", "x"]).define().await.unwrap();
        assert_eq!(new.get("ann", "x").await.unwrap(), "no");
        let refused = stale.set("ann", "y", "own").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "another schema's");
        assert_eq!(new.get("ann", "x").await.unwrap(), "no", "left as it was");
        let refused = stale.get("ann", "y").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound, "nobody gains");
        assert_eq!(
            stale.clear("ann").await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert_eq!(
            stale.who_has("x", "own").await.unwrap_err().kind(),
            ErrorKind::NotFound
        );
        assert_eq!(stale.stats().await.unwrap_err().kind(), ErrorKind::NotFound);
        assert!(!stale.remove().await.unwrap());
        new.set("ann", "x", "read").await.unwrap();
        assert_eq!(new.stats().await.unwrap().subjects, 1);
    }
}

/// An interrupted removal denies immediately; it can be resumed, and nothing comes back.
pub async fn interrupted_removal_denies(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let subjects: Vec<String> = (0..2_500).map(|n| format!("user {n}")).collect();
    let given = || {
        subjects
            .iter()
            .map(|name| (name.as_str(), "repo1", "write"))
    };
    let mut interrupted = 0;
    // Sooner and later: the later, the less the exact moment matters.
    for polls in std::iter::successors(Some(1), |polls| Some(polls + polls / 4 + 1)).take(30) {
        let space = repos(&a).await;
        space.set_all(given()).await.unwrap();
        let stale = b.permissions("repos").open().await.unwrap();
        let removed = cancel_after(polls, space.remove()).await;
        if removed.is_none() {
            // A request that was sent may be executed later.
            interrupted += 1;
        }
        let (subject, resource, level) = given().next_back().unwrap();
        match stale.check(subject, resource, level).await {
            // Nothing has happened yet.
            Ok(allowed) => assert!(removed.is_none() && allowed, "a grant is there by half"),
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::NotFound, "{e}");
                assert!(stale.set(subject, resource, level).await.is_err());
                assert!(stale.check_all(given()).await.is_err());
            }
        }
        if interrupted % 2 == 0 {
            // Resumed by name, whatever is left.
            b.permissions("repos").remove().await.unwrap();
            assert!(!b.permissions("repos").remove().await.unwrap());
            assert_eq!(
                stale
                    .check(subject, resource, level)
                    .await
                    .unwrap_err()
                    .kind(),
                ErrorKind::NotFound
            );
        } else if stale.check(subject, resource, level).await.is_ok() {
            b.permissions("repos").remove().await.unwrap();
        }
        let recreated = repos(&b).await;
        assert!(recreated.who_has("repo1", "read").await.unwrap().is_empty());
        assert_eq!(recreated.stats().await.unwrap().subjects, 0);
        assert!(stale.check(subject, resource, level).await.is_err());
        recreated.remove().await.unwrap();
        if removed.is_some() {
            assert!(interrupted > 0 || polls == 1);
            return;
        }
    }
    panic!("a removal takes more than a thousand polls");
}

/// All grants to one subject in one call are atomic; too many are rejected.
pub async fn grants_to_one_subject_are_atomic(store: &TestStore) {
    let (a, b) = (
        store.connect_with_long_timeout().await,
        store.connect_with_long_timeout().await,
    );
    let resources: Vec<String> = (0..20_000).map(|n| format!("r{n}")).collect();
    let space = a.permissions("wide").levels(["no", "read", "write"]);
    let space = space.resources(&resources).define().await.unwrap();
    let elsewhere = b.permissions("wide").open().await.unwrap();
    let all = |level| resources.iter().map(move |r| ("ann", r.as_str(), level));
    let asked = || resources.iter().map(|r| ("ann", r.as_str()));
    let writing = tokio::spawn({
        let (space, resources) = (space.clone(), resources.clone());
        async move {
            for level in ["read", "write", "read", "write"] {
                let given = resources.iter().map(|r| ("ann", r.as_str(), level));
                let before = space.set_all(given).await.unwrap();
                assert!(before.iter().all(|l| *l == before[0]), "by half");
            }
        }
    });
    while !writing.is_finished() {
        let found = elsewhere.get_all(asked()).await.unwrap();
        assert!(found.iter().all(|level| *level == found[0]), "by half");
    }
    writing.await.unwrap();
    assert!(
        space
            .check_all(all("write"))
            .await
            .unwrap()
            .iter()
            .all(|yes| *yes)
    );
    // A few of many.
    let few = [("ann", "r19999"), ("ann", "r7"), ("bob", "r3")];
    assert_eq!(space.get_all(few).await.unwrap(), ["write", "write", "no"]);
    let too_much = std::iter::repeat_n(("bob", "r3", "read"), 100_001);
    let refused = space.set_all(too_much).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert!(refused.hint().is_some());
    let much = std::iter::repeat_n(("bob", "r3", "read"), 100_000);
    assert_eq!(space.set_all(much).await.unwrap().len(), 100_000);
    assert_eq!(space.get("bob", "r3").await.unwrap(), "read");
    // As many subjects.
    let subjects: Vec<String> = (0..100_000).map(|n| n.to_string()).collect();
    let given = subjects.iter().map(|s| (s.as_str(), "r1", "read"));
    assert_eq!(space.set_all(given.clone()).await.unwrap().len(), 100_000);
    assert!(space.check_all(given).await.unwrap().iter().all(|yes| *yes));
}

/// A listing by a name that was added meanwhile finds its subjects.
pub async fn subjects_with_an_added_level_are_listed(store: &TestStore) {
    let (a, b) = (store.connect().await, store.connect().await);
    let old = repos(&a).await;
    let new = b
        .permissions("repos")
        .levels(["no", "read", "write", "read-write"])
        .resources(["repo1", "repo2", "repo3", "repo4"]);
    let new = new.define().await.unwrap();
    new.set("ann", "repo4", "write").await.unwrap();
    new.set("bob", "repo3", "write").await.unwrap();
    let found = old.who_has("repo4", "read").await.unwrap();
    let found: Vec<_> = found
        .iter()
        .map(|(who, level)| (who.as_str(), level.name()))
        .collect();
    assert_eq!(found, [("ann", "write")]);
    // A listing that began before the name was added.
    let mut scan = repos(&a).await.scan();
    let more = ["repo1", "repo2", "repo3", "repo4", "repo5"];
    let newest = b
        .permissions("repos")
        .levels(["no", "read", "write", "read-write"]);
    let newest = newest.resources(more).define().await.unwrap();
    newest.set("eve", "repo5", "read").await.unwrap();
    let mut found = Vec::new();
    while let Some(page) = scan.next_holders("repo5", "read").await.unwrap() {
        found.extend(page.holders.into_iter().map(|(who, _)| who));
    }
    assert_eq!(found, ["eve"]);
}

//! Who may use an etcd, who else does, and what cannot work.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use windlass::{Coordinator, ErrorKind, Options, RetryPolicy};
use windlass_testkit::conformance::{SOON, wait_for_waiters, wait_until_free};
use windlass_testkit::{Direction, EtcdCluster, FaultProxy, eventually};

const MS: Duration = Duration::from_millis(1);

/// An `etcdctl` that wants a lock, or to be elected.
struct Neighbour {
    process: Child,
    printed: BufReader<ChildStdout>,
    /// Known once it holds.
    key: String,
}

impl Neighbour {
    fn begin(cluster: &EtcdCluster, args: &[&str]) -> Neighbour {
        let mut command = cluster.etcdctl(args);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let printed = BufReader::new(process.stdout.take().unwrap());
        Neighbour {
            process,
            printed,
            key: String::new(),
        }
    }

    /// Waits until it does.
    fn holds(mut self) -> Neighbour {
        self.printed.read_line(&mut self.key).unwrap();
        self
    }

    /// Ends it with its lease, by which its key is called: a signal may come before it listens for signals.
    fn end(mut self, cluster: &EtcdCluster) {
        let (_, lease) = self.key.trim().rsplit_once('/').unwrap();
        cluster.ctl(&["lease", "revoke", lease]).unwrap();
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_and_windlass_exclude_each_other() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    for (verb, words) in [("lock", &["door"][..]), ("elect", &["door", "theirs"][..])] {
        // Theirs first.
        let mut args = vec![verb];
        args.extend(words);
        let theirs = Neighbour::begin(&cluster, &args).holds();
        assert!(theirs.key.starts_with("door/"), "{}", theirs.key);
        let busy = match verb {
            "lock" => w.lock("door").try_acquire().await.unwrap().is_busy(),
            _ => w
                .election("door")
                .try_campaign("ours")
                .await
                .unwrap()
                .is_busy(),
        };
        assert!(busy, "{verb}: two holders");
        if verb == "elect" {
            let leader = w.election("door").leader().await.unwrap().unwrap();
            assert_eq!(leader.value, "theirs");
        }
        let waiting = tokio::spawn({
            let w = w.clone();
            async move {
                match verb {
                    "lock" => w.lock("door").acquire().await.map(drop),
                    _ => w.election("door").campaign("ours").await.map(drop),
                }
            }
        });
        tokio::time::sleep(200 * MS).await; // let it line up
        assert!(!waiting.is_finished());
        theirs.end(&cluster);
        tokio::time::timeout(2 * SOON, waiting)
            .await
            .expect("handed over")
            .unwrap()
            .unwrap();
        // Ours first.
        let lock = w.lock("door").acquire().await.unwrap();
        let theirs = Neighbour::begin(&cluster, &args);
        wait_for_waiters(&w, "door", 1).await;
        let holding = std::thread::spawn(move || (theirs.holds(), Instant::now()));
        tokio::time::sleep(100 * MS).await;
        assert!(!holding.is_finished(), "two holders");
        let released = Instant::now();
        assert!(lock.release().await.unwrap().was_held());
        let (theirs, granted) = holding.join().unwrap();
        assert!(theirs.key.starts_with("door/") && granted >= released);
        theirs.end(&cluster);
        wait_until_free(&w, "door").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcdctl_sees_our_leader_and_escaped_names() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let leader = w.election("größe/7").campaign("wir %2F sind's").await;
    let leader = leader.unwrap();
    let mut listens = cluster
        .etcdctl(&["elect", "-l", "größe/7"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let printed = BufReader::new(listens.stdout.take().unwrap());
    let seen: Vec<String> = printed.lines().take(2).map(Result::unwrap).collect();
    listens.kill().unwrap();
    listens.wait().unwrap();
    assert!(seen[0].starts_with("größe/7/elect:"), "{seen:?}");
    assert_eq!(seen[1], "wir %2F sind's");
    assert!(leader.resign().await.unwrap().was_held());
    // Theirs within our name is in nobody's way; theirs of the same name is.
    let theirs = Neighbour::begin(&cluster, &["lock", "größe/7"]).holds();
    assert!(theirs.key.starts_with("größe/7/"), "{}", theirs.key);
    assert!(w.lock("größe/7").try_acquire().await.unwrap().is_busy());
    for name in ["größe", "größe/", "größe/71", "größ", "größe/7/8"] {
        let tried = w.lock(name).try_acquire().await.unwrap();
        let guard = tried.acquired().unwrap_or_else(|| panic!("{name}"));
        assert!(guard.release().await.unwrap().was_held());
    }
    theirs.end(&cluster);
    wait_until_free(&w, "größe/7").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_claims_leave_nothing_behind() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let claims = (
        w.lock("a/b").acquire().await.unwrap(),
        w.election("b").campaign("me").await.unwrap(),
        w.semaphore("c", 3).acquire().await.unwrap(),
        w.rwlock("d").read().await.unwrap(),
        w.rwlock("e").write().await.unwrap(),
        w.locks(["f", "g"]).acquire().await.unwrap(),
        w.lock("h").without_renewal().acquire().await.unwrap(),
    );
    let busy = w.lock("a/b").acquire_within(20 * MS).await.unwrap();
    assert!(busy.is_busy());
    drop(claims);
    let left = || async {
        let keys = cluster.ctl(&["get", "", "--prefix", "--keys-only"]);
        let keys = keys.unwrap();
        let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
        keys == ["windlass:sem:c/room"] // for a day
    };
    assert!(eventually(SOON, left).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_names_and_kinds_are_independent() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let outer = w.lock("shop").acquire().await.unwrap();
    let inner = w
        .lock("shop/7")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    let leader = w
        .election("shop")
        .try_campaign("me")
        .await
        .unwrap()
        .acquired()
        .unwrap();
    let again = w.lock("shop").try_acquire().await.unwrap();
    assert!(again.is_busy());
    assert!(outer.release().await.unwrap().was_held());
    // With others' keys under the name, both ways to ask still work.
    let outer = w
        .lock("shop")
        .try_acquire()
        .await
        .unwrap()
        .acquired()
        .unwrap();
    let waiting = tokio::spawn({
        let w = w.clone();
        async move { w.lock("shop").acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "shop", 1).await;
    assert!(outer.release().await.unwrap().was_held());
    let outer = tokio::time::timeout(SOON, waiting).await.unwrap().unwrap();
    assert_eq!(w.list_locks("*").await.unwrap().len(), 2);
    drop((outer, inner, leader));
}

/// Locks within a name that come and go without a pause, until they are dropped.
async fn come_and_go(w: &Coordinator, within: &str) -> JoinSet<()> {
    let mut busy = JoinSet::new();
    for n in 0..16 {
        let lock = w.lock(&format!("{within}/{n}"));
        busy.spawn(async move {
            loop {
                let guard = lock.acquire().await.unwrap();
                // For a moment, so that there is always one that has come since others looked.
                tokio::time::sleep(5 * MS).await;
                let _ = guard.release().await;
            }
        });
    }
    let within = format!("{within}/*");
    let has_begun = || async { !w.list_locks(&within).await.unwrap().is_empty() };
    assert!(eventually(SOON, has_begun).await);
    busy
}

async fn nobody_is_left(w: &Coordinator, names: &[&str]) {
    for name in names {
        let left = w.lock(name).inspect().await.unwrap();
        assert!(left.holder.is_none() && left.waiters == 0, "{left:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_acquire_works_while_nested_names_change() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let _busy = come_and_go(&w, "shop").await;
    for _ in 0..20 {
        let tried = w.lock("shop").try_acquire().await.unwrap();
        let guard = tried.acquired().expect("nobody has it");
        let again = w.lock("shop").try_acquire().await.unwrap();
        assert!(again.is_busy());
        assert!(guard.release().await.unwrap().was_held());
    }
    nobody_is_left(&w, &["shop"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_client_gets_several_locks_while_nested_names_change() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let slow = cluster.url_of(&proxy.addr().to_string());
    let slow = windlass::connect(&slow).await.unwrap();
    let warm = slow.locks(["warm"]).acquire().await.unwrap();
    assert!(warm.release().await.unwrap().was_held());
    let _busy = come_and_go(&w, "shop").await;
    // Whatever it has seen under the name is not so any more when it decides.
    proxy.delay(Direction::ToClient, 100 * MS);
    let both = slow.locks(["shop", "yard"]).try_acquire().await.unwrap();
    let both = both.acquired().expect("nobody has either");
    let again = slow.locks(["yard", "shop"]).try_acquire().await.unwrap();
    assert!(again.is_busy());
    assert!(both.release().await.unwrap().was_held());
    nobody_is_left(&w, &["shop", "yard"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_clients_get_several_locks_while_nested_names_change() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let _busy = come_and_go(&w, "shop").await;
    let inside = Arc::new(AtomicU64::new(0));
    let mut had = 0;
    let mut tasks = JoinSet::new();
    for names in [["shop", "yard"], ["yard", "shop"], ["shop", "barn"]] {
        let (locks, inside) = (w.locks(names), Arc::clone(&inside));
        tasks.spawn(async move {
            let mut had = 0;
            for _ in 0..40 {
                let tried = locks.try_acquire().await.unwrap();
                let Some(guard) = tried.acquired() else {
                    continue;
                };
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two at once");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                assert!(guard.release().await.unwrap().was_held());
                had += 1;
            }
            had
        });
    }
    while let Some(task) = tasks.join_next().await {
        had += task.unwrap();
    }
    assert!(had > 0, "nobody had any");
    nobody_is_left(&w, &["shop", "yard", "barn"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn foreign_keys_are_left_alone() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    cluster.ctl(&["put", "config/colour", "blue"]).unwrap();
    cluster.ctl(&["put", "stock", "7"]).unwrap();
    for wait in [true, false] {
        let lock = w.lock("config");
        let e = match wait {
            true => lock.acquire().await.map(drop).unwrap_err(),
            false => lock.try_acquire().await.map(drop).unwrap_err(),
        };
        assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
        assert!(
            e.to_string().contains("config/colour") && e.hint().is_some(),
            "{e}"
        );
    }
    assert_eq!(
        cluster
            .ctl(&["get", "config/", "--prefix", "--keys-only"])
            .unwrap()
            .trim(),
        "config/colour"
    );
    // A key that is the name itself is in nobody's way.
    drop(w.lock("stock").acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_failure_leaves_no_claim_behind() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let keys = |prefix: &str| -> Vec<String> {
        let keys = cluster.ctl(&["get", prefix, "--prefix", "--keys-only"]);
        let keys = keys.unwrap();
        let keys = keys.lines().filter(|key| !key.is_empty());
        keys.map(str::to_owned).collect()
    };
    let is_foreign = |e: windlass::Error| assert_eq!(e.kind(), ErrorKind::WrongType, "{e}");
    // More locks than are taken in one step, of which the last cannot be had: first a few, then many.
    for count in [41, 170] {
        let names: Vec<String> = (0..count).map(|n| format!("many{count}/{n:03}")).collect();
        let last = format!("{}/colour", names[count - 1]);
        cluster.ctl(&["put", &last, "blue"]).unwrap();
        let locks = w.locks(&names);
        is_foreign(locks.try_acquire().await.map(drop).unwrap_err());
        assert_eq!(keys("many"), [last.as_str()]);
        cluster.ctl(&["del", &last]).unwrap();
        let other = w.lock(&names[count - 1]).acquire().await.unwrap();
        assert!(locks.try_acquire().await.unwrap().is_busy());
        assert_eq!(keys("many").len(), 1);
        assert!(other.release().await.unwrap().was_held());
        let all = tokio::time::timeout(SOON, locks.acquire()).await;
        assert!(all.unwrap().unwrap().release().await.unwrap().was_held());
    }
    // What was seen first is in nobody's way, and what is behind it is.
    cluster.ctl(&["put", "config/colour", "blue"]).unwrap();
    let within = w.lock("config/7").acquire().await.unwrap();
    is_foreign(w.lock("config").acquire().await.map(drop).unwrap_err());
    assert_eq!(keys("config/").len(), 2);
    drop(within);
    // A share that was written, and whose room cannot be understood.
    let jobs = w.semaphore("jobs", 2);
    assert!(
        jobs.acquire()
            .await
            .unwrap()
            .release()
            .await
            .unwrap()
            .was_held()
    );
    let room = keys("windlass:sem:jobs/");
    assert_eq!(room.len(), 1);
    let theirs = "windlass:sem:jobs/theirs";
    cluster.ctl(&["put", theirs, "blue"]).unwrap();
    is_foreign(jobs.acquire().await.map(drop).unwrap_err());
    let only_theirs = || async { keys("windlass:sem:jobs/") == [room[0].as_str(), theirs] };
    assert!(eventually(SOON, only_theirs).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_acquire_by_same_owner_keeps_the_waiters_wake_up() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let ttl = 60_000 * MS; // so that the next heartbeat is far away
    let holder = w.lock("stock").acquire().await.unwrap();
    let waits = w.lock("stock").owner("job").ttl(ttl);
    let waiting = tokio::spawn({
        let waits = waits.clone();
        async move { waits.acquire().await.unwrap() }
    });
    wait_for_waiters(&w, "stock", 1).await;
    tokio::time::sleep(100 * MS).await; // let it watch
    let several = w.locks(["stock", "yard"]).owner("job");
    assert!(several.try_acquire().await.unwrap().is_busy());
    assert!(waits.try_acquire().await.unwrap().is_busy());
    assert!(holder.release().await.unwrap().was_held());
    drop(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap());

    let jobs = w.semaphore("jobs", 1);
    let holder = jobs.acquire().await.unwrap();
    let waits = w.semaphore("jobs", 1).owner("job").ttl(ttl);
    let waiting = tokio::spawn({
        let waits = waits.clone();
        async move { waits.acquire().await.unwrap() }
    });
    let lined_up = || async { jobs.inspect(0).await.unwrap().waiters == 1 };
    assert!(eventually(SOON, lined_up).await);
    tokio::time::sleep(100 * MS).await; // let it watch
    assert!(waits.try_acquire().await.unwrap().is_busy());
    assert!(holder.release().await.unwrap().was_held());
    drop(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_passed_over_as_too_heavy_gets_a_higher_fence() {
    let cluster = EtcdCluster::start().unwrap();
    let proxy = FaultProxy::start(cluster.addr(0)).unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let far = cluster.url_of(&proxy.addr().to_string());
    let far = windlass::connect(&far).await.unwrap();
    let large = w.semaphore("jobs", 4);
    let held = large.acquire_many(2).await.unwrap();
    let patient = RetryPolicy::tries(100);
    let waits = far.semaphore("jobs", 4).ttl(60_000 * MS).retry(patient);
    let waiting = tokio::spawn(async move { waits.acquire_many(3).await.unwrap() });
    let lined_up = || async { large.inspect(0).await.unwrap().waiters == 1 };
    assert!(eventually(SOON, lined_up).await);
    tokio::time::sleep(100 * MS).await; // let it hear that it is in line
    // It does not see how it becomes too heavy, and is not too heavy any more.
    proxy.refuse(true);
    proxy.reset_all();
    large.resize(2).await.unwrap();
    assert!(held.release().await.unwrap().was_held());
    let passes = w.semaphore("jobs", 2).acquire().await.unwrap();
    let fence = passes.fence();
    assert!(passes.release().await.unwrap().was_held());
    large.resize(4).await.unwrap();
    proxy.refuse(false);
    let heavy = tokio::time::timeout(6 * SOON, waiting).await;
    let heavy = heavy.unwrap().unwrap();
    assert!(heavy.fence() > fence, "{:?} after {fence:?}", heavy.fence());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn detached_claim_expires_while_its_client_lives() {
    let cluster = EtcdCluster::start().unwrap();
    let (a, b) = (
        windlass::connect(&cluster.url()).await.unwrap(),
        windlass::connect(&cluster.url()).await.unwrap(),
    );
    // Keeps the lease of its class alive.
    let alive = a.lock("alive").ttl(1000 * MS).acquire().await.unwrap();
    let left = a.lock("left").ttl(1000 * MS).acquire().await.unwrap();
    let detached = left.detach().await.unwrap();
    assert!(b.lock("left").try_acquire().await.unwrap().is_busy());
    wait_until_free(&b, "left").await;
    assert!(
        b.lock("left")
            .attach(detached.owner.as_str())
            .await
            .is_err()
    );
    assert!(alive.is_held());
    // By hand, by another process: found by its owner.
    let lock = a
        .lock("hand")
        .ttl(2000 * MS)
        .owner("job-7")
        .without_renewal();
    std::mem::forget(lock.acquire().await.unwrap());
    let renewed = b
        .lock("hand")
        .ttl(60_000 * MS)
        .attach("job-7")
        .await
        .unwrap();
    let _ = renewed.detach().await.unwrap();
    tokio::time::sleep(3500 * MS).await; // what was first asked for is over
    assert!(a.lock("hand").try_acquire().await.unwrap().is_busy());
    assert!(b.lock("hand").release_as("job-7").await.unwrap().was_held());
    wait_until_free(&a, "hand").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_client_certificates() {
    let cluster = EtcdCluster::builder().tls().start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    let host = cluster.addr(0);
    let ca = cluster.ca_path().unwrap().display();
    let elsewhere = EtcdCluster::builder().tls().start().unwrap();
    let wrong = elsewhere.ca_path().unwrap().display();
    for (url, what) in [
        (format!("etcd://{host}"), "without TLS"),
        (format!("etcds://{host}"), "an authority nobody knows"),
        (
            format!("etcds://{host}?ca={ca}"),
            "no certificate of our own",
        ),
        (
            cluster.url().replace(&ca.to_string(), &wrong.to_string()),
            "another authority",
        ),
    ] {
        let since = Instant::now();
        let e = windlass::connect(&url).await.map(drop).expect_err(what);
        assert_eq!(e.kind(), ErrorKind::Unreachable, "{what}: {e}");
        assert!(e.to_string().contains(&host.to_string()), "{what}: {e}");
        assert!(
            e.hint().is_some_and(|hint| hint.contains("TLS")),
            "{what}: {e:?}"
        );
        assert!(since.elapsed() < SOON, "{what}: {:?}", since.elapsed());
    }
    let e = windlass::connect(&format!("etcds://{host}?ca=/no/such/file"))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
}

/// There are root and ann, who may use nothing but the locks of "stock" and within it.
fn let_ann_use_stock(cluster: &EtcdCluster) {
    for args in [
        &["user", "add", "root:s3cret"][..],
        &["user", "grant-role", "root", "root"],
        &["user", "add", "ann:p4ss"],
        &["role", "add", "locks"],
        &[
            "role",
            "grant-permission",
            "locks",
            "readwrite",
            "--prefix=true",
            "stock/",
        ],
        &["user", "grant-role", "ann", "locks"],
        &["auth", "enable"],
    ] {
        cluster.ctl(args).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn user_needs_access_to_its_own_keys_only() {
    let cluster = EtcdCluster::start().unwrap();
    let_ann_use_stock(&cluster);
    let url = format!("etcd://ann:p4ss@{}", cluster.addr(0));
    let ann = windlass::connect(&url).await.unwrap();
    let first = ann.lock("stock").acquire().await.unwrap();
    let short = ann.lock("stock/short").ttl(1000 * MS).acquire().await;
    let short = short.unwrap();
    // By then, the lease of the first does not last for a whole ttl any more.
    tokio::time::sleep(2000 * MS).await;
    let second = ann.lock("stock/2").acquire().await.unwrap();
    tokio::time::sleep(1500 * MS).await; // several renewals of the short one
    let both = ann.locks(["stock/3", "stock/4"]).acquire().await.unwrap();
    first.renew().await.unwrap();
    for guard in [first, short, second] {
        assert!(guard.is_held());
        assert!(guard.release().await.unwrap().was_held());
    }
    assert!(both.release().await.unwrap().was_held());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_and_passwords() {
    let cluster = EtcdCluster::start().unwrap();
    let open = windlass::connect(&cluster.url()).await.unwrap();
    let_ann_use_stock(&cluster);
    let host = cluster.addr(0);
    let root = windlass::connect(&format!("etcd://root:s3cret@{host}"))
        .await
        .unwrap();
    assert!(!root.address().contains("s3cret"));
    drop(root.lock("any").acquire().await.unwrap());
    let ann = windlass::connect(&format!("etcd://ann:p4ss@{host}"))
        .await
        .unwrap();
    let guard = ann.lock("stock").acquire().await.unwrap();
    guard.renew().await.unwrap();
    let waiting = tokio::spawn({
        let root = root.clone();
        async move { root.lock("stock").acquire().await.unwrap() }
    });
    wait_for_waiters(&root, "stock", 1).await;
    assert!(guard.release().await.unwrap().was_held());
    drop(tokio::time::timeout(SOON, waiting).await.unwrap().unwrap());
    let denied = ann.lock("safe").acquire().await.map(drop).unwrap_err();
    assert_eq!(denied.kind(), ErrorKind::AccessDenied, "{denied}");
    for denied in [
        ann.semaphore("stock", 2).acquire().await.map(drop),
        ann.locks(["stock", "safe"]).acquire().await.map(drop),
        ann.election("safe").campaign("me").await.map(drop),
    ] {
        let denied = denied.unwrap_err();
        assert_eq!(denied.kind(), ErrorKind::AccessDenied, "{denied}");
        assert!(denied.hint().is_some_and(|hint| hint.contains("windlass:")));
    }
    nobody_is_left(&ann, &["stock"]).await;
    let nobody = open.lock("stock").acquire().await.map(drop).unwrap_err();
    assert_eq!(nobody.kind(), ErrorKind::AccessDenied, "{nobody}");
    let e = windlass::connect(&format!("etcd://ann:wrong@{host}"))
        .await
        .map(drop)
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::AccessDenied, "{e}");
    assert!(!format!("{e} {e:?}").contains("wrong@"), "{e:?}");
    // Its tokens do not outlive it: a restart is not noticed.
    cluster.restart(0).unwrap();
    let back = eventually(SOON, || async { root.lock("any").acquire().await.is_ok() });
    assert!(back.await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unusable_hosts_are_named_in_time() {
    let options = || Options::new().call_timeout(1000 * MS);
    for (hosts, kind) in [
        ("127.0.0.1:1", ErrorKind::Unreachable),
        ("127.0.0.1:1,127.0.0.1:2", ErrorKind::Unreachable),
        ("no-such-host.invalid", ErrorKind::Unreachable),
        ("127.0.0.1:1,127.0.0.1:1", ErrorKind::InvalidInput),
        (",", ErrorKind::InvalidInput),
    ] {
        let since = Instant::now();
        let e = options()
            .connect(&format!("etcd://{hosts}"))
            .await
            .map(drop)
            .unwrap_err();
        assert_eq!(e.kind(), kind, "{hosts}: {e}");
        let first = hosts.split(',').next().unwrap();
        assert!(
            e.to_string().contains(first) && e.hint().is_some(),
            "{hosts}: {e}"
        );
        assert!(since.elapsed() < SOON, "{hosts}: {:?}", since.elapsed());
    }
    // One that can be used is enough.
    let cluster = EtcdCluster::start().unwrap();
    let url = cluster.url_of(&format!("127.0.0.1:1,{}", cluster.addr(0)));
    let w = windlass::connect(&url).await.unwrap();
    drop(w.lock("stock").acquire().await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_expires() {
    let cluster = EtcdCluster::start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let guards = (
        w.lock("a").acquire().await.unwrap(),
        w.election("b").campaign("me").await.unwrap(),
        w.semaphore("c", 3).acquire().await.unwrap(),
        w.rwlock("d").read().await.unwrap(),
        w.lock("e").without_renewal().acquire().await.unwrap(),
    );
    w.latch("f").reset(2).await.unwrap();
    assert!(
        w.gate("h")
            .admit(guards.0.fence())
            .await
            .unwrap()
            .is_admitted()
    );
    let barrier = w.barrier("i", 1).enter().await.unwrap();
    let all = cluster
        .ctl(&["get", "", "--prefix", "-w", "fields"])
        .unwrap();
    let leases: Vec<&str> = all
        .lines()
        .filter_map(|line| line.strip_prefix("\"Lease\" : "))
        .collect();
    assert!(leases.len() >= 9, "{all}");
    assert!(leases.iter().all(|lease| *lease != "0"), "{all}");
    drop((guards, barrier));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diagnose_reports_the_cluster() {
    let cluster = EtcdCluster::builder().members(3).start().unwrap();
    let w = windlass::connect(&cluster.url()).await.unwrap();
    let findings = w.examine().await.unwrap();
    let told = |topic: &str| {
        let finding = findings.iter().find(|finding| finding.topic == topic);
        finding
            .unwrap_or_else(|| panic!("{topic} is missing: {findings:?}"))
            .message
            .clone()
    };
    assert!(told("version").contains("3.4"), "{findings:?}");
    assert!(
        told("members").contains("3 members, of which 1 may fail"),
        "{findings:?}"
    );
    assert!(told("leader").contains("leads"), "{findings:?}");
    assert_eq!(told("alarms"), "none");
    assert!(told("space").contains("MiB"));
    assert!(told("history").starts_with("fewer than"), "{findings:?}");
    cluster.kill(0).unwrap();
    let host = cluster.addr(0).to_string();
    // Once the others have agreed on a leader again.
    let noticed = eventually(2 * SOON, || async {
        let findings = w.examine().await.unwrap_or_default();
        let about = |f: &windlass::Finding| f.topic == "host" && f.message.contains(&host);
        findings.iter().any(about)
    });
    assert!(noticed.await);
}

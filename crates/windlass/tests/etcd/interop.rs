//! Keys of other programs: `etcdctl` and Windlass exclude each other, and foreign keys are left
//! alone.

use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, Instant};

use windlass::ErrorKind;
use windlass_testkit::EtcdCluster;
use windlass_testkit::conformance::{SOON, wait_for_waiters, wait_until_free};

const MS: Duration = Duration::from_millis(1);

/// A running `etcdctl lock` or `etcdctl elect`.
struct Etcdctl {
    process: Child,
    printed: BufReader<ChildStdout>,
    /// Its key; known once it holds.
    key: String,
}

impl Etcdctl {
    fn spawn(cluster: &EtcdCluster, args: &[&str]) -> Etcdctl {
        let mut command = cluster.etcdctl(args);
        let mut process = command.stdout(Stdio::piped()).spawn().unwrap();
        let printed = BufReader::new(process.stdout.take().unwrap());
        Etcdctl {
            process,
            printed,
            key: String::new(),
        }
    }

    fn wait_until_held(mut self) -> Etcdctl {
        self.printed.read_line(&mut self.key).unwrap();
        self
    }

    /// Ends it by revoking its lease, which its key names: a signal might arrive before `etcdctl`
    /// handles signals.
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
        // etcdctl holds first.
        let mut args = vec![verb];
        args.extend(words);
        let theirs = Etcdctl::spawn(&cluster, &args).wait_until_held();
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
        tokio::time::sleep(200 * MS).await; // let it enqueue
        assert!(!waiting.is_finished());
        theirs.end(&cluster);
        tokio::time::timeout(2 * SOON, waiting)
            .await
            .expect("handed over")
            .unwrap()
            .unwrap();
        // Windlass holds first.
        let lock = w.lock("door").acquire().await.unwrap();
        let theirs = Etcdctl::spawn(&cluster, &args);
        wait_for_waiters(&w, "door", 1).await;
        let holding = std::thread::spawn(move || (theirs.wait_until_held(), Instant::now()));
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
    // A key of etcdctl below the name does not conflict; a lock of the same name does.
    let theirs = Etcdctl::spawn(&cluster, &["lock", "größe/7"]).wait_until_held();
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
    // A key that equals the name does not conflict.
    drop(w.lock("stock").acquire().await.unwrap());
}

//! Limits of a ZooKeeper server: reported, without breaking a connection that others use.

use std::process::Command;
use std::time::Duration;

use windlass::{Attempt, ErrorKind, Options, Severity, connect};
use windlass_testkit::{TestProcess, ZooKeeperServers, eventually};
use zookeeper_client::{Acls, Client, CreateMode};

const LONG: Duration = Duration::from_secs(30);

async fn raw(server: &ZooKeeperServers) -> Client {
    let client = Client::connect(&server.addrs()[0].to_string()).await;
    client.expect("a client to compare with")
}

/// A server closes the connection of a client that sends more than a megabyte at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_requests_are_split() {
    let server = ZooKeeperServers::single().expect("a server to test on");
    let options = Options::new().call_timeout(LONG);
    let w = options.connect(&server.url("app")).await.unwrap();
    let names = || (0..1000).map(|i| format!("{}/{i}", "n".repeat(1000)));
    let all = w
        .locks(names())
        .try_acquire()
        .await
        .expect("no broken connection");
    let all = all.acquired().expect("nobody has any of them");
    let last = names().next_back().unwrap();
    assert!(w.lock(&last).try_acquire().await.unwrap().is_busy());
    drop(all);
}

/// The list of waiters may be longer than a request may be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_may_be_longer_than_a_megabyte() {
    const AT_ONCE: usize = 2_000;
    const WAIT: usize = 20_000;
    let server = ZooKeeperServers::single().expect("a server to test on");
    let raw = raw(&server).await;
    let all = Acls::anyone_all();
    let persistent = CreateMode::Persistent.with_acls(all);
    let contender = CreateMode::EphemeralSequential.with_acls(all);
    raw.create("/stock", b"", &persistent).await.unwrap();
    let node = "/stock/_c_45c3e2cb-4ae1-4a38-a6e3-3d5f3a1a2b3c-lock-";
    for _ in 0..WAIT / AT_ONCE {
        let mut many = raw.new_multi_writer();
        for _ in 0..AT_ONCE {
            many.add_create(node, b"me", &contender).unwrap();
        }
        many.commit().await.unwrap();
    }
    let options = Options::new().call_timeout(LONG);
    let url = format!("zookeeper://{}", server.addrs()[0]);
    let w = options.connect(&url).await.unwrap();
    let Attempt::Busy(holder) = w.lock("stock").try_acquire().await.unwrap() else {
        panic!("it is held");
    };
    assert_eq!(holder.unwrap().owner, "me");
    let seen = w.lock("stock").inspect().await.unwrap();
    assert_eq!(seen.waiters, WAIT as u64 - 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_limit_is_reported() {
    let server = ZooKeeperServers::start(1, &["maxClientCnxns=2"]).expect("a server to test on");
    let url = server.url("app");
    let mut connected = Vec::new();
    while connected.len() < 2 {
        // The readiness check may still be counted.
        let another = eventually(LONG, || async { connect(&url).await.is_ok() });
        assert!(another.await);
        connected.extend(connect(&url).await);
    }
    let error = connect(&url).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(
        error.hint().unwrap().contains("maxClientCnxns"),
        "{error:?}"
    );
    for w in &connected {
        assert!(w.lock("stock").inspect().await.is_ok(), "the others go on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_server_statistics_are_accepted() {
    let quiet = ["4lw.commands.whitelist=ruok"];
    let server = ZooKeeperServers::start(1, &quiet).expect("a server to test on");
    let w = connect(&server.url("app")).await.unwrap();
    let findings = w.diagnose().await.unwrap();
    let reports = |word: &str| findings.iter().any(|f| f.message.contains(word));
    // Every server answers one four-letter word.
    assert!(
        reports("ZooKeeper 3.") && reports("standalone"),
        "{findings:?}"
    );
    let skew = findings.iter().find(|f| f.topic == "clock skew").unwrap();
    assert_eq!(skew.severity, Severity::Fine, "{skew:?}");
    assert!(skew.message.contains("which do not depend on the clock"));
    drop(w.lock("stock").acquire().await.unwrap());
}

/// Not a test: a process with a wrong clock that runs a diagnosis. Does nothing without a role.
#[tokio::test]
async fn worker() {
    if std::env::var("WINDLASS_TEST_ROLE").as_deref() != Ok("examine") {
        return;
    }
    let w = connect(&std::env::var("WINDLASS_TEST_URL").unwrap()).await;
    for finding in w.unwrap().diagnose().await.unwrap() {
        println!(
            "{}: {:?}: {}",
            finding.topic, finding.severity, finding.message
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn diagnose_reports_clock_skew() {
    let server = ZooKeeperServers::single().expect("a server to test on");
    let folders = std::fs::read_dir("/usr/lib").unwrap().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let library = libraries.find(|library| library.is_file());
    let library = library.expect("libfaketime is installed: apt-get install faketime");
    for (shift, words) in [
        ("+60", "this machine is at least 5"), // 59 s and a fraction
        ("-60", "the leader is at least 5"),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "limits::worker", "--nocapture"])
            .env("WINDLASS_TEST_ROLE", "examine")
            .env("WINDLASS_TEST_URL", server.url("app"))
            .env("LD_PRELOAD", &library)
            .env("FAKETIME", shift)
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let worker = TestProcess::spawn(&mut command).unwrap();
        let skew = worker.wait_for_line(|line| line.starts_with("clock skew: "), LONG);
        let skew = skew.expect("it tells");
        assert!(skew.contains("Warning") && skew.contains(words), "{skew}");
        assert!(skew.contains("which do not depend on the clock"), "{skew}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_chroot_is_named() {
    let server = ZooKeeperServers::single().expect("a server to test on");
    let w = connect(&server.url("app")).await.unwrap();
    raw(&server).await.delete("/app", None).await.unwrap();
    for outcome in [
        w.lock("stock").acquire().await.map(drop),
        w.locks(["a", "b"]).acquire().await.map(drop),
        w.gate("stock")
            .admit(windlass::Fence::new(1))
            .await
            .map(drop),
    ] {
        let error = outcome.expect_err("there is nowhere to keep it");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
        assert!(error.to_string().contains("/app"), "{error}");
    }
}

//! The cost of permissions on Redis, and their behaviour when the server fails.

use std::time::Duration;

use windlass::{Coordinator, ErrorKind, Options, PermissionSpace};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

async fn space(w: &Coordinator, resources: usize) -> PermissionSpace {
    let resources: Vec<String> = (0..resources).map(|n| format!("r{n}")).collect();
    let space = w.permissions("s").levels(["no", "read", "write", "own"]);
    space.resources(resources).define().await.unwrap()
}

fn calls(server: &RedisServer, command: &str) -> u64 {
    let stats = server.command(&["INFO", "commandstats"]).unwrap();
    let start = format!("cmdstat_{command}:calls=");
    let line = stats.lines().find_map(|line| line.strip_prefix(&start));
    line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn check_of_100_resources_is_one_command() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 100).await;
    space.set("ann", "r7", "write").await.unwrap();
    server.command(&["CONFIG", "RESETSTAT"]).unwrap();
    let names: Vec<String> = (0..100).map(|n| format!("r{n}")).collect();
    let checks = names.iter().map(|name| ("ann", name.as_str(), "read"));
    let allowed = space.check_all(checks).await.unwrap();
    assert_eq!(allowed.iter().filter(|yes| **yes).count(), 1);
    assert!(allowed[7]);
    let all = || {
        let others = ["get", "getrange", "bitfield_ro", "evalsha", "exec"];
        let others = others.map(|command| calls(&server, command));
        calls(&server, "mget") + others.iter().sum::<u64>()
    };
    assert_eq!(all(), 1, "the schema's head included");
    space.check("ann", "r7", "read").await.unwrap();
    assert_eq!(all(), 2);
    let many: Vec<String> = (0..100).map(|n| n.to_string()).collect();
    let checks = many.iter().map(|subject| (subject.as_str(), "r7", "read"));
    space.check_all(checks).await.unwrap();
    assert_eq!(all(), 3, "and so are a hundred subjects");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_two_bit_resources_take_under_100_bytes_per_subject() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 16).await;
    let names: Vec<String> = (0..16).map(|n| format!("r{n}")).collect();
    let subjects: Vec<String> = (100_000..110_000).map(|n| n.to_string()).collect();
    for part in subjects.chunks(1_000) {
        let pairs = part.iter().flat_map(|s| names.iter().map(move |r| (s, r)));
        let given = pairs.map(|(s, r)| (s.as_str(), r.as_str(), "own"));
        space.set_all(given).await.unwrap();
    }
    let stats = space.stats().await.unwrap();
    assert_eq!(stats.subjects, 10_000);
    let each = stats.bytes as f64 / 10_000.0;
    assert!(each < 100.0, "{each} bytes a subject");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_that_comes_back_empty_grants_nothing() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 3).await;
    space.set("ann", "r1", "own").await.unwrap();
    server.restart().unwrap();
    let denied = eventually(SOON, || async {
        let answer = space.check("ann", "r1", "read").await;
        answer.is_err_and(|e| e.kind() == ErrorKind::NotFound)
    });
    assert!(denied.await);
    let gone = space.set("ann", "r1", "own").await.unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert_eq!(
        server.command(&["KEYS", "*"]).unwrap(),
        "",
        "nothing was written"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flushed_script_cache_is_reloaded() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 3).await;
    for level in ["read", "own"] {
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let many = ["a", "b", "c"].map(|subject| (subject, "r1", level));
        space.set_all(many).await.unwrap();
    }
    server.command(&["SCRIPT", "FLUSH"]).unwrap();
    let before = space
        .set_all([("a", "r1", "no"), ("b", "r2", "no")])
        .await
        .unwrap();
    assert_eq!(before, ["own", "no"], "written once, not twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn full_server_explains_rejected_writes() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 3).await;
    space.set("ann", "r1", "own").await.unwrap();
    server
        .command(&["CONFIG", "SET", "maxmemory", "1"])
        .unwrap();
    let full = space.set("bob", "r1", "own").await.unwrap_err();
    assert_eq!(full.kind(), ErrorKind::Store);
    assert!(full.to_string().contains("memory"), "{full}");
    assert!(
        space.check("ann", "r1", "own").await.unwrap(),
        "reading goes on"
    );
}

/// All keys of a space: its schema and its subjects.
fn keys(server: &RedisServer) -> Vec<String> {
    let keys = server.command(&["KEYS", "*"]).unwrap();
    keys.lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn interrupted_removal_resumes_and_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let options = Options::new().call_timeout(Duration::from_millis(300));
    let url = format!("redis://{}", proxy.addr());
    let far = options.connect(&url);
    let (far, near) = (far.await.unwrap(), connect(&server).await);
    for resume_by_defining in [false, true] {
        let mine = space(&far, 3).await;
        let stale = near.permissions("s").open().await.unwrap();
        let subjects: Vec<String> = (0..5_000).map(|n| n.to_string()).collect();
        let given = subjects.iter().map(|s| (s.as_str(), "r1", "own"));
        near.permissions("s")
            .open()
            .await
            .unwrap()
            .set_all(given)
            .await
            .unwrap();
        // The schema is removed, and then the connection breaks.
        proxy.delay(Direction::ToServer, Duration::from_millis(20));
        let removing = tokio::spawn(mine.remove());
        let denied = eventually(SOON, || async {
            let answer = stale.check("17", "r1", "read").await;
            answer.is_err_and(|e| e.kind() == ErrorKind::NotFound)
        });
        assert!(denied.await);
        proxy.refuse(true);
        proxy.reset_all();
        assert!(removing.await.unwrap().is_err(), "interrupted");
        proxy.heal();
        assert!(keys(&server).len() > 1_000, "much is left over");
        let refused = stale.set("17", "r1", "own").await.unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::NotFound);
        if resume_by_defining {
            let recreated = space(&near, 3).await;
            assert!(!recreated.check("17", "r1", "read").await.unwrap());
            assert_eq!(keys(&server).len(), 2, "{:?}", keys(&server));
            assert!(near.permissions("s").remove().await.unwrap());
        } else {
            assert!(
                near.permissions("s").remove().await.unwrap(),
                "gone on with"
            );
        }
        assert_eq!(keys(&server), Vec::<String>::new());
        assert!(!near.permissions("s").remove().await.unwrap());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removing_frees_memory_on_a_full_server() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 3).await;
    space.set("ann", "r1", "own").await.unwrap();
    let full = ["CONFIG", "SET", "maxmemory", "1"];
    server.command(&full).unwrap();
    assert!(space.clear("ann").await.unwrap());
    assert!(space.remove().await.unwrap());
    assert_eq!(keys(&server), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demoted_server_reads_and_explains_rejected_writes() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let short = space(&w, 3).await;
    let resources: Vec<String> = (0..5_000).map(|n| format!("r{n}")).collect();
    let long = w.permissions("long").levels(["no", "read"]);
    let long = long.resources(&resources).define().await.unwrap();
    for space in [&short, &long] {
        space.set("ann", "r1", "read").await.unwrap();
    }
    server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
    for space in [&short, &long] {
        assert!(
            space.check("ann", "r1", "read").await.unwrap(),
            "reading goes on"
        );
        assert_eq!(space.who_has("r1", "read").await.unwrap().len(), 1);
        let all = space.list("ann").await.unwrap();
        assert_eq!(all.iter().filter(|(_, level)| *level == "read").count(), 1);
        for refused in [
            space.set("ann", "r1", "no").await.map(drop).unwrap_err(),
            space.clear("ann").await.map(drop).unwrap_err(),
            space.clone().remove().await.map(drop).unwrap_err(),
        ] {
            assert_eq!(refused.kind(), ErrorKind::Unreachable, "{refused}");
            assert!(refused.to_string().contains("replica"), "{refused}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schema_that_lost_its_names_is_reported() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 3).await;
    space.set("ann", "r1", "own").await.unwrap();
    // Simulates an eviction.
    server.command(&["DEL", "windlass:perm:names:{s}"]).unwrap();
    assert!(
        space.check("ann", "r1", "own").await.unwrap(),
        "known names go on"
    );
    let odd = w.permissions("s").open().await.unwrap_err();
    assert_eq!(odd.kind(), ErrorKind::WrongType, "{odd}");
    assert!(odd.hint().is_some());
    assert!(space.remove().await.unwrap());
}

//! What permissions on Redis cost, and what becomes of them when the server misbehaves.

use windlass::{Coordinator, ErrorKind, PermissionSpace};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{RedisServer, eventually};

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
async fn a_check_of_100_resources_is_one_command() {
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
    assert_eq!(calls(&server, "get") + calls(&server, "bitfield_ro"), 1);
    space.check("ann", "r7", "read").await.unwrap();
    assert_eq!(calls(&server, "bitfield_ro"), 1);
    assert_eq!(calls(&server, "evalsha"), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_resources_of_two_bits_take_under_100_bytes_a_subject() {
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
async fn a_server_that_comes_back_empty_gives_nobody_anything() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let space = space(&w, 3).await;
    space.set("ann", "r1", "own").await.unwrap();
    server.restart().unwrap();
    let denied = eventually(SOON, || async {
        matches!(space.check("ann", "r1", "read").await, Ok(false))
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
async fn a_flushed_script_cache_goes_unnoticed() {
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
async fn a_full_server_refuses_in_words() {
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

//! Redis servers that cannot be reached, and keys that another program has written or changed.

use crate::fixture::{FinishedProcess, Fixture, bare};
use windlass_testkit::RedisServer;

#[test]
fn unreachable_redis_is_69_and_its_password_is_not_shown() {
    let server = RedisServer::builder().password("s3cret").start().unwrap();
    let wrong = format!("redis://:s3cret-not@127.0.0.1:{}", server.port());
    let dead = {
        let url = server.url();
        assert!(url.contains("s3cret"));
        url
    };
    let refused = FinishedProcess::of(&mut bare(&["--store", &wrong, "lock", "show", "x"]));
    assert_eq!(refused.code, 69, "{refused:?}");
    server.kill().unwrap();
    for args in [
        &["lock", "show", "x"][..],
        &["lock", "acquire", "x"],
        &["run", "x", "--", "true"],
        &["doctor"],
        &["gate", "admit", "x", "1"],
        &["run", "x", "--permits", "2", "--", "true"],
        &["run", "x", "--shared", "--", "true"],
        &["sem", "show", "x"],
        &["sem", "release", "x", "--owner", "ann"],
        &["rw", "write", "x"],
        &["elect", "x", "--", "true"],
        &["elect", "x", "--observe"],
        &["latch", "wait", "x"],
        &["latch", "count-down", "x"],
        &["barrier", "x", "--parties", "2"],
        &["top"],
    ] {
        let done = FinishedProcess::of(bare(args).env("WINDLASS_STORE", &dead));
        assert_eq!(done.code, 69, "{args:?}: {done:?}");
        assert!(
            done.err.contains(&format!("127.0.0.1:{}", server.port())),
            "{}",
            done.err
        );
        assert!(done.err.contains("hint:"), "{}", done.err);
        assert!(!done.err.contains("s3cret"), "{}", done.err);
    }
}

#[test]
fn redis_key_of_another_type_is_not_touched() {
    let fixture = Fixture::redis();
    fixture.server().command(&["RPUSH", "list", "a"]).unwrap();
    let done = fixture.run(&["run", "list", "--", "true"]);
    assert_eq!(done.code, 125, "{done:?}");
    assert!(done.err.contains("hint:"), "{}", done.err);
    assert_eq!(fixture.server().command(&["LLEN", "list"]).unwrap(), "1");
}

/// The store grants the lock, but with a fence that is invalid. The process must not end before the grant is undone.
#[test]
fn refused_acquire_leaves_nothing_held() {
    let fixture = Fixture::redis();
    let counter = ["SET", "windlass:fence", "9007194959773696"];
    let acquires = [
        &["lock", "acquire", "a"][..],
        &["lock", "acquire", "a", "--owner", "ann"],
        &["run", "a", "--", "true"],
        &["sem", "acquire", "a", "--permits", "1"],
        &["rw", "write", "a"],
        &["elect", "a", "--", "true"],
    ];
    // Repeated, because a release that is not awaited is often in time.
    for acquire in acquires.repeat(3) {
        fixture.server().command(&counter).unwrap();
        let refused = fixture.run(acquire);
        assert_eq!(refused.code, 125, "{refused:?}");
        assert!(refused.err.contains("issues fence"), "{refused:?}");
        let held = fixture.run(&["--json", "ls"]);
        assert_eq!((held.code, &*held.out), (0, ""), "{acquire:?}: {held:?}");
    }
    let free = fixture.run(&["lock", "show", "a"]);
    assert_eq!(free.code, 75, "{free:?}");
}

#[test]
fn redis_fence_counter_of_another_type_is_named() {
    let fixture = Fixture::redis();
    let server = fixture.server();
    server.command(&["RPUSH", "windlass:fence", "a"]).unwrap();
    for acquire in [
        &["lock", "acquire", "a"][..],
        &["sem", "acquire", "a", "--permits", "1"],
    ] {
        let refused = fixture.run(acquire);
        assert_eq!(refused.code, 125, "{refused:?}");
        assert!(refused.err.contains("\"windlass:fence\""), "{refused:?}");
        assert!(!refused.err.contains("of this name"), "{refused:?}");
    }
}

#[test]
fn redis_lock_without_expiry_can_be_healed() {
    let fixture = Fixture::redis();
    fixture
        .server()
        .command(&["SET", "old", "crashed"])
        .unwrap();
    let refused = fixture.run(&["lock", "acquire", "old"]);
    assert!(refused.err.contains("--heal"), "{refused:?}");
    assert!(!refused.err.contains("--wait"), "{refused:?}");
    let busy = fixture.json(&["lock", "acquire", "old"]);
    assert_eq!(busy.code, 75);
    assert!(busy.object()["remaining_ms"].is_null());
    let healed = fixture.run(&[
        "run", "old", "--ttl", "300ms", "--heal", "--wait", "20s", "--", "true",
    ]);
    assert_eq!(healed.code, 0, "{healed:?}");
}

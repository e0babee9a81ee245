//! `doctor`: what it finds on each kind of store, and when other commands recommend it.

use crate::fixture::{FinishedProcess, Fixture, bare, keys};
use windlass_testkit::RedisServer;

on_each_store!(doctor_checks_the_store);

fn doctor_checks_the_store(fixture: Fixture) {
    let kind = fixture.kind();
    let done = fixture.json(&["doctor"]);
    assert_eq!(done.code, 0, "{done:?}");
    let findings = done.objects();
    for finding in &findings {
        assert_eq!(keys(finding), ["message", "severity", "topic"]);
    }
    let topic = |name: &str| findings.iter().find(|f| f["topic"] == name).unwrap();
    assert_eq!(topic("kind")["message"], kind);
    assert_eq!(topic("kind")["severity"], "ok");
    assert_eq!(topic("locking")["severity"], "ok");
    assert!(fixture.run(&["doctor"]).out.contains(kind));
    assert_eq!(
        fixture.json(&["lock", "ls"]).out,
        "",
        "the trial lock was released"
    );
}

#[test]
fn doctor_reports_redis_eviction_as_a_problem() {
    let server = RedisServer::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let done =
        FinishedProcess::of(bare(&["--json", "doctor", "--store", &server.url()]).env("HOME", "/"));
    assert_eq!(done.code, 75, "{done:?}");
    let problems: Vec<_> = done
        .objects()
        .into_iter()
        .filter(|finding| finding["severity"] == "problem")
        .collect();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0]["topic"], "eviction");
}

#[test]
fn doctor_reports_a_redis_that_cannot_lock() {
    let fixture = Fixture::redis();
    let server = fixture.server();
    for (before, after, why) in [
        (
            &["CONFIG", "SET", "maxmemory", "1"][..],
            &["CONFIG", "SET", "maxmemory", "0"][..],
            "out of memory",
        ),
        (
            &["ACL", "SETUSER", "default", "-eval", "-evalsha"],
            &["ACL", "SETUSER", "default", "+@all"],
            "no permission",
        ),
    ] {
        server.command(before).unwrap();
        let done = fixture.json(&["doctor"]);
        server.command(after).unwrap();
        assert_eq!(done.code, 75, "{done:?}");
        let findings = done.objects();
        let locking = findings.iter().find(|f| f["topic"] == "locking").unwrap();
        assert_eq!(locking["severity"], "problem");
        let message = locking["message"].as_str().unwrap();
        assert!(message.starts_with("cannot acquire a lock: "), "{message}");
        assert!(
            message.to_lowercase().contains(&why.to_lowercase()),
            "{message}"
        );
    }
    assert_eq!(fixture.run(&["doctor"]).code, 0);
}

#[test]
fn damaged_file_is_reported_by_doctor_too() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["lock", "show", "x"]).code, 75);
    let torn = std::fs::read(fixture.path("locks.db")).unwrap()[..100].to_vec();
    std::fs::write(fixture.path("torn.db"), torn).unwrap();
    let store = format!("file:{}", fixture.path("torn.db").display());
    for args in [&["doctor"][..], &["lock", "show", "x"]] {
        let done = fixture.run(&[args, &["--store", &store]].concat());
        assert_eq!(done.code, 125, "{done:?}");
        assert!(done.err.contains("the file is damaged"), "{done:?}");
        assert!(
            done.err.contains("hint: stop all programs that use it"),
            "{done:?}"
        );
        assert!(!done.err.contains("try: windlass doctor"), "{done:?}");
    }
}

#[test]
fn error_without_a_hint_recommends_doctor() {
    let fixture = Fixture::file();
    assert_eq!(fixture.run(&["lock", "show", "x"]).code, 75);
    let database = rusqlite::Connection::open(fixture.path("locks.db")).unwrap();
    database.execute_batch("DROP TABLE claims").unwrap();
    drop(database);
    let doctor = fixture.run(&["doctor", "--store", &fixture.store]);
    assert_eq!(doctor.code, 125, "{doctor:?}");
    assert!(doctor.err.contains("hint:"), "{doctor:?}");
    assert!(!doctor.err.contains("try: windlass doctor"), "{doctor:?}");
    let by_option = FinishedProcess::of(
        fixture
            .command(&["lock", "show", "x", "--store", &fixture.store])
            .env_remove("WINDLASS_STORE"),
    );
    let advice = format!("try: windlass doctor --store {}", fixture.store);
    assert!(by_option.err.contains(&advice), "{by_option:?}");
    let by_variable = fixture.run(&["lock", "show", "x"]);
    assert!(
        by_variable.err.ends_with("try: windlass doctor\n"),
        "{by_variable:?}"
    );
}

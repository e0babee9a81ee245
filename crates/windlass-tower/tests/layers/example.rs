//! The program of `examples/axum-api`, as a process of its own.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use http::{Request, StatusCode};
use windlass_testkit::TestProcess;

use crate::fixture::{SOON, client, send};
use crate::limit::items;

#[tokio::test]
async fn example_answers_429_with_headers_that_parse() {
    // Beside the folder of the tests. `cargo test` builds examples unless it is given a target.
    let tests = std::env::current_exe().unwrap();
    let program = tests.ancestors().nth(2).unwrap().join("examples/axum-api");
    let mut command = Command::new(&program);
    let command = command.arg("127.0.0.1:0").stdin(Stdio::null());
    let process = TestProcess::spawn(command).unwrap_or_else(|error| {
        let build = "cargo build -p windlass-tower --example axum-api";
        panic!("{}: {error}: {build}", program.display())
    });
    let line = process.wait_for_line(|line| line.starts_with("http://"), SOON);
    let line = line.expect("the program prints its address");
    let address: SocketAddr = line["http://".len()..].parse().unwrap();
    let client = client();
    for n in 0..10 {
        let reply = send(&client, address, Request::get("/"), "").await;
        assert_eq!(
            (reply.status, &reply.body[..]),
            (StatusCode::OK, &b"hello\n"[..]),
            "{n}"
        );
    }
    let denied = send(&client, address, Request::get("/"), "").await;
    assert_eq!(denied.status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(denied.code(), "rate-limited");
    let wait: i64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    let policies = items(&denied, "ratelimit-policy");
    let names: Vec<_> = policies.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["minute", "day"]);
    let [(name, params)] = &items(&denied, "ratelimit")[..] else {
        panic!("{denied:?}");
    };
    assert_eq!(
        (name.as_str(), &params[0]),
        ("minute", &("r".to_owned(), 0))
    );
}

//! Two processes of the example service behind a real nginx share one Redis.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use http::{Request, StatusCode};
use windlass_testkit::{TestProcess, eventually};
use windlass_tower::ClientIp;

use crate::axum_api;
use crate::fixture::{SOON, Store, client_at, send};

const STORE: &str = "WINDLASS_TOWER_TEST_STORE";
const PER_MINUTE: u64 = 40;

/// Not a test: the process of the other test, which runs this program with the store in a variable.
#[tokio::test]
async fn instance() {
    let Ok(store) = std::env::var(STORE) else {
        return;
    };
    let w = windlass::connect(&store).await.unwrap();
    let client = ClientIp::new().trust(["127.0.0.1/32".parse().unwrap()]);
    let app = axum_api::router(&w, axum_api::limit(&w, client, PER_MINUTE));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    println!("\nlistening on {}", listener.local_addr().unwrap());
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await.unwrap();
}

fn start_instance(store: &str) -> (TestProcess, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["nginx::instance", "--exact", "--nocapture"])
        .env(STORE, store);
    let process = TestProcess::spawn(&mut command).unwrap();
    let line = process.wait_for_line(|line| line.starts_with("listening on "), SOON);
    let address = line.unwrap().split_whitespace().last().unwrap().to_owned();
    (process, address)
}

fn start_nginx(folder: &std::path::Path, port: u16, instances: &[String]) -> TestProcess {
    let servers: String = instances
        .iter()
        .map(|address| format!("server {address};"))
        .collect();
    let configuration = format!(
        "master_process off; daemon off; pid nginx.pid; error_log error.log warn;
         events {{ worker_connections 256; }}
         http {{
             access_log off;
             client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;
             uwsgi_temp_path uwsgi; scgi_temp_path scgi;
             upstream instances {{ {servers} }}
             server {{
                 listen 127.0.0.1:{port};
                 location / {{
                     proxy_pass http://instances;
                     proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;
                     add_header X-Instance $upstream_addr always;
                 }}
             }}
         }}"
    );
    std::fs::write(folder.join("nginx.conf"), configuration).unwrap();
    let mut command = Command::new("nginx");
    command
        .arg("-p")
        .arg(folder)
        .args(["-c", "nginx.conf", "-e", "error.log"]);
    TestProcess::spawn(&mut command).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_instances_behind_nginx_share_quota_and_idempotency_records_with_redis() {
    let store = Store::redis().await;
    let (_first, a) = start_instance(&store.url);
    let (_second, b) = start_instance(&store.url);
    let folder = tempfile::tempdir().unwrap();
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let _nginx = start_nginx(folder.path(), address.port(), &[a, b]);
    let is_up = eventually(SOON, || async {
        tokio::net::TcpStream::connect(address).await.is_ok()
    });
    assert!(is_up.await, "nginx does not listen");
    // The client is not on the address of a trusted proxy.
    let client = client_at(Ipv4Addr::new(127, 0, 0, 2));

    // A payment, ten times, at the instances in turn: one receipt.
    let mut instances = std::collections::HashSet::new();
    let mut receipts = std::collections::HashSet::new();
    for n in 0..10 {
        let request = Request::post("/payments")
            .header("x-account", "ann")
            .header("idempotency-key", "\"8e03978e\"");
        let reply = send(&client, address, request, "order 42").await;
        assert_eq!(reply.status, StatusCode::CREATED);
        assert_eq!(reply.header("idempotent-replayed").is_some(), n > 0);
        instances.insert(reply.header("x-instance").unwrap().to_owned());
        receipts.insert(reply.body);
    }
    assert_eq!(
        (instances.len(), receipts.len()),
        (2, 1),
        "{instances:?} {receipts:?}"
    );

    // The client is the one that nginx saw, whatever it claims to be: one quota for both instances.
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..100 {
        let client = client.clone();
        tasks.spawn(async move {
            let forged = format!("203.0.113.{n}");
            let request = Request::get("/").header("x-forwarded-for", forged);
            let reply = send(&client, address, request, "").await;
            (reply.status, reply.header("x-instance").unwrap().to_owned())
        });
    }
    let replies = tasks.join_all().await;
    let allowed = replies.iter().filter(|(status, _)| status.is_success());
    assert_eq!(allowed.count() as u64, PER_MINUTE - 10);
    let denied = replies
        .iter()
        .filter(|(status, _)| *status == StatusCode::TOO_MANY_REQUESTS);
    let by: std::collections::HashSet<_> = denied.map(|(_, instance)| instance).collect();
    assert_eq!(by.len(), 2, "both instances deny");
}

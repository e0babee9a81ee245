//! The flash sale behind a real nginx, with `ab` as the buyers: what `examples/flash-sale` shows.
//!
//! Needs nginx and ab, which `cargo xtask test` installs.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::fixture::{FinishedProcess, Fixture};

#[test]
fn two_shops_behind_nginx_sell_exactly_the_stock_with_redis() {
    let fixture = Fixture::redis();
    // All bound at the same time, so that they are four different ports.
    let free: Vec<TcpListener> = (0..4)
        .map(|_| TcpListener::bind("127.0.0.1:0").unwrap())
        .collect();
    let ports: Vec<String> = free
        .iter()
        .map(|listener| listener.local_addr().unwrap().port().to_string())
        .collect();
    drop(free);
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/flash-sale/run.sh");
    let mut command = Command::new("timeout");
    command.arg("120").arg(script);
    command.args(["none", "mutex", "owner", "lock", "fence", "counter"]);
    command
        .env("STORE", &fixture.store)
        .env("WINDLASS", env!("CARGO_BIN_EXE_windlass"))
        .env("STOCK", "20")
        .env("REQUESTS", "150")
        .env("WAREHOUSE_PORT", &ports[0])
        .env("SHOP_PORTS", ports[1..3].join(" "))
        .env("NGINX_PORT", &ports[3])
        .env("TMPDIR", fixture.folder.path())
        .env_remove("WINDLASS_NAMESPACE")
        .stdin(Stdio::null());
    let done = FinishedProcess::of(&mut command);
    assert_eq!(done.code, 0, "{done:?}");
    let line = |guard: &str| {
        let mut lines = done.out.lines();
        let line = lines.find(|line| line.split_whitespace().next() == Some(guard));
        line.unwrap_or_else(|| panic!("no {guard}: {done:?}"))
    };
    for guard in ["none", "mutex"] {
        assert!(
            !line(guard).contains(" 0 oversold, 0 lost"),
            "{}",
            line(guard)
        );
    }
    // No faults are injected, so the lock without renewal is enough.
    for guard in ["owner", "lock", "fence", "counter"] {
        let totals = "20 in stock, 20 sold, 0 oversold, 0 lost updates, 0 left";
        assert!(line(guard).contains(totals), "{}", line(guard));
        assert!(line(guard).contains("requests a second"), "{}", line(guard));
    }
    let left: Vec<_> = std::fs::read_dir(fixture.folder.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

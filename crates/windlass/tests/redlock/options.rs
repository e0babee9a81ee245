//! The options of a quorum, and the errors when too few nodes vote.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windlass::{ErrorKind, Options, RetryPolicy};
use windlass_testkit::{Direction, FaultProxy, Flavor, RedisServer, RedlockNodes};

const MS: Duration = Duration::from_millis(1);

#[tokio::test]
async fn drift_shortens_validity() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let ttl = Duration::from_secs(40);
    // A quarter of the TTL, and 2 ms, before it ends; and no more than the round trip before that.
    let w = windlass::connect(&nodes.url("drift=0.25")).await.unwrap();
    let guard = w.lock("a").ttl(ttl).acquire().await.unwrap();
    let left = guard.remaining();
    assert!(left <= Duration::from_millis(30_000 - 2), "{left:?}");
    assert!(left > Duration::from_secs(20), "{left:?}");
    guard.renew().await.unwrap();
    let left = guard.remaining();
    assert!(left <= Duration::from_millis(30_000 - 2), "{left:?}");

    // The program's setting overrides the URL; the default is one percent.
    let w = Options::new().drift(0.4);
    let w = w.connect(&nodes.url("drift=0.25")).await.unwrap();
    let guard = w.lock("b").ttl(ttl).acquire().await.unwrap();
    assert!(guard.remaining() <= Duration::from_millis(24_000 - 2));
    let w = windlass::connect(&nodes.url("")).await.unwrap();
    let guard = w.lock("c").ttl(ttl).acquire().await.unwrap();
    assert!(guard.remaining() > Duration::from_secs(31));

    let e = Options::new().drift(0.5);
    let e = e.connect(&nodes.url("")).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput);
    assert!(e.to_string().contains("between 0 and 0.5"), "{e}");
}

#[tokio::test]
async fn retries_and_pauses_follow_the_options() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let w = windlass::connect(&nodes.url("")).await.unwrap();
    nodes.iter().for_each(|node| node.kill().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let policy = RetryPolicy::tries(4).pausing_by({
        let asked = Arc::clone(&asked);
        move |tries| {
            asked.lock().unwrap().push(tries);
            30 * MS * tries
        }
    });
    let began = Instant::now();
    let lock = w.lock("stock").retry(policy);
    let e = lock.acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    assert_eq!(*asked.lock().unwrap(), [1, 2, 3]);
    assert!(began.elapsed() >= 180 * MS, "{:?}", began.elapsed());
}

#[tokio::test]
async fn slow_node_is_awaited_up_to_the_factor() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let proxy = |node: &RedisServer| FaultProxy::start(node.addr()).unwrap();
    let proxies: Vec<FaultProxy> = nodes.iter().map(proxy).collect();
    let hosts: Vec<String> = proxies.iter().map(|p| p.addr().to_string()).collect();
    let url = |factor: &str| {
        let parameters = format!("node_timeout=60s&timeout_factor={factor}");
        format!("redlock://{}?{parameters}", hosts.join(","))
    };
    let calls = Options::new().call_timeout(Duration::from_secs(60));
    let hasty = calls.clone().connect(&url("0.01")).await.unwrap();
    let patient = calls.connect(&url("0.5")).await.unwrap();
    // Each has connected once, so that no connection has to be opened any more.
    for w in [&hasty, &patient] {
        let guard = w.lock("meet").ttl(40_000 * MS).acquire().await.unwrap();
        assert!(guard.release().await.unwrap().was_held());
    }
    for proxy in &proxies[..2] {
        proxy.delay(Direction::ToServer, 2000 * MS);
    }
    let once = RetryPolicy::none();
    let lock = hasty.lock("a").ttl(40_000 * MS).retry(once.clone());
    let e = lock.acquire().await.unwrap_err();
    assert!(e.to_string().contains("no answer in time"), "{e}");
    let lock = patient.lock("b").ttl(40_000 * MS).retry(once);
    assert!(lock.acquire().await.unwrap().is_held());
}

#[tokio::test]
async fn hints_match_the_problem() {
    let try_once = |w: windlass::Coordinator| async move {
        let lock = w.lock("stock").retry(RetryPolicy::none());
        let e = lock.try_acquire().await.unwrap_err();
        e.hint().expect("something to do next").to_owned()
    };
    // All in quarantine: they are running, so wait, or make them durable.
    let young = RedlockNodes::without_persistence(3, Flavor::Valkey).unwrap();
    let w = windlass::connect(&young.url("max_ttl=1h")).await.unwrap();
    let hint = try_once(w).await;
    assert!(hint.starts_with("wait 3"), "nearly an hour: {hint}");
    assert!(hint.contains("appendfsync always"), "{hint}");
    assert!(!hint.contains("running"), "{hint}");
    // Mixed: one is dead, by name, and the others are in quarantine.
    young.node(1).kill().unwrap();
    let dead = young.node(1).addr().to_string();
    let w = windlass::connect(&young.url("max_ttl=1h")).await.unwrap();
    let hint = try_once(w).await;
    let running = format!("is {dead} running, and can it be reached from here? wait 3");
    assert!(hint.starts_with(&running), "{hint}");
    // All dead.
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let w = windlass::connect(&nodes.url("")).await.unwrap();
    nodes.iter().for_each(|node| node.kill().unwrap());
    let hint = try_once(w).await;
    assert_eq!(
        hint,
        "are the nodes running, and can they be reached from here?"
    );
    // A wrong password.
    let builder = RedisServer::builder().binary(Flavor::Valkey);
    let closed = RedlockNodes::start(3, builder.password("right")).unwrap();
    let url = closed.url("").replace("redlock://", "redlock://:wrong@");
    let e = windlass::connect(&url).await.unwrap_err();
    let hint = e.hint().unwrap();
    assert!(
        !hint.contains("running") && hint.contains("password"),
        "{hint}"
    );
}

#[tokio::test]
async fn server_under_two_names_has_one_vote() {
    let nodes = RedlockNodes::durable(2, Flavor::Valkey).unwrap();
    let (one, other) = (nodes.node(0), nodes.node(1));
    let again = FaultProxy::start(one.addr()).unwrap();
    let (first, second, third) = (one.addr(), again.addr(), other.addr());
    let url = format!("redlock://{first},{second},{third}?node_timeout=5s");
    let e = windlass::connect(&url).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::InvalidInput, "{e}");
    assert!(e.to_string().contains("the same server"), "{e}");

    // Not known as long as one of the names is unreachable.
    again.refuse(true);
    let w = windlass::connect(&url).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(guard.release().await.unwrap().was_held());
    other.kill().unwrap();
    again.heal();
    let lock = w.lock("stock").retry(RetryPolicy::tries(1));
    let e = lock.acquire().await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Unreachable, "{e}");
    assert!(e.to_string().contains("the same server"), "{e}");
}

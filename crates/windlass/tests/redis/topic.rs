//! Topics on Redis when the connection is lost: every gap is reported.

use std::time::Duration;

use tokio::time::timeout;
use windlass::{Coordinator, Event, Options, Subscription};
use windlass_testkit::conformance::SOON;
use windlass_testkit::{Direction, FaultProxy, RedisServer, eventually};

async fn connect(server: &RedisServer) -> Coordinator {
    windlass::connect(&server.url()).await.unwrap()
}

async fn through(proxy: &FaultProxy) -> Coordinator {
    let options = Options::new().call_timeout(Duration::from_millis(300));
    let url = format!("redis://{}", proxy.addr());
    options.connect(&url).await.unwrap()
}

async fn next(subscription: &mut Subscription<u32>) -> Event<u32> {
    timeout(4 * SOON, subscription.next())
        .await
        .unwrap()
        .unwrap()
}

/// Publishes until the subscriber receives a message.
async fn receives_again(w: &Coordinator, subscription: &mut Subscription<u32>) {
    let topic = w.topic::<u32>("t");
    let deadline = tokio::time::Instant::now() + 4 * SOON;
    loop {
        assert!(tokio::time::Instant::now() < deadline, "no message arrives");
        let _ = topic.publish(&9).await;
        match timeout(Duration::from_millis(100), subscription.next()).await {
            Ok(Ok(Event::Message(9))) => return,
            Ok(Ok(_)) | Err(_) => {}
            Ok(Err(e)) => panic!("{e}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connection_is_reopened_and_the_gap_is_reported() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let (far, near) = (through(&proxy).await, connect(&server).await);
    let mut subscription = far.topic::<u32>("t").subscribe().await.unwrap();
    near.topic::<u32>("t").publish(&1).await.unwrap();
    assert_eq!(next(&mut subscription).await, Event::Message(1));
    proxy.refuse(true);
    proxy.reset_all();
    near.topic::<u32>("t").publish(&2).await.unwrap();
    assert_eq!(next(&mut subscription).await, Event::Gap { missed: None });
    proxy.heal();
    receives_again(&near, &mut subscription).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silently_dead_connection_is_detected() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let (far, near) = (through(&proxy).await, connect(&server).await);
    let mut subscription = far.topic::<u32>("t").subscribe().await.unwrap();
    proxy.blackhole(Direction::Both);
    near.topic::<u32>("t").publish(&1).await.unwrap();
    assert_eq!(next(&mut subscription).await, Event::Gap { missed: None });
    proxy.heal();
    proxy.reset_all();
    receives_again(&near, &mut subscription).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_server_is_subscribed_to_again() {
    let server = RedisServer::start().unwrap();
    let (far, near) = (connect(&server).await, connect(&server).await);
    let mut subscription = far.topic::<u32>("t").subscribe().await.unwrap();
    server.restart().unwrap();
    assert_eq!(next(&mut subscription).await, Event::Gap { missed: None });
    receives_again(&near, &mut subscription).await;
}

/// A message that got no reply is published by a server that was frozen. The next one is not taken
/// for the same message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn number_of_a_message_without_reply_is_not_used_again() {
    let server = RedisServer::start().unwrap();
    let options = Options::new().call_timeout(Duration::from_millis(300));
    let publisher = options.connect(&server.url()).await.unwrap();
    let subscriber = connect(&server).await;
    let mut subscription = subscriber.topic::<u32>("t").subscribe().await.unwrap();
    let topic = publisher.topic::<u32>("t");
    topic.publish(&1).await.unwrap();
    assert_eq!(next(&mut subscription).await, Event::Message(1));
    server.pause().unwrap();
    let error = topic.publish(&2).await.unwrap_err();
    assert_eq!(error.kind(), windlass::ErrorKind::OutcomeUnknown);
    server.resume().unwrap();
    assert_eq!(next(&mut subscription).await, Event::Message(2));
    topic.publish(&3).await.unwrap();
    assert_eq!(next(&mut subscription).await, Event::Message(3));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_subscription_leaves_nothing() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let subscription = w.topic::<u32>("t").subscribe().await.unwrap();
    let subscribed = || {
        let channels = server.command(&["PUBSUB", "CHANNELS", "*topic*"]).unwrap();
        channels.lines().count()
    };
    assert_eq!(subscribed(), 1);
    drop(subscription);
    assert!(eventually(SOON, || async { subscribed() == 0 }).await);
    w.topic::<u32>("t").publish(&1).await.unwrap();
    assert_eq!(
        server.command(&["KEYS", "*"]).unwrap(),
        "",
        "nothing is kept"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_subscriber_gets_one_gap() {
    let server = RedisServer::start().unwrap();
    let proxy = FaultProxy::start(server.addr()).unwrap();
    let (far, near) = (through(&proxy).await, connect(&server).await);
    let topic = far.topic::<u32>("t").buffer(2);
    let mut subscription = topic.subscribe().await.unwrap();
    let subscribed = || {
        let command = ["PUBSUB", "NUMSUB", "windlass:news:windlass:topic:{t}"];
        let answer = server.command(&command).unwrap();
        answer.lines().last() == Some("1")
    };
    for n in 0..16 {
        near.topic::<u32>("t").publish(&n).await.unwrap();
        let before = proxy.connections();
        proxy.reset_all();
        let again = || async { proxy.connections() > before && subscribed() };
        assert!(eventually(4 * SOON, again).await);
    }
    for n in 16..18 {
        near.topic::<u32>("t").publish(&n).await.unwrap();
    }
    let mut events = 1;
    while next(&mut subscription).await != Event::Message(17) {
        events += 1;
    }
    // Two messages and three gaps, and the last two messages may drop others while this reads, with
    // a gap each: not one gap for each of the sixteen lost connections.
    assert!(events <= 9, "{events}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn topics_survive_a_full_or_demoted_server_and_flushed_scripts() {
    let server = RedisServer::start().unwrap();
    let (far, near) = (connect(&server).await, connect(&server).await);
    let mut subscription = far.topic::<u32>("t").subscribe().await.unwrap();
    let troubles: [&[&str]; 3] = [
        &["SCRIPT", "FLUSH"],
        &["CONFIG", "SET", "maxmemory", "1"],
        &["REPLICAOF", "127.0.0.1", "1"],
    ];
    for (n, trouble) in (1..).zip(troubles) {
        server.command(trouble).unwrap();
        near.topic::<u32>("t").publish(&n).await.unwrap();
        assert_eq!(next(&mut subscription).await, Event::Message(n));
    }
}

/// The server closes a connection whose messages are not read in time. Leases must not depend on it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_connection_of_a_topic_is_not_that_of_leases() {
    let server = RedisServer::start().unwrap();
    let (far, near) = (connect(&server).await, connect(&server).await);
    let mut subscription = far.topic::<u32>("t").subscribe().await.unwrap();
    let lock = far.lock("stock").ttl(Duration::from_secs(1));
    let guard = lock.acquire().await.unwrap();
    // Both clients have a connection for wake-ups; one has another one for the topic.
    let subscribed = || -> Vec<String> {
        let clients = server.command(&["CLIENT", "LIST"]).unwrap();
        let lines = clients.lines().filter(|line| line.contains(" sub=1 "));
        let id = |line: &str| Some(line.split_once("id=")?.1.split_once(' ')?.0.to_owned());
        lines.filter_map(id).collect()
    };
    let before = subscribed();
    assert_eq!(before.len(), 3, "{before:?}");
    let topic = before.iter().max_by_key(|id| id.parse::<u64>().unwrap());
    let leases: Vec<_> = before.iter().filter(|id| Some(*id) != topic).collect();
    server
        .command(&["CLIENT", "KILL", "ID", topic.unwrap()])
        .unwrap();
    assert_eq!(next(&mut subscription).await, Event::Gap { missed: None });
    receives_again(&near, &mut subscription).await;
    let after = subscribed();
    assert!(leases.iter().all(|id| after.contains(id)), "{after:?}");
    assert!(guard.is_held());
}

/// Messages of earlier versions, and of other programs, have no number.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_without_a_number_is_received() {
    let server = RedisServer::start().unwrap();
    let w = connect(&server).await;
    let mut subscription = w.topic::<u32>("t").subscribe().await.unwrap();
    for n in 1..=3 {
        let channel = "windlass:news:windlass:topic:{t}";
        server
            .command(&["PUBLISH", channel, &n.to_string()])
            .unwrap();
        assert_eq!(next(&mut subscription).await, Event::Message(n));
    }
}

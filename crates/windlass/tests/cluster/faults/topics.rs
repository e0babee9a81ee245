//! Topics on a cluster whose bus drops messages: the nodes forward what is published, and drop what they
//! have not forwarded to a node that did not answer for a while.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use windlass::Event;
use windlass_testkit::{Flavor, RedisServer};

use super::*;

const PUBLISHERS: u32 = 6;
const CHANNEL: &str = "windlass:news:windlass:topic:{t}";

/// Publishes numbers, as fast as the cluster takes them, until stopped. Returns those whose publication
/// failed.
async fn publish(w: Coordinator, publisher: u32, stop: Arc<AtomicBool>) -> HashSet<(u32, u32)> {
    let topic = w.topic::<(u32, u32)>("t");
    let mut failed = HashSet::new();
    for number in 1.. {
        if stop.load(Ordering::SeqCst) {
            break;
        }
        if topic.publish(&(publisher, number)).await.is_err() {
            failed.insert((publisher, number));
        }
        tokio::time::sleep(2 * MS).await; // not all that the machine can do
    }
    failed
}

/// The node that the only subscriber is connected to.
fn subscribed_node(cluster: &RedisCluster) -> Option<&RedisServer> {
    let has_it = |node: &&RedisServer| {
        let reply = node.command(&["PUBSUB", "NUMSUB", CHANNEL]);
        reply.is_ok_and(|reply| reply.lines().last() == Some("1"))
    };
    cluster.nodes().iter().find(has_it)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn messages_that_the_cluster_drops_are_reported_as_gaps() {
    let config = [("cluster-node-timeout", "2000")];
    let cluster = RedisCluster::start_with(Flavor::Redis, &config).unwrap();
    let reader = connect(&cluster).await;
    let topic = reader.topic::<(u32, u32)>("t").buffer(1_000_000);
    let mut subscription = topic.subscribe().await.unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let mut publishers = Vec::new();
    for publisher in 0..PUBLISHERS {
        let w = connect(&cluster).await;
        publishers.push(tokio::spawn(publish(w, publisher, Arc::clone(&stop))));
    }
    let events = Arc::new(Mutex::new(Vec::new()));
    let reading = tokio::spawn({
        let events = Arc::clone(&events);
        async move {
            loop {
                let event = subscription.next().await.unwrap();
                events.lock().unwrap().push(event);
            }
        }
    });
    for lasts in [1200, 1500, 1800, 4000] {
        tokio::time::sleep(500 * MS).await; // let them work
        let frozen = subscribed_node(&cluster).expect("the subscription is back");
        frozen.pause().unwrap();
        tokio::time::sleep(lasts * MS).await; // the fault lasts
        frozen.resume().unwrap();
        let seen = events.lock().unwrap().len();
        let continues = windlass_testkit::eventually(RESUMED, || async {
            events.lock().unwrap().len() > seen + 100 && subscribed_node(&cluster).is_some()
        });
        assert!(continues.await, "no messages after {lasts} ms");
    }
    stop.store(true, Ordering::SeqCst);
    let mut failed = HashSet::new();
    for publisher in publishers {
        failed.extend(publisher.await.unwrap());
    }
    reading.abort();

    let events = events.lock().unwrap();
    // The last number of each publisher, and how many gaps were reported before it.
    let mut last: HashMap<u32, (u32, u32)> = HashMap::new();
    let (mut gaps, mut missing, mut unreported, mut reordered) = (0, 0, 0, 0);
    for event in events.iter() {
        let (publisher, number) = match event {
            Event::Message(message) => *message,
            _ => {
                gaps += 1;
                continue;
            }
        };
        if let Some((before, gaps_before)) = last.insert(publisher, (number, gaps)) {
            reordered += u32::from(number <= before);
            let lost = (before + 1..number).filter(|n| !failed.contains(&(publisher, *n)));
            let lost = lost.count();
            missing += lost;
            unreported += lost * usize::from(gaps == gaps_before);
        }
    }
    println!(
        "{} events, {missing} messages missing, {gaps} gaps",
        events.len()
    );
    assert!(
        missing > 0,
        "the faults cost no message: nothing was tested"
    );
    assert_eq!(unreported, 0, "missing without a gap");
    assert_eq!(reordered, 0, "twice, or out of order");
}

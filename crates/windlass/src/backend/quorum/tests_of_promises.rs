//! How long a promise is good for.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::Poll;
use std::time::Duration;

use windlass_testkit::{Flavor, RedlockNodes};

use super::register::{Found, LONGEST_KEEP, Next, Register};
use super::tests::Deaf;
use super::{Address, Quorum};
use crate::backend::Channel;
use crate::lease::Clock;
use crate::name::Name;

/// A process that is stopped while answers are on their way finds all of them when it goes on, however late.
/// By then, a node that promised may have forgotten it, and may have given the same number to another.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promises_that_took_too_long_to_collect_are_not_used() {
    let nodes = RedlockNodes::durable(3, Flavor::Valkey).unwrap();
    let address = Address::parse(&nodes.url("max_ttl=60s&node_timeout=10s")).unwrap();
    let (clock, timeout) = (Clock::manual(), Duration::from_secs(30));
    let deaf: Weak<Deaf> = Weak::new();
    let quorum = Quorum::meet(address, "test".into(), clock.clone(), timeout, 7, deaf);
    let quorum = quorum.await.unwrap();
    let shared = Arc::clone(&quorum.shared);
    let of = Channel {
        kind: "latch",
        name: Name::new("test", None, "promises").unwrap(),
    };
    let register = Register {
        of: of.clone(),
        void_after: LONGEST_KEEP,
    };

    let decide = |_: Option<&Found>, number| {
        let becomes = Next::Becomes {
            value: b"changed".to_vec(),
            keep: Duration::from_secs(60),
            news: false,
            highest: 0,
        };
        Ok((number, becomes))
    };
    // Time goes on, for the pause before another try.
    let ticks = || async {
        loop {
            tokio::time::sleep(Duration::from_millis(1)).await;
            clock.advance(Duration::from_millis(1));
        }
    };
    // From now on all nodes have counted alike, and give the same number at the first try.
    tokio::select! {
        done = shared.change(&register, decide) => done.unwrap(),
        () = ticks() => unreachable!("it ends never"),
    };

    let mut change = std::pin::pin!(shared.change(&register, decide));
    // It asks, and then nobody looks at it.
    let asked = poll_fn(|cx| Poll::Ready(change.as_mut().poll(cx).is_pending())).await;
    assert!(asked, "it cannot be done yet");
    // On the same connections, so the answers to what was asked before are here when these are.
    for node in &shared.nodes {
        node.voter.kept(of.clone()).await.unwrap();
    }
    clock.advance(Duration::from_secs(60));
    let counters = || {
        let counter = |node: &windlass_testkit::RedisServer| {
            let told = node.command(&["GET", "windlass:fence"]).unwrap();
            told.trim().parse::<u64>().unwrap()
        };
        nodes.iter().map(counter).collect::<Vec<_>>()
    };
    let before = counters();

    let number = tokio::select! {
        done = &mut change => done.unwrap(),
        () = ticks() => unreachable!("it ends never"),
    };
    assert!(
        before.iter().all(|drawn| *drawn < number),
        "it wrote under {number}, which was promised before the time was over: {before:?}"
    );
}

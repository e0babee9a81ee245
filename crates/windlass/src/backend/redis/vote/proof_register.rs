//! A node of a quorum promises and accepts exactly as the rules say.

use std::sync::{OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use windlass_testkit::RedisServer;

use super::RedisVoter;
use crate::backend::quorum::{Accept, Voter, Writer};
use crate::backend::rules::register::Register;
use crate::backend::{Channel, WakeUps};
use crate::lease::Fence;
use crate::name::Name;

/// What the node has counted to when a sequence begins.
const START: u64 = 1000;

const WRITER: Writer = Writer {
    who: 1,
    turn: Duration::from_millis(100),
};

#[derive(Clone, Debug)]
enum Op {
    /// A proposal above the start.
    Promise(u64),
    /// How many numbers before the last one that was drawn, and a value.
    Accept(u64, u8),
    Look,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        3 => (0..40u64).prop_map(Op::Promise),
        4 => (0..3u64, any::<u8>()).prop_map(|(before, value)| Op::Accept(before, value)),
        1 => Just(Op::Look),
    ];
    prop::collection::vec(op, 1..30)
}

fn of(name: &str) -> Channel {
    Channel {
        kind: "latch",
        name: Name::new("test", None, name).unwrap(),
    }
}

struct Deaf;

impl WakeUps for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}

    fn missed(&self) {}
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, ..ProptestConfig::default() })]

    #[test]
    fn a_node_of_a_quorum_keeps_what_the_rules_say(ops in ops()) {
        static SERVER: OnceLock<RedisServer> = OnceLock::new();
        let server = SERVER.get_or_init(|| RedisServer::start().expect("a server to test on"));
        let name = format!("register-{:x}", rand::random::<u128>());
        let name = of(&name);
        server.command(&["SET", "windlass:fence", &START.to_string()]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let deaf: Weak<Deaf> = Weak::new();
            let voter = RedisVoter::new(&server.url(), Duration::from_secs(5), 7, deaf).unwrap();
            let (mut rules, mut counter) = (Register::default(), START);
            for (step, op) in ops.iter().enumerate() {
                match *op {
                    Op::Promise(proposal) => {
                        let expected = rules.promise(&mut counter, START + proposal);
                        let proposal = Fence::new(START + proposal);
                        let promise = voter.promise(name.clone(), proposal, WRITER).await.unwrap().unwrap();
                        let kept = promise.kept.map(|kept| (kept.ballot, kept.value[0]));
                        prop_assert_eq!((promise.number, kept), expected, "{} of {:?}", step, ops);
                    }
                    Op::Accept(before, value) => {
                        let number = counter - before;
                        let accept = Accept {
                            number,
                            value: [value].into(),
                            keep: Duration::from_secs(600),
                            news: false,
                            floor: 0,
                        };
                        let expected = rules.accept(number, value);
                        let done = voter.accept(name.clone(), accept).await.unwrap();
                        prop_assert_eq!(done, expected, "{} of {:?}", step, ops);
                    }
                    Op::Look => {
                        let kept = voter.kept(name.clone()).await.unwrap();
                        let kept = kept.map(|kept| (kept.ballot, kept.value[0]));
                        prop_assert_eq!(kept, rules.accepted, "{} of {:?}", step, ops);
                    }
                }
            }
            Ok(())
        })?;
    }
}

/// A server that was restored from an old copy finds promises there that were given before what it forgot.
#[tokio::test]
async fn a_promise_of_another_run_is_void() {
    let server = RedisServer::start().unwrap();
    let name = of("register");
    let voter = RedisVoter::new(
        &server.url(),
        Duration::from_secs(5),
        7,
        Weak::<Deaf>::new(),
    )
    .unwrap();
    let accept = |number| Accept {
        number,
        value: [1].into(),
        keep: Duration::from_secs(600),
        news: false,
        floor: 0,
    };
    let joined = |run: &str| {
        server
            .command(&["SET", "windlass:quorum:joined", run])
            .unwrap();
    };
    joined("one");
    let old = voter
        .promise(name.clone(), Fence::new(START), WRITER)
        .await
        .unwrap()
        .unwrap();
    joined("two");
    assert!(
        !voter
            .accept(name.clone(), accept(old.number))
            .await
            .unwrap()
    );
    let new = voter
        .promise(name.clone(), Fence::new(START), WRITER)
        .await
        .unwrap()
        .unwrap();
    assert!(
        voter
            .accept(name.clone(), accept(new.number))
            .await
            .unwrap()
    );
}

/// What a value uses, nobody else is given; and how old it is, counts from when its number was promised.
#[tokio::test]
async fn a_value_takes_its_numbers_and_its_time_from_the_promise() {
    let server = RedisServer::start().unwrap();
    let deaf: Weak<Deaf> = Weak::new();
    let voter = RedisVoter::new(&server.url(), Duration::from_secs(5), 7, deaf).unwrap();
    let (name, key) = (of("register"), "windlass:quorum:latch:{register}");
    let promise = || async {
        let promise = voter.promise(name.clone(), Fence::new(START), WRITER);
        promise.await.unwrap().expect("nobody else asks")
    };
    let accept = |number| {
        let accept = Accept {
            number,
            value: [1].into(),
            keep: Duration::from_secs(600),
            news: false,
            floor: number + 40,
        };
        voter.accept(name.clone(), accept)
    };
    let asked = |ago: u64| {
        let now = server.command(&["TIME"]).unwrap();
        let seconds: u64 = now.lines().next().unwrap().parse().unwrap();
        let then = ((seconds - ago) * 1000).to_string();
        server.command(&["HSET", key, "asked", &then]).unwrap();
    };
    let first = promise().await;
    asked(30);
    assert!(accept(first.number).await.unwrap());
    let second = promise().await;
    assert_eq!(second.number, first.number + 41);
    let left = second.kept.unwrap().left;
    assert!(left <= Duration::from_secs(570), "{left:?}");
    // What it says of time was true so long ago.
    asked(90);
    assert!(!accept(second.number).await.unwrap());
    let kept = voter.kept(name.clone()).await.unwrap().unwrap();
    assert_eq!(kept.ballot, first.number);
}

/// Whoever was promised a number is let write for a moment, or until it says that it need not.
#[tokio::test]
async fn others_do_not_get_in_the_way_for_a_moment() {
    let server = RedisServer::start().unwrap();
    let deaf: Weak<Deaf> = Weak::new();
    let voter = RedisVoter::new(&server.url(), Duration::from_secs(5), 7, deaf).unwrap();
    let (name, key) = (of("register"), "windlass:quorum:latch:{register}");
    let asks = |who, seconds| {
        let turn = Duration::from_secs(seconds);
        let promise = voter.promise(name.clone(), Fence::new(START), Writer { who, turn });
        async { promise.await.unwrap().map(|promise| promise.number) }
    };
    let asked_before = |seconds: u64| {
        let time = server.command(&["TIME"]).unwrap();
        let now: u64 = time.lines().next().unwrap().parse().unwrap();
        let before = ((now - seconds) * 1000).to_string();
        server.command(&["HSET", key, "asked", &before]).unwrap();
    };
    // Longer than this takes, on any machine.
    let first = asks(1, 50).await.expect("nobody is there");
    assert!(asks(1, 50).await.is_some(), "it may ask again");
    assert!(asks(2, 1).await.is_none(), "the other is about to write");
    voter.let_go(name.clone(), 2).await.unwrap();
    assert!(asks(2, 1).await.is_none(), "it cannot let go of another's");
    voter.let_go(name.clone(), 1).await.unwrap();
    let second = asks(2, 50).await.expect("the other has let go");
    assert!(second > first);
    // How long it takes is for the one to say who writes.
    asked_before(40);
    assert!(asks(3, 1).await.is_none(), "it is still its turn");
    asked_before(51);
    assert!(asks(3, 1000).await.is_some(), "its moment is over");
    // Whatever it says, by then no node accepts it any more.
    asked_before(59);
    assert!(asks(4, 1).await.is_none());
    asked_before(61);
    assert!(asks(4, 1).await.is_some());
}

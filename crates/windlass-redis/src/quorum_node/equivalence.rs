//! A node of a quorum decides exactly as the rules do: the same random operations, against the rules and
//! against a real server, give the same outcomes and the same numbers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, Weak};
use std::time::Duration;

use proptest::prelude::*;
use windlass_testkit::RedisServer;

use super::{Confirmed, NodeClient, RedisNodeClient};
use windlass_core::name::Name;
use windlass_core::rules::wait_queue::MemoryQueue;
use windlass_core::rules::{claims, quorum};
use windlass_core::store::{
    AcquireRequest, Acquired, GrantListener, Kind, OnBusy, Released, Renewal, SameOwner, Share,
    WakeAddress,
};
use windlass_core::{Clock, Fence, Owner};

const TTL: Duration = Duration::from_secs(600);
/// What a node has counted to when a sequence begins.
const START: u64 = 1000;

#[derive(Clone, Debug)]
enum Op {
    /// Owner, proposal above the start, whether to line up, weight.
    Vote(u64, u64, bool, u32),
    Confirm(u64, u64),
    /// Owner, proposal, whether the number that it says is the one it drew last.
    LineUpAgain(u64, u64, bool),
    Release(u64),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let (owner, proposal) = (0..4u64, 0..60u64);
    let weight = prop::sample::select(vec![1u32, 1000]);
    let op = prop_oneof![
        4 => (owner.clone(), proposal.clone(), any::<bool>(), weight)
            .prop_map(|(o, p, line_up, weight)| Op::Vote(o, p, line_up, weight)),
        3 => (owner.clone(), proposal.clone()).prop_map(|(o, p)| Op::Confirm(o, p)),
        2 => (owner.clone(), proposal, any::<bool>()).prop_map(|(o, p, t)| Op::LineUpAgain(o, p, t)),
        2 => owner.prop_map(Op::Release),
    ];
    prop::collection::vec(op, 1..40)
}

#[derive(Debug, PartialEq)]
enum Seen {
    Granted(u64),
    Queued(u64),
    /// Which of several holders is named depends on a fraction of a millisecond.
    Busy,
    Refused,
    Held(u64),
    Waiting,
    Gone,
    LinedUp(bool),
    Released(Released),
}

fn owner(n: u64) -> Owner {
    Owner::new(&format!("host:1:{n:032x}")).unwrap()
}

fn share(kind: Kind, weight: u32) -> Share {
    match kind {
        Kind::ReadWrite => Share {
            weight,
            size: 1000,
            ..Share::ONLY
        },
        _ => Share::ONLY,
    }
}

fn ask(kind: Kind, name: &Name, n: u64, line_up: bool, weight: u32) -> AcquireRequest {
    AcquireRequest {
        kind,
        name: name.clone(),
        owner: owner(n),
        share: share(kind, weight),
        ttl: TTL,
        on_busy: if line_up {
            OnBusy::Enqueue
        } else {
            OnBusy::Return
        },
        note: None,
        heal_missing_ttl: false,
        record_now: true,
        again: false,
        renewed: true,
        wake: wake(n),
    }
}

fn renewal(kind: Kind, name: &Name, n: u64) -> Renewal {
    Renewal {
        kind,
        name: name.clone(),
        owner: owner(n),
        fence: Fence::new(0),
        ttl: TTL,
        age: Duration::ZERO,
        note: None,
        wake: wake(n),
        same_owner: SameOwner::Impossible,
        write_anew: false,
        renewed: true,
    }
}

fn wake(n: u64) -> WakeAddress {
    WakeAddress {
        client: 7,
        claim: n,
    }
}

fn acquired(outcome: Acquired) -> Seen {
    match outcome {
        Acquired::Granted { fence, .. } => Seen::Granted(fence.get()),
        Acquired::Queued { ticket: place, .. } => Seen::Queued(place.get()),
        Acquired::Busy(_) => Seen::Busy,
        Acquired::Refused(_) => Seen::Refused,
    }
}

/// The rules' side, with the number that each owner drew last.
struct Ruled {
    line: MemoryQueue,
    counter: u64,
    drawn: [u64; 4],
    /// Who has stood in line, and drawn nothing since.
    lined_up: [bool; 4],
}

impl Ruled {
    fn apply(&mut self, kind: Kind, name: &Name, op: &Op) -> Seen {
        let now = Clock::system().now();
        let mut counter = self.counter;
        let proposal = match op {
            // A room's votes come without a proposal.
            Op::Vote(_, _, _, _) if kind != Kind::Lock => 0,
            Op::Vote(_, p, _, _) | Op::Confirm(_, p) | Op::LineUpAgain(_, p, _) => START + p,
            Op::Release(_) => 0,
        };
        let mut draw = || Fence::new(quorum::draw(&mut counter, proposal));
        let mut line = self.line.with(&mut draw);
        let seen = match *op {
            Op::Vote(n, _, line_up, weight) => {
                let ask = ask(kind, name, n, line_up, weight);
                let handed = kind == Kind::Lock && self.lined_up[n as usize];
                let Ok(decided) = quorum::acquire(&mut line, now, &ask, handed);
                acquired(decided.outcome)
            }
            Op::Confirm(n, _) => {
                let Ok(decided) = quorum::confirm(&mut line, now, &renewal(kind, name, n));
                match decided.outcome {
                    quorum::Confirmed::Held(number) => {
                        self.drawn[n as usize] = number.get();
                        Seen::Held(number.get())
                    }
                    quorum::Confirmed::Waiting => Seen::Waiting,
                    quorum::Confirmed::Gone => Seen::Gone,
                }
            }
            Op::LineUpAgain(n, _, _) => {
                let number = self.number(n, op);
                let mut line = self.line.with(&mut draw);
                let claim = renewal(kind, name, n);
                let Ok(decided) = quorum::line_up_again(&mut line, now, &claim, number);
                Seen::LinedUp(decided.outcome)
            }
            Op::Release(n) => {
                let Ok(decided) = claims::release(&mut line, kind, now, &owner(n), None);
                Seen::Released(decided.outcome)
            }
        };
        self.counter = counter;
        let (Op::Vote(n, ..) | Op::Confirm(n, _) | Op::LineUpAgain(n, ..) | Op::Release(n)) = op;
        match seen {
            Seen::Queued(_) | Seen::LinedUp(true) => self.lined_up[*n as usize] = true,
            Seen::Granted(_) | Seen::Held(_) | Seen::Released(_) => {
                self.lined_up[*n as usize] = false;
            }
            _ => {}
        }
        seen
    }

    /// The number that is said when lining up again.
    fn number(&self, n: u64, op: &Op) -> Fence {
        let drawn = self.drawn[n as usize];
        match op {
            Op::LineUpAgain(_, _, true) => Fence::new(drawn),
            // None that is given here, nor 1, which is what stands for a place on the server.
            _ => Fence::new(drawn + 1_000_000),
        }
    }
}

async fn ask_server(
    voter: &RedisNodeClient,
    kind: Kind,
    name: &Name,
    op: &Op,
    number: Fence,
) -> Seen {
    let claim = |n| renewal(kind, name, n);
    match *op {
        Op::Vote(n, p, line_up, weight) => {
            let ask = ask(kind, name, n, line_up, weight);
            acquired(voter.vote(&ask, Fence::new(START + p)).await.unwrap())
        }
        Op::Confirm(n, p) => {
            let told = voter.confirm(&claim(n), Fence::new(START + p)).await;
            match told.unwrap() {
                Confirmed::Held(number) => Seen::Held(number.get()),
                Confirmed::Waiting { .. } => Seen::Waiting,
                Confirmed::Gone => Seen::Gone,
            }
        }
        Op::LineUpAgain(n, p, _) => {
            let done = voter.line_up_again(&claim(n), number, Fence::new(START + p));
            Seen::LinedUp(done.await.unwrap())
        }
        Op::Release(n) => {
            let released = voter.release(kind, name.clone(), owner(n), None).await;
            Seen::Released(released.unwrap())
        }
    }
}

struct Deaf;

impl GrantListener for Deaf {
    fn granted(&self, _: u64, _: Option<Fence>) {}

    fn missed(&self) {}
}

fn server() -> &'static RedisServer {
    static SERVER: OnceLock<RedisServer> = OnceLock::new();
    SERVER.get_or_init(|| RedisServer::start().expect("a server to test on"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn a_node_of_a_quorum_decides_as_the_rules_do(
        kind in prop::sample::select(vec![Kind::Lock, Kind::ReadWrite, Kind::Election]),
        ops in ops(),
    ) {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("vote-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let name = Name::new("test", None, &name).unwrap();
        server().command(&["SET", "windlass:fence", &START.to_string()]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let deaf: Weak<Deaf> = Weak::new();
            let voter = RedisNodeClient::new(&server().url(), Duration::from_secs(5), 7, deaf).unwrap();
            let mut rules = Ruled { line: MemoryQueue::default(), counter: START, drawn: [0; 4], lined_up: [false; 4] };
            for (step, op) in ops.iter().enumerate() {
                let n = match op {
                    Op::Vote(n, ..) | Op::Confirm(n, _) | Op::LineUpAgain(n, ..) | Op::Release(n) => *n,
                };
                let number = rules.number(n, op);
                let expected = rules.apply(kind, &name, op);
                let seen = ask_server(&voter, kind, &name, op, number).await;
                prop_assert_eq!(&seen, &expected, "step {} of {:?}", step, ops);
            }
            Ok(())
        })?;
    }
}

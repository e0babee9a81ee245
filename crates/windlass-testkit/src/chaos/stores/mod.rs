//! The stores, and the faults that can be injected into each.

mod damaged_file;
mod etcd;
mod failover;
mod redlock;
mod zookeeper;

use std::fmt;
use std::time::Duration;

use damaged_file::DamagedFile;
use etcd::ThreeEtcdMembers;
use failover::{RedisWithSentinels, ThreeMasterCluster};
use redlock::FiveRedlockNodes;
use zookeeper::ThreeZooKeeperServers;

use super::scenario::TTL;
use crate::conformance::TestStore;
use crate::history::Breach;
use crate::{Direction, FaultProxy, RedisServer};

/// The stores by name.
pub const NAMES: [&str; 10] = [
    "file",
    "file-damaged",
    "redis",
    "redis-without-persistence",
    "sentinels",
    "cluster",
    "redlock",
    "redlock-without-persistence",
    "etcd",
    "zookeeper",
];

/// Starts the servers of a store; `None` if there is none of that name.
pub fn start_store(name: &str) -> Option<Box<dyn StoreUnderTest>> {
    Some(match name {
        "file" => Box::new(PlainFile::new()),
        "file-damaged" => Box::new(DamagedFile::new()),
        "redis" => Box::new(OneRedis::new()),
        "redis-without-persistence" => Box::new(ForgetfulRedis::new()),
        "sentinels" => Box::new(RedisWithSentinels::new()),
        "cluster" => Box::new(ThreeMasterCluster::new()),
        "redlock" => Box::new(FiveRedlockNodes::durable()),
        "redlock-without-persistence" => Box::new(FiveRedlockNodes::forgetful()),
        "etcd" => Box::new(ThreeEtcdMembers::new()),
        "zookeeper" => Box::new(ThreeZooKeeperServers::new()),
        _ => return None,
    })
}

/// A store that faults can be injected into.
pub trait StoreUnderTest {
    /// The URL for its clients.
    fn url(&self) -> String;

    /// The faults of the store, besides those of its clients.
    fn faults(&self) -> Vec<Fault<'_>>;

    /// Faults that lose data, or stop a majority.
    fn severe_faults(&self) -> Vec<Fault<'_>> {
        Vec::new()
    }

    /// How long a claim of a client that was killed may stay.
    fn expiry_limit(&self) -> Duration {
        self.ttl() + Duration::from_secs(1)
    }

    /// The TTL of claims: longer than the store takes to recover, if claims are to survive.
    fn ttl(&self) -> Duration {
        TTL
    }

    /// Whether the store does not promise to prevent this: it is printed, and no failure.
    fn tolerates(&self, _breach: &Breach) -> bool {
        false
    }
}

/// A fault with a beginning and an end.
pub struct Fault<'a> {
    pub(super) kind: &'static str,
    pub(super) victim: &'static str,
    pub(super) lasts: Duration,
    pub(super) begin: Box<dyn Fn() + 'a>,
    pub(super) end: Box<dyn Fn() + 'a>,
}

impl<'a> Fault<'a> {
    pub(super) fn new(
        (kind, victim): (&'static str, &'static str),
        lasts: Duration,
        begin: impl Fn() + 'a,
        end: impl Fn() + 'a,
    ) -> Fault<'a> {
        Fault {
            kind,
            victim,
            lasts,
            begin: Box::new(begin),
            end: Box::new(end),
        }
    }
}

impl fmt::Debug for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.victim)
    }
}

fn freeze<'a>(kind: &'static str, lasts: Duration, server: &'a RedisServer) -> Fault<'a> {
    let (begin, end) = (|| server.pause().unwrap(), || server.resume().unwrap());
    Fault::new((kind, "the server"), lasts, begin, end)
}

fn kill_and_restart(server: &RedisServer) -> Fault<'_> {
    let (begin, end) = (|| server.kill().unwrap(), || server.restart().unwrap());
    Fault::new(("kill and restart", "the server"), TTL / 4, begin, end)
}

/// A file store: only its clients can have faults.
struct PlainFile(TestStore);

impl PlainFile {
    fn new() -> PlainFile {
        PlainFile(TestStore::file())
    }
}

impl StoreUnderTest for PlainFile {
    fn url(&self) -> String {
        self.0.url().to_owned()
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        Vec::new()
    }
}

/// One server behind a proxy; it persists every write before its reply.
struct OneRedis {
    server: RedisServer,
    proxy: FaultProxy,
}

impl OneRedis {
    fn new() -> OneRedis {
        let server = RedisServer::builder().append_only(true).start();
        let server = server.expect("a server to test on");
        let proxy = FaultProxy::start(server.addr()).expect("a proxy");
        OneRedis { server, proxy }
    }
}

impl StoreUnderTest for OneRedis {
    fn url(&self) -> String {
        format!("redis://{}", self.proxy.addr())
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        let OneRedis { server, proxy } = self;
        vec![
            freeze("freeze", TTL / 2, server),
            freeze("freeze for long", TTL * 2, server),
            kill_and_restart(server),
            Fault::new(
                ("cut off", "the server"),
                TTL,
                || {
                    proxy.refuse(true);
                    proxy.reset_all();
                },
                || proxy.heal(),
            ),
            Fault::new(
                ("swallow answers of", "the server"),
                TTL,
                || proxy.blackhole(Direction::ToClient),
                || proxy.heal(),
            ),
        ]
    }
}

/// One server that keeps its data in memory alone: a restart, or `FLUSHALL`, loses every claim.
struct ForgetfulRedis(RedisServer);

impl ForgetfulRedis {
    fn new() -> ForgetfulRedis {
        ForgetfulRedis(RedisServer::start().expect("a server to test on"))
    }
}

impl StoreUnderTest for ForgetfulRedis {
    fn url(&self) -> String {
        self.0.url()
    }

    /// What the server forgets, it grants again. Fences must still grow.
    fn tolerates(&self, breach: &Breach) -> bool {
        failover::lost_by_failover(breach)
    }

    fn faults(&self) -> Vec<Fault<'_>> {
        let server = &self.0;
        vec![
            kill_and_restart(server),
            Fault::new(
                ("flush", "the server"),
                Duration::ZERO,
                || drop(server.command(&["FLUSHALL"]).unwrap()),
                || (),
            ),
        ]
    }
}

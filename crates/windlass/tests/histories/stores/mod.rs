//! What can be done to a store.

mod etcd;
mod failover;
mod redlock;
mod zookeeper;

use std::time::Duration;

use windlass_testkit::conformance::TestStore;
use windlass_testkit::history::Breach;
use windlass_testkit::{Direction, FaultProxy, RedisServer};

use crate::scenario::TTL;

pub(crate) use etcd::ThreeEtcdMembers;
pub(crate) use failover::{RedisWithSentinels, ThreeMasterCluster};
pub(crate) use redlock::FiveRedlockNodes;
pub(crate) use zookeeper::ThreeZooKeeperServers;

/// A store to be mistreated.
pub(crate) trait StoreUnderTest {
    /// How its clients reach it.
    fn url(&self) -> String;

    /// What can be done to it, apart from what is done to its clients.
    fn faults(&self) -> Vec<Fault<'_>>;

    /// How long a claim lives: longer than the store needs to come back, if the claim is to survive.
    fn ttl(&self) -> Duration {
        TTL
    }

    /// Whether it is not promised that this cannot happen: it is shown, and no failure.
    fn tolerates(&self, _breach: &Breach) -> bool {
        false
    }
}

/// Something bad that begins and ends.
pub(crate) struct Fault<'a> {
    pub(crate) kind: &'static str,
    pub(crate) victim: &'static str,
    pub(crate) lasts: Duration,
    pub(crate) begin: Box<dyn Fn() + 'a>,
    pub(crate) end: Box<dyn Fn() + 'a>,
}

impl<'a> Fault<'a> {
    pub(crate) fn new(
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

/// A file: nothing can be done to it but to those who use it.
pub(crate) struct PlainFile(TestStore);

impl PlainFile {
    pub(crate) fn new() -> PlainFile {
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

/// One server that writes everything to disk before it answers, behind a proxy.
pub(crate) struct OneRedis {
    server: RedisServer,
    proxy: FaultProxy,
}

impl OneRedis {
    pub(crate) fn new() -> OneRedis {
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
            Fault::new(
                ("freeze", "the server"),
                TTL / 2,
                || server.pause().unwrap(),
                || server.resume().unwrap(),
            ),
            Fault::new(
                ("freeze for long", "the server"),
                TTL * 2,
                || server.pause().unwrap(),
                || server.resume().unwrap(),
            ),
            Fault::new(
                ("kill and restart", "the server"),
                TTL / 4,
                || server.kill().unwrap(),
                || server.restart().unwrap(),
            ),
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

//! Test tools of Windlass: real servers, faults, and checks of what clients observed.
//!
//! * [`RedisServer`] starts a real Redis or Valkey on a free port, and can kill, freeze and restart it.
//! * [`ZooKeeperServers`] starts a real ZooKeeper, or an ensemble of three.
//! * [`EtcdCluster`] starts a real etcd with one member or several.
//! * [`PostgresServer`] starts a real PostgreSQL, and [`PgBouncer`] a connection pooler in front of it.
//! * [`RedisReplicated`] and [`RedisCluster`] start Redis with sentinels, and a Redis Cluster.
//! * [`PrometheusServer`] starts a real Prometheus that scrapes a program.
//! * [`RedlockNodes`] starts several independent Redis servers for a quorum.
//! * [`FaultProxy`] is a TCP proxy whose faults tests switch: it delays, holds back, swallows and
//!   resets.
//! * [`DelayedDeliveryProxy`] delivers bytes after their sender has closed the connection.
//! * [`TestProcess`] runs another program that a test can kill or freeze.
//! * [`mod@conformance`] holds the behaviour that all stores share, written once.
//! * [`FencedRegister`] is a resource that checks fences, as a database would.
//! * [`CountingLoad`] runs clients that count in that register, each under a lock.
//! * [`LockClients`] take turns under a lock, to measure how soon all are served after a fault.
//! * [`history`] collects what many processes observed, and checks that a lock allows it.
//! * [`chaos`] runs many processes under random faults, and reports what the history shows.
//! * [`exhausted_fences_are_refused`] sets a fence counter to its end.
//! * [`eventually`] and [`eventually_blocking`] poll for conditions without a signal.
//!
//! Every server and process ends when its value is dropped, and also when the test process is
//! killed. A server that is not installed is an error that says what to install, never a skipped
//! test.

#[cfg(feature = "conformance")]
pub mod chaos;
#[cfg(feature = "conformance")]
pub mod conformance;
mod delayed_delivery;
mod eventually;
#[cfg(feature = "conformance")]
mod exhausted_fences;
pub mod history;
#[cfg(feature = "conformance")]
mod load;
mod owned_child;
#[cfg(feature = "conformance")]
pub mod partition;
mod process;
mod proxy;
#[cfg(feature = "conformance")]
mod recovery;
mod register;
mod server;

pub use delayed_delivery::DelayedDeliveryProxy;
pub use eventually::{eventually, eventually_blocking};
#[cfg(feature = "conformance")]
pub use exhausted_fences::exhausted_fences_are_refused;
#[cfg(feature = "conformance")]
pub use load::CountingLoad;
pub use process::{Signal, TestProcess};
pub use proxy::{Direction, FaultProxy};
#[cfg(feature = "conformance")]
pub use recovery::LockClients;
pub use register::{FencedRegister, RegisterClient, Written};
pub use server::{
    ClientCertificates, Flavor, PgBouncer, PoolMode, PostgresServer, PostgresServerBuilder,
    PrometheusServer, RedisCluster, RedisReplicated, RedisServer, RedisServerBuilder, RedlockNodes,
    SequenceZooKeeper, SlotMove, TlsZooKeeper, ZOOKEEPER_TICK, ZooKeeperServers,
};
pub use server::{EtcdCluster, EtcdClusterBuilder, EtcdVersion};

//! The test bed of Windlass: what a test needs to check a promise against the real thing.
//!
//! * [`RedisServer`] starts a real Redis or Valkey on a free port, and can kill, freeze and restart it.
//! * [`ZooKeeperServers`] starts a real ZooKeeper, or an ensemble of three.
//! * [`RedlockNodes`] are several of them, independent of each other, for a quorum.
//! * [`EtcdCluster`] does the same for etcd, with one member or several.
//! * [`RedisReplicated`] and [`RedisCluster`] are several of them, with sentinels or as a cluster.
//! * [`FaultProxy`] stands between a client and any TCP server and misbehaves on command: it delays,
//!   holds back, swallows, resets and forgets.
//! * [`DelayedDeliveryProxy`] delivers what was sent after its sender has hung up.
//! * [`TestProcess`] runs another program, to be killed or frozen at the worst moment.
//! * [`mod@conformance`] holds every behaviour that all backends share, written once.
//! * [`FencedRegister`] is a resource that checks fences, as a database would.
//! * [`CountingLoad`] is a load of clients that count in it, each under a lock.
//! * [`history`] collects what many processes saw, and checks that it is what locks do.
//! * [`eventually`] and [`eventually_blocking`] wait for what has no signal to wait for.
//!
//! Whatever is started here ends with the value that stands for it, and also when the test process
//! itself is killed. A server that is not installed is an error that says what to install, never a
//! skipped test.

#[cfg(feature = "conformance")]
pub mod conformance;
mod delayed_delivery;
mod eventually;
pub mod history;
#[cfg(feature = "conformance")]
mod load;
mod owned_child;
#[cfg(feature = "conformance")]
pub mod partition;
mod process;
mod proxy;
mod register;
mod server;

pub use delayed_delivery::DelayedDeliveryProxy;
pub use eventually::{eventually, eventually_blocking};
#[cfg(feature = "conformance")]
pub use load::CountingLoad;
pub use process::TestProcess;
pub use proxy::{Direction, FaultProxy};
pub use register::{FencedRegister, RegisterClient, Written};
pub use server::{
    ClientCertificates, Flavor, RedisCluster, RedisReplicated, RedisServer, RedisServerBuilder,
    RedlockNodes, SequenceZooKeeper, SlotMove, TlsZooKeeper, ZOOKEEPER_TICK, ZooKeeperServers,
};
pub use server::{EtcdCluster, EtcdClusterBuilder, EtcdVersion};

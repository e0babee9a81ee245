//! Real servers as child processes.

mod binary;
mod config;
mod etcd;
mod port;
mod redis;
mod redlock;
mod resp;
mod tls;
mod zookeeper;
mod zookeeper_numbers;

pub use binary::Flavor;
pub use config::RedisServerBuilder;
pub use etcd::{EtcdCluster, EtcdClusterBuilder, EtcdVersion};
pub use redis::RedisServer;
pub use redlock::RedlockNodes;
pub use zookeeper::{ZOOKEEPER_TICK, ZooKeeperServers};
pub use zookeeper_numbers::NumberedZooKeeper;

//! Real servers as child processes.

mod binary;
mod cluster;
mod config;
mod etcd;
mod etcd_config;
mod peer_network;
mod port;
mod postgres;
mod prometheus;
mod redis;
mod redlock;
mod replicated;
mod resp;
mod tls;
mod zookeeper;
mod zookeeper_sequence;
mod zookeeper_tls;

pub use binary::Flavor;
pub use cluster::{RedisCluster, SlotMove};
pub use config::RedisServerBuilder;
pub use etcd::EtcdCluster;
pub use etcd_config::{EtcdClusterBuilder, EtcdVersion};
pub use postgres::{PgBouncer, PoolMode, PostgresServer, PostgresServerBuilder};
pub use prometheus::PrometheusServer;
pub use redis::RedisServer;
pub use redlock::RedlockNodes;
pub use replicated::RedisReplicated;
pub use zookeeper::{ZOOKEEPER_TICK, ZooKeeperServers};
pub use zookeeper_sequence::SequenceZooKeeper;
pub use zookeeper_tls::{ClientCertificates, TlsZooKeeper};

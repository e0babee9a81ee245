//! Real servers as child processes.

mod binary;
mod config;
mod port;
mod redis;
mod resp;
mod tls;

pub use binary::Flavor;
pub use config::RedisServerBuilder;
pub use redis::RedisServer;

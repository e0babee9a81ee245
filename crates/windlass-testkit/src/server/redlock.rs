//! Several independent servers, for a quorum.

use std::io;
use std::path::Path;
use std::thread;

use super::binary::Flavor;
use super::config::RedisServerBuilder;
use super::redis::RedisServer;

/// A file system in memory, on Linux.
const MEMORY: &str = "/dev/shm";

/// Servers that know nothing of each other, each with a port and a folder of its own.
#[derive(Debug)]
pub struct RedlockNodes {
    nodes: Vec<RedisServer>,
}

impl RedlockNodes {
    /// Servers whose every write reaches their file before its reply. The file is in memory where
    /// the machine has a folder for that: it outlives the server, and several servers do not
    /// wait for one disk.
    pub fn durable(count: usize, flavor: Flavor) -> io::Result<RedlockNodes> {
        let mut builder = RedisServer::builder().binary(flavor).append_only(true);
        if Path::new(MEMORY).is_dir() {
            builder = builder.folder_in(MEMORY);
        }
        RedlockNodes::start(count, builder)
    }

    /// Servers that forget everything when they end.
    pub fn without_persistence(count: usize, flavor: Flavor) -> io::Result<RedlockNodes> {
        RedlockNodes::start(count, RedisServer::builder().binary(flavor))
    }

    /// So many servers that are built alike.
    pub fn start(count: usize, builder: RedisServerBuilder) -> io::Result<RedlockNodes> {
        // At the same time, because each takes a while to come up.
        let starting: Vec<_> = (0..count)
            .map(|_| {
                let builder = builder.clone();
                thread::spawn(move || builder.start())
            })
            .collect();
        let started = starting.into_iter().map(|node| {
            let broken = |_| io::Error::other("the thread that started a server panicked");
            node.join().map_err(broken)?
        });
        let nodes = started.collect::<io::Result<_>>()?;
        Ok(RedlockNodes { nodes })
    }

    /// The URL of all of them, with these parameters: `max_ttl=2s&node_timeout=100ms`, or none.
    pub fn url(&self, parameters: &str) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|n| n.addr().to_string()).collect();
        let mark = if parameters.is_empty() { "" } else { "?" };
        format!("redlock://{}{mark}{parameters}", hosts.join(","))
    }

    /// One of them.
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, RedisServer> {
        self.nodes.iter()
    }
}

impl<'a> IntoIterator for &'a RedlockNodes {
    type Item = &'a RedisServer;
    type IntoIter = std::slice::Iter<'a, RedisServer>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

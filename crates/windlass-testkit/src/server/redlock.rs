//! Several independent Redis servers, for a quorum.

use std::io;
use std::path::Path;
use std::thread;

use super::binary::Flavor;
use super::config::RedisServerBuilder;
use super::redis::RedisServer;

/// A file system in memory, on Linux.
const MEMORY: &str = "/dev/shm";

/// Independent servers, each on its own port and folder.
#[derive(Debug)]
pub struct RedlockNodes {
    nodes: Vec<RedisServer>,
}

impl RedlockNodes {
    /// Servers that persist every write before its reply. The file is in memory if the machine has
    /// such a folder: it outlives the server, and several servers do not compete for one disk.
    pub fn durable(count: usize, flavor: Flavor) -> io::Result<RedlockNodes> {
        let mut builder = RedisServer::builder().binary(flavor).append_only(true);
        if Path::new(MEMORY).is_dir() {
            builder = builder.folder_in(MEMORY);
        }
        RedlockNodes::start(count, builder)
    }

    /// Servers that lose their data when they end.
    pub fn without_persistence(count: usize, flavor: Flavor) -> io::Result<RedlockNodes> {
        RedlockNodes::start(count, RedisServer::builder().binary(flavor))
    }

    /// Starts `count` servers with the same options.
    pub fn start(count: usize, builder: RedisServerBuilder) -> io::Result<RedlockNodes> {
        // Concurrently, because each takes a while to start.
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

    /// The URL of all servers, with parameters such as `max_ttl=2s&node_timeout=100ms`. Without a
    /// `node_timeout` it is long, so that no node counts as silent because the machine is busy.
    pub fn url(&self, parameters: &str) -> String {
        let hosts: Vec<String> = self.nodes.iter().map(|n| n.addr().to_string()).collect();
        let timeout = match parameters.contains("node_timeout") {
            true => "",
            false => "node_timeout=5s",
        };
        let parameters = [parameters, timeout];
        let parameters = parameters.into_iter().filter(|p| !p.is_empty());
        let parameters: Vec<&str> = parameters.collect();
        format!("redlock://{}?{}", hosts.join(","), parameters.join("&"))
    }

    /// One server.
    pub fn node(&self, index: usize) -> &RedisServer {
        &self.nodes[index]
    }

    /// All servers.
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

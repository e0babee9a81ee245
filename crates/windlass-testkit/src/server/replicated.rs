//! A replicated Redis: a master, replicas, and sentinels that monitor them.

use std::io;
use std::time::{Duration, Instant};

use super::binary::Flavor;
use super::redis::RedisServer;
use crate::eventually_blocking;

/// The service name of the sentinels.
const SERVICE: &str = "windlass";
const READY_LIMIT: Duration = Duration::from_secs(30);

/// One master, two replicas and three sentinels, which promote a new master within about two
/// seconds.
#[derive(Debug)]
pub struct RedisReplicated {
    servers: Vec<RedisServer>,
    sentinels: Vec<RedisServer>,
    options: Vec<(String, String)>,
}

impl RedisReplicated {
    /// Starts all processes, and returns when the sentinels know each other and the replicas.
    pub fn start() -> io::Result<RedisReplicated> {
        Self::start_with(Flavor::Redis, &[], Duration::from_secs(1))
    }

    /// The same with servers whose clocks [can be moved](RedisServer::shift_clock): Valkey, since
    /// Debian's Redis does not work with libfaketime.
    pub fn with_movable_clocks() -> io::Result<RedisReplicated> {
        Self::build(Flavor::Valkey, &[], Duration::from_secs(1), true)
    }

    /// The same with another kind of server, configuration lines for each server (not the
    /// sentinels), and another time after which the sentinels consider a silent master down.
    pub fn start_with(
        flavor: Flavor,
        config: &[(&str, &str)],
        silence: Duration,
    ) -> io::Result<RedisReplicated> {
        Self::build(flavor, config, silence, false)
    }

    fn build(
        flavor: Flavor,
        config: &[(&str, &str)],
        silence: Duration,
        movable_clocks: bool,
    ) -> io::Result<RedisReplicated> {
        let options: Vec<(String, String)> = config
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        let server = |master: Option<u16>| {
            let mut builder = RedisServer::builder()
                .binary(flavor)
                .config("repl-diskless-sync", "yes")
                .config("repl-diskless-sync-delay", "0")
                .config("repl-ping-replica-period", "1");
            for (key, value) in &options {
                builder = builder.config(key, value);
            }
            if let Some(port) = master {
                builder = builder.config("replicaof", format!("127.0.0.1 {port}"));
            }
            if movable_clocks {
                builder = builder.movable_clock();
            }
            builder.start()
        };
        let master = server(None)?;
        let port = master.port();
        let servers = vec![master, server(Some(port))?, server(Some(port))?];
        let sentinel = || {
            RedisServer::builder()
                .binary(flavor)
                .sentinel()
                .config("sentinel", format!("monitor {SERVICE} 127.0.0.1 {port} 2"))
                .config(
                    "sentinel",
                    format!("down-after-milliseconds {SERVICE} {}", silence.as_millis()),
                )
                .config("sentinel", format!("failover-timeout {SERVICE} 3000"))
                .config("sentinel", format!("parallel-syncs {SERVICE} 2"))
                .start()
        };
        let sentinels = vec![sentinel()?, sentinel()?, sentinel()?];
        let replicated = RedisReplicated {
            servers,
            sentinels,
            options,
        };
        let ready = eventually_blocking(READY_LIMIT, || {
            replicated.sentinels.iter().all(knows_all) && replicated.in_sync() == 2
        });
        match ready {
            true => Ok(replicated),
            false => Err(io::Error::other("the sentinels do not find each other")),
        }
    }

    /// The URL of the service for Windlass.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = self
            .sentinels
            .iter()
            .map(|s| s.addr().to_string())
            .collect();
        format!("redis+sentinel://{}/{SERVICE}", hosts.join(","))
    }

    /// The configuration lines of each server.
    pub fn config(&self) -> &[(String, String)] {
        &self.options
    }

    /// The sentinels.
    pub fn sentinels(&self) -> &[RedisServer] {
        &self.sentinels
    }

    /// All servers, in their current roles.
    pub fn servers(&self) -> &[RedisServer] {
        &self.servers
    }

    /// The port of the master, as most sentinels see it.
    pub fn master_port(&self) -> io::Result<u16> {
        let mut last = io::Error::other("no sentinel answers");
        let mut ports = Vec::new();
        for sentinel in self.sentinels.iter().filter(|s| s.pid().is_some()) {
            match sentinel.command(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", SERVICE]) {
                Ok(answer) => match answer.lines().nth(1).and_then(|p| p.parse::<u16>().ok()) {
                    Some(port) => ports.push(port),
                    None => last = io::Error::other(answer),
                },
                Err(error) => last = error,
            }
        }
        ports.sort_unstable();
        ports.get(ports.len() / 2).copied().ok_or(last)
    }

    /// The master, as most sentinels see it.
    pub fn master(&self) -> io::Result<&RedisServer> {
        let port = self.master_port()?;
        let found = self.servers.iter().find(|server| server.port() == port);
        found.ok_or_else(|| io::Error::other(format!("an unknown master on port {port}")))
    }

    /// The servers that are not the master.
    pub fn replicas(&self) -> io::Result<Vec<&RedisServer>> {
        let port = self.master_port()?;
        Ok(self.servers.iter().filter(|s| s.port() != port).collect())
    }

    /// Waits until a server other than the one on port `old` is the master and takes writes.
    /// Returns how long that took.
    pub fn await_promotion(&self, old: u16, limit: Duration) -> io::Result<Duration> {
        let start = Instant::now();
        let promoted = eventually_blocking(limit, || {
            let Ok(master) = self.master() else {
                return false;
            };
            master.port() != old
                && master
                    .command(&["ROLE"])
                    .is_ok_and(|role| role.starts_with("master"))
        });
        match promoted {
            true => Ok(start.elapsed()),
            false => Err(io::Error::other(format!("no new master after {limit:?}"))),
        }
    }

    /// How many replicas are connected to the master.
    pub fn in_sync(&self) -> usize {
        let role = self
            .master()
            .and_then(|master| master.command(&["INFO", "replication"]));
        let role = role.unwrap_or_default();
        role.lines()
            .filter(|line| line.contains("state=online"))
            .count()
    }
}

fn knows_all(sentinel: &RedisServer) -> bool {
    let answer = sentinel
        .command(&["SENTINEL", "MASTER", SERVICE])
        .unwrap_or_default();
    let mut lines = answer.lines();
    let mut field = |name: &str| {
        lines.find(|line| *line == name)?;
        lines.next()?.parse::<u32>().ok()
    };
    // In the order of the sentinel's reply.
    field("num-slaves") == Some(2) && field("num-other-sentinels") == Some(2)
}

//! A Redis Cluster: three masters with a replica each.

use std::io;
use std::time::{Duration, Instant};

use super::binary::Flavor;
use super::config::RedisServerBuilder;
use super::redis::RedisServer;
use crate::eventually_blocking;

const MASTERS: u16 = 3;
const SLOTS: u16 = 16384;
const READY_LIMIT: Duration = Duration::from_secs(40);

/// Three masters with a replica each, which takes over within about three seconds.
#[derive(Debug)]
pub struct RedisCluster {
    nodes: Vec<RedisServer>,
}

impl RedisCluster {
    /// Starts all nodes, and returns when they agree.
    pub fn start() -> io::Result<RedisCluster> {
        Self::start_with(Flavor::Redis, &[])
    }

    /// A cluster of a single node that has all slots and no replica, and its URL.
    pub fn single_node() -> io::Result<(RedisServer, String)> {
        let each = RedisServer::builder().config("cluster-enabled", "yes");
        let node = each.cluster_bus().start()?;
        node.command(&["CLUSTER", "ADDSLOTSRANGE", "0", &(SLOTS - 1).to_string()])?;
        let healthy = || {
            let info = node.command(&["CLUSTER", "INFO"]).unwrap_or_default();
            info.contains("cluster_state:ok")
        };
        if !eventually_blocking(READY_LIMIT, healthy) {
            return Err(io::Error::other(format!(
                "not healthy after {READY_LIMIT:?}"
            )));
        }
        let url = format!("redis+cluster://{}", node.addr());
        Ok((node, url))
    }

    /// The same with another kind of server, and configuration lines for each.
    pub fn start_with(flavor: Flavor, config: &[(&str, &str)]) -> io::Result<RedisCluster> {
        let mut each = RedisServer::builder().binary(flavor);
        for (key, value) in config {
            each = each.config(*key, *value);
        }
        Self::start_from(each)
    }

    /// The same, with each node built by `each`.
    pub fn start_from(each: RedisServerBuilder) -> io::Result<RedisCluster> {
        let node = || {
            let usual = [
                ("cluster-enabled", "yes"),
                ("cluster-node-timeout", "1000"),
                ("repl-diskless-sync", "yes"),
                ("repl-diskless-sync-delay", "0"),
                ("repl-ping-replica-period", "1"),
            ];
            each.clone().defaults(&usual).cluster_bus().start()
        };
        let nodes: io::Result<Vec<RedisServer>> = (0..2 * MASTERS).map(|_| node()).collect();
        let cluster = RedisCluster { nodes: nodes? };
        cluster.join()?;
        Ok(cluster)
    }

    fn join(&self) -> io::Result<()> {
        let (masters, replicas) = self.nodes.split_at(usize::from(MASTERS));
        for (i, master) in (0u16..).zip(masters) {
            // Distinct epochs from the start: otherwise the nodes have to resolve the conflict
            // first.
            master.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()])?;
            let first = SLOTS / MASTERS * i;
            let last = match i + 1 {
                MASTERS => SLOTS - 1,
                next => SLOTS / MASTERS * next - 1,
            };
            let slots: Vec<String> = (first..=last).map(|slot| slot.to_string()).collect();
            let mut words = vec!["CLUSTER", "ADDSLOTS"];
            words.extend(slots.iter().map(String::as_str));
            master.command(&words)?;
        }
        let first = &self.nodes[0];
        for node in &self.nodes[1..] {
            let (port, bus) = (node.port().to_string(), node.bus_port().to_string());
            first.command(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
        }
        let knows_all = |node: &RedisServer| {
            let known = node.command(&["CLUSTER", "NODES"]).unwrap_or_default();
            let connected = known.lines().filter(|line| !line.contains("handshake"));
            connected.count() == self.nodes.len()
        };
        let met = eventually_blocking(READY_LIMIT, || self.nodes.iter().all(knows_all));
        if !met {
            return Err(io::Error::other("the nodes do not find each other"));
        }
        for (replica, master) in replicas.iter().zip(masters) {
            let id = master.command(&["CLUSTER", "MYID"])?;
            replica.command(&["CLUSTER", "REPLICATE", &id])?;
        }
        self.await_health(READY_LIMIT).map(drop)
    }

    /// Waits until every living node reports a healthy cluster and every master that had a replica
    /// has one again. Returns how long that took.
    pub fn await_health(&self, limit: Duration) -> io::Result<Duration> {
        let start = Instant::now();
        let healthy = |node: &RedisServer| {
            let info = node.command(&["CLUSTER", "INFO"]).unwrap_or_default();
            let role = node.command(&["INFO", "replication"]).unwrap_or_default();
            info.contains("cluster_state:ok")
                && (role.contains("role:master") || role.contains("master_link_status:up"))
        };
        let alive = || self.nodes.iter().filter(|node| node.pid().is_some());
        let all_alive = || alive().count() == self.nodes.len();
        let enough = || {
            let replicas = alive().filter(|node| {
                let role = node.command(&["INFO", "replication"]).unwrap_or_default();
                role.contains("master_link_status:up")
            });
            !all_alive() || replicas.count() == usize::from(MASTERS)
        };
        let agreed = || alive().all(healthy) && enough();
        match eventually_blocking(limit, agreed) {
            true => Ok(start.elapsed()),
            false => Err(io::Error::other(format!("not healthy after {limit:?}"))),
        }
    }

    /// The URL of the cluster for Windlass: three of the nodes.
    pub fn url(&self) -> String {
        let seeds = self
            .nodes
            .iter()
            .step_by(2)
            .map(|node| node.addr().to_string());
        format!("redis+cluster://{}", seeds.collect::<Vec<_>>().join(","))
    }

    /// All nodes, in their current roles.
    pub fn nodes(&self) -> &[RedisServer] {
        &self.nodes
    }

    /// The slot of a key.
    pub fn slot(&self, key: &str) -> io::Result<u16> {
        let alive = self.alive()?;
        let answer = alive.command(&["CLUSTER", "KEYSLOT", key])?;
        answer.parse().map_err(|_| io::Error::other(answer))
    }

    /// The master of a key's slot, as most living nodes see it.
    pub fn master_of(&self, key: &str) -> io::Result<&RedisServer> {
        let slot = self.slot(key)?;
        let mut votes: Vec<u16> = Vec::new();
        for node in self.nodes.iter().filter(|node| node.pid().is_some()) {
            let known = node.command(&["CLUSTER", "NODES"])?;
            votes.extend(owner(&known, slot));
        }
        votes.sort_unstable();
        let port = votes.get(votes.len() / 2).copied();
        let found = self.nodes.iter().find(|node| Some(node.port()) == port);
        found.ok_or_else(|| io::Error::other(format!("nobody has slot {slot}")))
    }

    /// A replica of the master of a key's slot.
    pub fn replica_of(&self, key: &str) -> io::Result<&RedisServer> {
        let master = self.master_of(key)?.port().to_string();
        let follows = |node: &&RedisServer| {
            let role = node.command(&["ROLE"]).unwrap_or_default();
            role.starts_with("slave") && role.lines().nth(2) == Some(&master)
        };
        let mut alive = self.nodes.iter().filter(|node| node.pid().is_some());
        let found = alive.find(follows);
        found.ok_or_else(|| io::Error::other(format!("the master on port {master} has no replica")))
    }

    /// Waits until a node other than the one on port `old` has the slot of `key`. Returns how long
    /// that took.
    pub fn await_promotion(&self, key: &str, old: u16, limit: Duration) -> io::Result<Duration> {
        let start = Instant::now();
        let promoted = eventually_blocking(limit, || {
            self.master_of(key).is_ok_and(|master| {
                let info = master.command(&["CLUSTER", "INFO"]).unwrap_or_default();
                master.port() != old && info.contains("cluster_state:ok")
            })
        });
        match promoted {
            true => Ok(start.elapsed()),
            false => Err(io::Error::other(format!("no new master after {limit:?}"))),
        }
    }

    /// Starts to move the slot of a key to another master. No key has moved yet.
    pub fn begin_move(&self, key: &str) -> io::Result<SlotMove<'_>> {
        let slot = self.slot(key)?;
        let from = self.master_of(key)?;
        let masters = self.nodes.iter().filter(|node| {
            let role = node.command(&["ROLE"]).unwrap_or_default();
            role.starts_with("master")
        });
        let to = masters.into_iter().find(|node| node.port() != from.port());
        let to = to.ok_or_else(|| io::Error::other("there is no other master"))?;
        let (source, target) = (
            from.command(&["CLUSTER", "MYID"])?,
            to.command(&["CLUSTER", "MYID"])?,
        );
        let number = slot.to_string();
        to.command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &source])?;
        from.command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &target])?;
        Ok(SlotMove {
            cluster: self,
            slot: number,
            from,
            to,
            target,
        })
    }

    fn alive(&self) -> io::Result<&RedisServer> {
        let found = self.nodes.iter().find(|node| node.pid().is_some());
        found.ok_or_else(|| io::Error::other("no node lives"))
    }
}

/// A slot that is moving from one master to another.
#[derive(Debug)]
pub struct SlotMove<'a> {
    cluster: &'a RedisCluster,
    slot: String,
    from: &'a RedisServer,
    to: &'a RedisServer,
    target: String,
}

impl SlotMove<'_> {
    /// Moves up to `most` keys, one by one. Returns how many there were.
    pub fn move_keys(&self, most: usize) -> io::Result<usize> {
        let most = most.to_string();
        let found = self
            .from
            .command(&["CLUSTER", "GETKEYSINSLOT", &self.slot, &most])?;
        let keys: Vec<&str> = found.lines().collect();
        keys.iter().try_for_each(|key| self.move_key(key))?;
        Ok(keys.len())
    }

    /// Moves one key.
    pub fn move_key(&self, key: &str) -> io::Result<()> {
        let port = self.to.port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, key, "0", "5000"];
        self.from.command(&migrate).map(drop)
    }

    /// Moves the remaining keys and announces the slot's new owner to all nodes.
    pub fn finish(self) -> io::Result<()> {
        while self.move_keys(100)? > 0 {}
        let settle = ["CLUSTER", "SETSLOT", &self.slot, "NODE", &self.target];
        self.to.command(&settle)?;
        self.from.command(&settle)?;
        for node in &self.cluster.nodes {
            // Replicas learn of it from their masters.
            let _ = node.command(&settle);
        }
        Ok(())
    }
}

/// The port of the master of a slot, according to `CLUSTER NODES`.
fn owner(known: &str, slot: u16) -> Option<u16> {
    known.lines().find_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let (address, flags) = (words.get(1)?, words.get(2)?);
        // "fail?" is the suspicion of one node; "fail" is the agreement of most.
        let is = |flag: &str| flags.split(',').any(|word| word == flag);
        if !is("master") || is("fail") {
            return None;
        }
        let has = words.iter().skip(8).any(|range| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let bounds = (first.parse::<u16>(), last.parse::<u16>());
            matches!(bounds, (Ok(first), Ok(last)) if (first..=last).contains(&slot))
        });
        let port = address.split(['@', ',']).next()?.rsplit(':').next()?;
        has.then(|| port.parse().ok()).flatten()
    })
}

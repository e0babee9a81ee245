//! The other libraries, and how their programs are started.

use std::io;
use std::process::Command;

use windlass_testkit::{EtcdCluster, Flavor, RedisServer, RedlockNodes, ZooKeeperServers};

use crate::ours::By;
use crate::toolchain::{Toolchain, home, sources};

/// Another library.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) name: &'static str,
    pub(crate) toolchain: Toolchain,
    pub(crate) store: Store,
    pub(crate) by: By,
    /// How many sections each process of the library runs, and each of Windlass.
    pub(crate) theirs: u64,
    pub(crate) ours: u64,
    /// The program and its first arguments.
    pub(crate) program: fn() -> Command,
}

/// How many servers a quorum has.
const NODES: usize = 3;

/// How many processes each side has.
pub(crate) const PROCESSES: u64 = 2;

/// All libraries; the first is also used to check the check.
pub(crate) const LIBRARIES: &[Library] = &[
    redis("redis-py", Toolchain::Python, || python("redis_py.py")),
    redis("node-redlock-4", Toolchain::Node, || node("redlock4.js")),
    redis("node-redlock-5", Toolchain::Node, || node("redlock5.js")),
    redis("redsync", Toolchain::Go, || built("redsync")),
    redis("redislock", Toolchain::Go, || built("redislock")),
    redis("rslock", Toolchain::Rust, || {
        Command::new(home().join("rust/debug/rslock-neighbour"))
    }),
    quorum("redsync-quorum", Toolchain::Go, || built("redsync")),
    etcd("etcdctl-lock", By::Lock, || etcdctl("lock")),
    etcd("etcdctl-elect", By::Election, || etcdctl("elect")),
    zookeeper("kazoo", Toolchain::Python, Layout::Kazoo, || {
        python("kazoo_lock.py")
    }),
    zookeeper("curator", Toolchain::Java, Layout::Curator, curator),
];

const fn redis(name: &'static str, toolchain: Toolchain, program: fn() -> Command) -> Library {
    Library {
        name,
        toolchain,
        store: Store::Redis,
        by: By::Lock,
        theirs: 500,
        ours: 500,
        program,
    }
}

/// The same program with several servers. (Not node-redlock: between two tries it keeps what a
/// minority granted, so two of its own clients block each other until that expires.)
const fn quorum(name: &'static str, toolchain: Toolchain, program: fn() -> Command) -> Library {
    Library {
        store: Store::Quorum,
        ..redis(name, toolchain, program)
    }
}

const fn zookeeper(
    name: &'static str,
    toolchain: Toolchain,
    layout: Layout,
    program: fn() -> Command,
) -> Library {
    Library {
        store: Store::ZooKeeper(layout),
        ..redis(name, toolchain, program)
    }
}

fn curator() -> Command {
    let home = home().join("java");
    let mut command = Command::new("java");
    command
        .arg("-cp")
        .arg(format!("{0}:{0}/jars/*", home.display()));
    // It starts sooner and leaves the processors to the others.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx96m"]);
    command.arg("CuratorLock");
    command
}

/// Each section is a separate process, so there are fewer.
const fn etcd(name: &'static str, by: By, program: fn() -> Command) -> Library {
    Library {
        store: Store::Etcd,
        by,
        theirs: 200,
        ours: 800,
        ..redis(name, Toolchain::Python, program)
    }
}

fn etcdctl(verb: &str) -> Command {
    let mut command = python("etcdctl.py");
    command.args(["etcdctl", verb]).env("ETCDCTL_API", "3");
    command
}

fn python(script: &str) -> Command {
    let mut command = Command::new(home().join("python/bin/python"));
    command.arg(sources().join("python").join(script));
    command
}

fn node(script: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(home().join("node").join(script));
    command
}

fn built(program: &str) -> Command {
    Command::new(home().join("bin").join(program))
}

/// The store of the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Redis,
    /// Several servers, of which a majority has to agree.
    Quorum,
    Etcd,
    ZooKeeper(Layout),
}

/// The layout of the ZooKeeper nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    Curator,
    Kazoo,
}

/// A store for one run, with the URL for each side. It ends with this value.
pub(crate) struct Running {
    pub(crate) for_us: String,
    pub(crate) for_them: String,
    _keep: Box<dyn std::any::Any>,
}

impl Store {
    /// Starts a store.
    pub(crate) fn start(self) -> io::Result<Running> {
        match self {
            Store::Redis => {
                let server = RedisServer::start()?;
                Ok(Running {
                    for_us: server.url(),
                    for_them: server.url(),
                    _keep: Box::new(server),
                })
            }
            Store::Quorum => {
                // Durable, or the nodes would have no vote for a minute.
                let nodes = RedlockNodes::durable(NODES, Flavor::Redis)?;
                let each: Vec<String> = nodes.iter().map(RedisServer::url).collect();
                Ok(Running {
                    for_us: nodes.url(""),
                    for_them: each.join(","),
                    _keep: Box::new(nodes),
                })
            }
            Store::ZooKeeper(layout) => {
                let servers = ZooKeeperServers::single()?;
                let url = servers.url("shared");
                Ok(Running {
                    for_us: match layout {
                        Layout::Curator => url,
                        Layout::Kazoo => format!("{url}&layout=kazoo"),
                    },
                    for_them: format!("{}/shared", servers.addrs()[0]),
                    _keep: Box::new(servers),
                })
            }
            Store::Etcd => {
                let cluster = EtcdCluster::start()?;
                Ok(Running {
                    for_us: cluster.url(),
                    for_them: cluster.addr(0).to_string(),
                    _keep: Box::new(cluster),
                })
            }
        }
    }
}

//! The version and the options of an etcd cluster.

use std::io;
use std::path::PathBuf;

use super::etcd::EtcdCluster;

/// A version of etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtcdVersion {
    /// 3.4, the version in Debian.
    #[default]
    V3_4,
    /// 3.5, at the path in `WINDLASS_ETCD35_SERVER`.
    V3_5,
}

impl EtcdVersion {
    /// The path of the server, or a sentence that says what to install.
    pub fn find(self) -> Result<PathBuf, String> {
        let (found, advice) = match self {
            EtcdVersion::V3_4 => (
                on_path("etcd"),
                "etcd 3.4 is missing: apt-get install etcd-server etcd-client",
            ),
            EtcdVersion::V3_5 => (
                std::env::var_os("WINDLASS_ETCD35_SERVER").map(PathBuf::from),
                "etcd 3.5 is missing: cargo xtask test installs it, or let WINDLASS_ETCD35_SERVER name it",
            ),
        };
        found
            .filter(|path| path.is_file())
            .ok_or_else(|| advice.to_owned())
    }

    /// The path of the matching `etcdctl`.
    pub fn find_etcdctl(self) -> Result<PathBuf, String> {
        let found = match self {
            EtcdVersion::V3_4 => on_path("etcdctl"),
            EtcdVersion::V3_5 => self.find().ok().map(|etcd| etcd.with_file_name("etcdctl")),
        };
        let advice = "etcdctl is missing: apt-get install etcd-client";
        found
            .filter(|path| path.is_file())
            .ok_or_else(|| advice.to_owned())
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Options for an [`EtcdCluster`].
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until start is called"]
pub struct EtcdClusterBuilder {
    pub(super) version: EtcdVersion,
    pub(super) members: usize,
    pub(super) partitionable: bool,
    pub(super) tls: bool,
    pub(super) flags: Vec<String>,
}

impl EtcdClusterBuilder {
    /// Adds a flag for every member, such as `--quota-backend-bytes=16777216`.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// An election timeout of 2 s, for tests in which no election may happen by chance: each new leader extends every lease by
    /// its TTL, so an election because the machine is busy delays those who wait for the end of a lease.
    pub fn calm(self) -> Self {
        self.flag("--heartbeat-interval=100")
            .flag("--election-timeout=2000")
    }

    /// Sets the version; Debian's by default.
    pub fn version(mut self, version: EtcdVersion) -> Self {
        self.version = version;
        self
    }

    /// Sets the number of members, each a process.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// Lets members be [cut off](EtcdCluster::cut_off) from each other.
    pub fn partitionable(mut self) -> Self {
        self.partitionable = true;
        self
    }

    /// Requires TLS and a client certificate.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts the cluster and waits until it answers.
    ///
    /// # Errors
    ///
    /// If a member does not answer, with its log; if etcd is not installed, with what to install.
    pub fn start(self) -> io::Result<EtcdCluster> {
        EtcdCluster::launch(self)
    }
}

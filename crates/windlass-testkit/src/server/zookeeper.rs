//! Test ZooKeeper servers: one, or an ensemble.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::port::ReservedPort;
use crate::owned_child::OwnedChild;
use crate::proxy::{Direction, FaultProxy};

/// Long, because Java starts slowly on a busy machine; a server that exits is detected immediately.
pub(super) const STARTUP_LIMIT: Duration = Duration::from_secs(60);
const LOG_LINES_SHOWN: usize = 12;
/// The paths in Debian's packages. The first lists most of its dependencies, the second prints its
/// log, and the others are dependencies for TLS that the first does not list.
pub(super) const JARS: [&str; 5] = [
    "/usr/share/java/zookeeper.jar",
    "/usr/share/java/slf4j-simple.jar",
    "/usr/share/java/netty-codec.jar",
    "/usr/share/java/netty-resolver.jar",
    "/usr/share/java/netty-transport-native-unix-common.jar",
];

/// The servers' unit of time: the shortest session is two ticks.
pub const ZOOKEEPER_TICK: Duration = Duration::from_millis(200);

/// Real ZooKeeper servers, each on its own ports and folder. They end when this value is dropped,
/// and also when the test process is killed.
#[derive(Debug)]
pub struct ZooKeeperServers {
    servers: Vec<EnsembleServer>,
    extra: Vec<String>,
    /// The connections between servers, if they can be cut off.
    links: Vec<EnsembleLink>,
    // After the servers, so that they are gone when their files are removed.
    folder: TempDir,
}

#[derive(Debug)]
struct EnsembleServer {
    process: Mutex<Option<OwnedChild>>,
    client: ReservedPort,
    quorum: ReservedPort,
    election: ReservedPort,
}

/// The connections from one server to another.
#[derive(Debug)]
struct EnsembleLink {
    from: usize,
    to: usize,
    quorum: FaultProxy,
    election: FaultProxy,
}

impl ZooKeeperServers {
    /// One server.
    pub fn single() -> io::Result<ZooKeeperServers> {
        ZooKeeperServers::start(1, &[])
    }

    /// An ensemble of three.
    pub fn ensemble() -> io::Result<ZooKeeperServers> {
        ZooKeeperServers::start(3, &[])
    }

    /// An ensemble of three in which any server can be [cut off](Self::cut_off) from the others.
    pub fn partitionable(extra: &[&str]) -> io::Result<ZooKeeperServers> {
        ZooKeeperServers::build(3, extra, true)
    }

    /// `count` servers, with additional configuration lines.
    pub fn start(count: usize, extra: &[&str]) -> io::Result<ZooKeeperServers> {
        ZooKeeperServers::build(count, extra, false)
    }

    fn build(count: usize, extra: &[&str], partitionable: bool) -> io::Result<ZooKeeperServers> {
        ZooKeeperServers::available()
            .map_err(|text| io::Error::new(io::ErrorKind::NotFound, text))?;
        let mut servers = Vec::new();
        for _ in 0..count {
            servers.push(EnsembleServer {
                process: Mutex::new(None),
                client: ReservedPort::free()?,
                quorum: ReservedPort::free()?,
                election: ReservedPort::free()?,
            });
        }
        let mut links = Vec::new();
        for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
            if partitionable && from != to {
                let to_port = |port: &ReservedPort| {
                    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, port.number()));
                    // A newly elected leader starts to listen a moment later. The others would
                    // start another election if their connections were accepted and then reset.
                    FaultProxy::start_with_retry(addr, Duration::from_secs(1))
                };
                links.push(EnsembleLink {
                    from,
                    to,
                    quorum: to_port(&servers[to].quorum)?,
                    election: to_port(&servers[to].election)?,
                });
            }
        }
        let started = ZooKeeperServers {
            servers,
            links,
            extra: extra.iter().map(|line| (*line).to_owned()).collect(),
            folder: tempfile::Builder::new().prefix("wl-zk-").tempdir()?,
        };
        for index in 0..count {
            started.spawn(index)?;
        }
        for index in 0..count {
            started.wait_until_ready(index)?;
        }
        Ok(started)
    }

    /// Checks that the server is installed; if not, returns a sentence that says what to install.
    pub fn available() -> Result<(), String> {
        match JARS.iter().find(|jar| !Path::new(jar).is_file()) {
            None => Ok(()),
            Some(jar) => Err(format!(
                "{jar} is missing: install ZooKeeper, for instance with the Debian packages \
                 \"zookeeper\", \"libslf4j-java\" and \"libnetty-java\""
            )),
        }
    }

    /// The URL of all servers, with everything below `chroot`, which is created.
    pub fn url(&self, chroot: &str) -> String {
        let hosts: Vec<String> = self.addrs().iter().map(SocketAddr::to_string).collect();
        format!("zookeeper://{}/{chroot}?chroot=create", hosts.join(","))
    }

    /// The addresses for clients.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        let addr = |server: &EnsembleServer| {
            SocketAddr::from((Ipv4Addr::LOCALHOST, server.client.number()))
        };
        self.servers.iter().map(addr).collect()
    }

    /// The index of the leader, or of the single server.
    pub fn leader(&self) -> Option<usize> {
        let leads = |index: &usize| {
            let reply = self.four_letter_word(*index, "srvr").unwrap_or_default();
            reply.contains("Mode: leader") || reply.contains("Mode: standalone")
        };
        (0..self.servers.len()).find(leads)
    }

    /// A server's reply to a four-letter word command.
    pub fn four_letter_word(&self, index: usize, word: &str) -> io::Result<String> {
        let addr = self.addrs()[index];
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&addr, limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(word.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// A metric of a server, by its name in `mntr`.
    pub fn metric(&self, index: usize, name: &str) -> io::Result<u64> {
        let reply = self.four_letter_word(index, "mntr")?;
        let line = reply.lines().find_map(|line| line.strip_prefix(name));
        let figure = line.and_then(|rest| rest.trim().parse::<f64>().ok());
        figure.map(|figure| figure as u64).ok_or_else(|| {
            let message = format!("there is no {name} in the reply of the server:\n{reply}");
            io::Error::other(message)
        })
    }

    /// Cuts a server off from the others. They do not notice immediately: open connections stay
    /// open, but nothing arrives. New connections fail. Clients reach it as before.
    pub fn cut_off(&self, index: usize) {
        for link in self.links_of(index) {
            for proxy in [&link.quorum, &link.election] {
                // First: a silent new connection would block the server at its other end.
                proxy.refuse(true);
                proxy.blackhole(Direction::Both);
            }
        }
    }

    /// Ends [`cut_off`](Self::cut_off).
    pub fn rejoin(&self, index: usize) {
        for link in self.links_of(index) {
            for proxy in [&link.quorum, &link.election] {
                proxy.heal();
                proxy.reset_all();
            }
        }
    }

    fn links_of(&self, index: usize) -> impl Iterator<Item = &EnsembleLink> {
        let ends = move |link: &&EnsembleLink| link.from == index || link.to == index;
        self.links.iter().filter(ends)
    }

    /// Kills a server with SIGKILL, and returns when it is gone.
    pub fn kill(&self, index: usize) -> io::Result<()> {
        match self.process(index).take() {
            Some(mut process) => process.kill().map(drop),
            None => Ok(()),
        }
    }

    /// Freezes a server with SIGSTOP.
    pub fn pause(&self, index: usize) -> io::Result<()> {
        self.with_process(index, OwnedChild::pause)
    }

    /// Resumes a frozen server.
    pub fn resume(&self, index: usize) -> io::Result<()> {
        self.with_process(index, OwnedChild::resume)
    }

    /// Restarts a killed server on the same ports and data.
    pub fn restart(&self, index: usize) -> io::Result<()> {
        self.restart_all(&[index])
    }

    /// Restarts killed servers, and waits for all of them: a majority is needed before any is ready.
    pub fn restart_all(&self, indexes: &[usize]) -> io::Result<()> {
        for index in indexes {
            self.kill(*index)?;
            self.spawn(*index)?;
        }
        let mut indexes = indexes.iter();
        indexes.try_for_each(|index| self.wait_until_ready(*index))
    }

    fn spawn(&self, index: usize) -> io::Result<()> {
        let folder = self.folder.path().join(index.to_string());
        fs::create_dir_all(&folder)?;
        fs::write(folder.join("myid"), (index + 1).to_string())?;
        let config = folder.join("zoo.cfg");
        fs::write(&config, self.config(index, &folder))?;
        let log = File::create(self.log_file(index))?;
        // The shell waits for "go" before it becomes the server, with the same pid. By then the
        // watchdog runs, so the server can never outlive the test process.
        let mut process = OwnedChild::spawn(
            Command::new("sh")
                .args(["-c", r#"read -r go && exec "$0" "$@""#])
                .arg("java")
                .args(["-Xmx96m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"])
                .args(["-XX:ActiveProcessorCount=2", "-Xshare:auto"])
                .arg("-Dzookeeper.forceSync=no")
                .arg("-Dznode.container.checkIntervalMs=500")
                // By default, servers in an election retry ever more rarely, up to once a minute.
                .arg("-Dzookeeper.fastleader.minNotificationInterval=100")
                .arg("-Dzookeeper.fastleader.maxNotificationInterval=400")
                .arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=warn")
                .args(["-cp", &JARS.join(":")])
                .arg("org.apache.zookeeper.server.quorum.QuorumPeerMain")
                .arg(&config)
                .stdin(Stdio::piped())
                .stdout(log.try_clone()?)
                .stderr(log)
                // Ctrl-C goes to the test, which ends the server itself.
                .process_group(0),
        )?;
        if let Some(mut stdin) = process.pipes().stdin.take() {
            stdin.write_all(b"go\n")?;
        }
        *self.process(index) = Some(process);
        Ok(())
    }

    fn config(&self, index: usize, folder: &Path) -> String {
        let mut config = format!(
            "tickTime={}\ninitLimit=20\nsyncLimit=5\ndataDir={}\nclientPort={}\n\
             clientPortAddress=127.0.0.1\nmaxSessionTimeout=600000\nmaxClientCnxns=0\n\
             admin.enableServer=false\n4lw.commands.whitelist=*\n",
            ZOOKEEPER_TICK.as_millis(),
            folder.display(),
            self.servers[index].client.number(),
        );
        for line in &self.extra {
            config.push_str(line);
            config.push('\n');
        }
        if self.servers.len() > 1 {
            for (i, server) in self.servers.iter().enumerate() {
                let link = self
                    .links
                    .iter()
                    .find(|link| (link.from, link.to) == (index, i));
                let (quorum, election) = match link {
                    Some(link) => (link.quorum.port(), link.election.port()),
                    None => (server.quorum.number(), server.election.number()),
                };
                let number = i + 1;
                config.push_str(&format!("server.{number}=127.0.0.1:{quorum}:{election}\n"));
            }
        }
        config
    }

    fn wait_until_ready(&self, index: usize) -> io::Result<()> {
        let deadline = Instant::now() + STARTUP_LIMIT;
        loop {
            let ended = match self.process(index).as_mut() {
                Some(process) => process.try_wait()?,
                None => return Err(io::Error::other("the server was killed")),
            };
            if let Some(status) = ended {
                return Err(self.failure(index, &format!("ended at once ({status})")));
            }
            match self.four_letter_word(index, "srvr") {
                Ok(reply) if reply.contains("Mode: ") => return Ok(()),
                other if Instant::now() > deadline => {
                    return Err(self.failure(index, &format!("does not answer: {other:?}")));
                }
                _ => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn failure(&self, index: usize, what: &str) -> io::Error {
        let log = fs::read_to_string(self.log_file(index)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        io::Error::other(format!(
            "ZooKeeper server {index} {what}; it logged:\n{tail}"
        ))
    }

    fn with_process(
        &self,
        index: usize,
        action: impl FnOnce(&mut OwnedChild) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.process(index).as_mut() {
            Some(process) => action(process),
            None => Err(io::Error::other("the server was killed; restart it first")),
        }
    }

    fn process(&self, index: usize) -> MutexGuard<'_, Option<OwnedChild>> {
        let process = &self.servers[index].process;
        process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log_file(&self, index: usize) -> PathBuf {
        self.folder.path().join(format!("{index}.log"))
    }
}

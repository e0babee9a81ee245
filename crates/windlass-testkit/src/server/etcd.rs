//! An etcd of one's own: one member, or several.

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

use super::peer_network::PeerNetwork;
use super::port::ReservedPort;
use super::tls::TlsFiles;
use crate::owned_child::OwnedChild;

const STARTUP_LIMIT: Duration = Duration::from_secs(30);
const LOG_LINES_SHOWN: usize = 12;

/// Which etcd.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EtcdVersion {
    /// 3.4, which Debian brings.
    #[default]
    V3_4,
    /// 3.5, which the variable `WINDLASS_ETCD35_SERVER` names.
    V3_5,
}

impl EtcdVersion {
    /// Where the server is, or a sentence that says what to install.
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

    /// Where the tool is that belongs to the server.
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

/// What an [`EtcdCluster`] shall be like.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until start is called"]
pub struct EtcdClusterBuilder {
    version: EtcdVersion,
    members: usize,
    partitionable: bool,
    tls: bool,
    flags: Vec<String>,
}

impl EtcdClusterBuilder {
    /// One more flag for every member, such as `--quota-backend-bytes=16777216`.
    pub fn flag(mut self, flag: &str) -> Self {
        self.flags.push(flag.to_owned());
        self
    }

    /// Another version than Debian's.
    pub fn version(mut self, version: EtcdVersion) -> Self {
        self.version = version;
        self
    }

    /// So many members, each a process of its own.
    pub fn members(mut self, members: usize) -> Self {
        self.members = members;
        self
    }

    /// MemberPids that can be [cut off](EtcdCluster::cut_off) from each other.
    pub fn partitionable(mut self) -> Self {
        self.partitionable = true;
        self
    }

    /// Clients must use TLS, with a certificate of their own.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Starts it, and waits until it answers.
    ///
    /// # Errors
    ///
    /// With what it logged, if it does not; with what to install, if it is not there.
    pub fn start(self) -> io::Result<EtcdCluster> {
        EtcdCluster::launch(self)
    }
}

/// Real etcd members, with ports and a folder of their own, that end with this value.
///
/// All methods take `&self`, so that one part of a test can use the cluster while another mistreats it.
#[derive(Debug)]
pub struct EtcdCluster {
    program: PathBuf,
    etcdctl: PathBuf,
    members: Vec<Member>,
    /// What they reach each other by, if they can be cut off.
    network: Option<PeerNetwork>,
    tls: Option<TlsFiles>,
    flags: Vec<String>,
    folder: TempDir,
}

#[derive(Debug)]
struct Member {
    name: String,
    client: ReservedPort,
    peer: ReservedPort,
    process: Mutex<Option<OwnedChild>>,
}

impl Member {
    /// Where it listens for the others.
    fn peer_addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.peer.number()))
    }
}

impl EtcdCluster {
    /// One member of Debian's etcd, without TLS and users.
    ///
    /// # Errors
    ///
    /// As [`EtcdClusterBuilder::start`].
    pub fn start() -> io::Result<EtcdCluster> {
        EtcdCluster::builder().start()
    }

    /// Describes a cluster that differs from the one of [`start`](Self::start).
    pub fn builder() -> EtcdClusterBuilder {
        EtcdClusterBuilder {
            version: EtcdVersion::default(),
            members: 1,
            partitionable: false,
            tls: false,
            flags: Vec::new(),
        }
    }

    fn launch(wishes: EtcdClusterBuilder) -> io::Result<EtcdCluster> {
        let missing = |text| io::Error::new(io::ErrorKind::NotFound, text);
        let program = wishes.version.find().map_err(missing)?;
        let etcdctl = wishes.version.find_etcdctl().map_err(missing)?;
        let folder = tempfile::Builder::new().prefix("wl-etcd-").tempdir()?;
        let tls = match wishes.tls {
            true => Some(TlsFiles::generate(folder.path())?),
            false => None,
        };
        let members = (0..wishes.members)
            .map(|number| {
                Ok(Member {
                    name: format!("m{number}"),
                    client: ReservedPort::free()?,
                    peer: ReservedPort::free()?,
                    process: Mutex::new(None),
                })
            })
            .collect::<io::Result<Vec<Member>>>()?;
        let network = match wishes.partitionable {
            true => {
                let listening: Vec<SocketAddr> = members.iter().map(Member::peer_addr).collect();
                Some(PeerNetwork::start(&listening)?)
            }
            false => None,
        };
        let cluster = EtcdCluster {
            program,
            etcdctl,
            members,
            network,
            tls,
            flags: wishes.flags,
            folder,
        };
        for (at, member) in cluster.members.iter().enumerate() {
            *cluster.process(member) = Some(cluster.spawn(at)?);
        }
        for at in 0..cluster.members.len() {
            cluster.wait_until_ready(at)?;
        }
        Ok(cluster)
    }

    /// The URL that names all members.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = (0..self.members.len())
            .map(|at| self.addr(at).to_string())
            .collect();
        self.url_of(&hosts.join(","))
    }

    /// The URL for other links to reach it: through a proxy, say.
    pub fn url_of(&self, hosts: &str) -> String {
        match &self.tls {
            None => format!("etcd://{hosts}"),
            Some(tls) => format!(
                "etcds://{hosts}?ca={}&cert={}&key={}",
                tls.ca.display(),
                tls.certificate.display(),
                tls.key.display()
            ),
        }
    }

    /// The certificate (PEM) of the authority to trust, if it was built with TLS.
    pub fn ca_path(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| tls.ca.as_path())
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// Where a member serves its clients.
    pub fn addr(&self, member: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.members[member].client.number()))
    }

    /// Which member leads.
    ///
    /// # Errors
    ///
    /// If nobody leads for ten seconds.
    pub fn leader(&self) -> io::Result<usize> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            for at in 0..self.members.len() {
                if self.process(&self.members[at]).is_none() {
                    continue;
                }
                let told = self.metric(at, "etcd_server_is_leader");
                if told.is_ok_and(|value| value == 1.0) {
                    return Ok(at);
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(io::Error::other("nobody leads"))
    }

    /// What a member says of itself, by the name of the metric; labels count as part of the name.
    ///
    /// # Errors
    ///
    /// If it does not answer, or knows no such metric.
    pub fn metric(&self, member: usize, name: &str) -> io::Result<f64> {
        let text = get(self.addr(member), "/metrics")?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.ok_or_else(|| io::Error::other(format!("{name} is not told")))
    }

    /// Kills a member with SIGKILL.
    ///
    /// # Errors
    ///
    /// If that cannot be done.
    pub fn kill(&self, member: usize) -> io::Result<()> {
        match self.process(&self.members[member]).take() {
            Some(mut process) => process.kill().map(drop),
            None => Ok(()),
        }
    }

    /// Starts a member again that was killed, with its data.
    ///
    /// # Errors
    ///
    /// If it does not answer.
    pub fn restart(&self, member: usize) -> io::Result<()> {
        self.kill(member)?;
        let process = self.spawn(member)?;
        *self.process(&self.members[member]) = Some(process);
        self.wait_until_ready(member)
    }

    /// Freezes a member.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn pause(&self, member: usize) -> io::Result<()> {
        self.with_process(member, OwnedChild::pause)
    }

    /// Lets a frozen member run on.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn resume(&self, member: usize) -> io::Result<()> {
        self.with_process(member, OwnedChild::resume)
    }

    /// Cuts a member off from the others, which none of them notices at once: nothing arrives over the connections
    /// that there are. New ones come to nothing. Clients reach all of them as before.
    ///
    /// # Panics
    ///
    /// If the cluster was not built [partitionable](EtcdClusterBuilder::partitionable).
    pub fn cut_off(&self, member: usize) {
        self.network().cut_off(member);
    }

    /// Ends [`cut_off`](Self::cut_off).
    ///
    /// # Panics
    ///
    /// As that does.
    pub fn rejoin(&self, member: usize) {
        self.network().rejoin(member);
    }

    fn network(&self) -> &PeerNetwork {
        let network = self.network.as_ref();
        network.expect("a cluster that was built partitionable")
    }

    /// A command for `etcdctl`, on all members.
    pub fn etcdctl(&self, args: &[&str]) -> Command {
        let hosts: Vec<String> = (0..self.members.len())
            .map(|at| self.addr(at).to_string())
            .collect();
        let mut command = Command::new(&self.etcdctl);
        command
            .env("ETCDCTL_API", "3")
            .arg("--endpoints")
            .arg(hosts.join(","))
            .args(args);
        command
    }

    /// Runs `etcdctl`, and gives what it prints.
    ///
    /// # Errors
    ///
    /// If it fails, with what it said.
    pub fn ctl(&self, args: &[&str]) -> io::Result<String> {
        let output = self.etcdctl(args).output()?;
        match output.status.success() {
            true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&output.stderr).into_owned(),
            )),
        }
    }

    fn spawn(&self, at: usize) -> io::Result<OwnedChild> {
        let (member, folder) = (&self.members[at], self.folder.path());
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let client = format!("{scheme}://127.0.0.1:{}", member.client.number());
        let told = |at: usize| match &self.network {
            Some(network) => format!("http://{}", network.addr(at)),
            None => format!("http://{}", self.members[at].peer_addr()),
        };
        let all = self.members.iter().enumerate();
        let all = all.map(|(at, member)| format!("{}={}", member.name, told(at)));
        let all: Vec<String> = all.collect();
        let log = File::create(self.log_file(member))?;
        let mut command = Command::new("sh");
        // The shell becomes the server, under the same pid, only when told to go. By then the
        // watchdog is in place, so at no moment could the server outlive us.
        command
            .args(["-c", r#"read -r go && exec "$0" "$@""#])
            .arg(&self.program)
            .arg("--name")
            .arg(&member.name)
            .arg("--data-dir")
            .arg(folder.join(&member.name))
            .args([
                "--listen-client-urls",
                &client,
                "--advertise-client-urls",
                &client,
            ])
            .arg("--listen-peer-urls")
            .arg(format!("http://{}", member.peer_addr()))
            .args(["--initial-advertise-peer-urls", &told(at)])
            .args(["--initial-cluster", &all.join(",")])
            // Short, so that leases may be short and failures are noticed soon.
            .args(["--heartbeat-interval", "50", "--election-timeout", "500"])
            // No test cuts the power, and other tests keep the disk busy.
            .arg("--unsafe-no-fsync")
            .args([
                "--max-snapshots",
                "1",
                "--max-wals",
                "1",
                "--snapshot-count",
                "5000",
            ])
            .env(
                "ETCD_UNSUPPORTED_ARCH",
                std::env::consts::ARCH.replace("aarch64", "arm64"),
            )
            .args(&self.flags)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0);
        if let Some(tls) = &self.tls {
            command
                .arg("--cert-file")
                .arg(&tls.certificate)
                .arg("--key-file")
                .arg(&tls.key)
                .arg("--trusted-ca-file")
                .arg(&tls.ca)
                .arg("--client-cert-auth");
        }
        let mut process = OwnedChild::spawn_in(&mut command, Some(folder))?;
        if let Some(network) = &self.network {
            network.set_process(at, process.pid());
        }
        if let Some(mut stdin) = process.pipes().stdin.take() {
            stdin.write_all(b"go\n")?;
        }
        Ok(process)
    }

    fn wait_until_ready(&self, at: usize) -> io::Result<()> {
        let member = &self.members[at];
        let deadline = Instant::now() + STARTUP_LIMIT;
        loop {
            if let Some(process) = self.process(member).as_mut()
                && let Some(status) = process.try_wait()?
            {
                return Err(self.failure(member, &format!("ended at once ({status})")));
            }
            // With TLS, only that it listens: who leads is told over TLS alone.
            let ready = match &self.tls {
                Some(_) => TcpStream::connect(self.addr(at)).map(drop),
                None => match get(self.addr(at), "/health") {
                    Ok(text) if text.contains("true") => Ok(()),
                    Ok(text) => Err(io::Error::other(text)),
                    Err(e) => Err(e),
                },
            };
            match ready {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(self.failure(member, &format!("does not answer: {error}")));
                }
                Err(_) => thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// What became of each member, in words: for a test that gets no answer.
    pub fn status_report(&self) -> String {
        let of = |member: &Member| {
            let name = &member.name;
            let status = match self.process(member).as_mut() {
                None => return format!("{name} was killed by the test"),
                Some(process) => process.try_wait(),
            };
            match status {
                Ok(None) => format!("{name} is running"),
                Ok(Some(status)) => self
                    .failure(member, &format!("ended ({status})"))
                    .to_string(),
                Err(e) => format!("{name}: {e}"),
            }
        };
        let all: Vec<String> = self.members.iter().map(of).collect();
        all.join("; ")
    }

    fn failure(&self, member: &Member, what: &str) -> io::Error {
        let log = fs::read_to_string(self.log_file(member)).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        let program = self.program.display();
        io::Error::other(format!(
            "{program} ({}) {what}; it logged:\n{tail}",
            member.name
        ))
    }

    fn with_process(
        &self,
        member: usize,
        action: impl FnOnce(&mut OwnedChild) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.process(&self.members[member]).as_mut() {
            Some(process) => action(process),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the member was killed; restart it first",
            )),
        }
    }

    fn process<'a>(&self, member: &'a Member) -> MutexGuard<'a, Option<OwnedChild>> {
        member
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn log_file(&self, member: &Member) -> PathBuf {
        self.folder.path().join(format!("{}.log", member.name))
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        // Before the folder goes.
        for at in 0..self.members.len() {
            let _ = self.kill(at);
        }
    }
}

/// The body of a plain HTTP answer.
fn get(addr: SocketAddr, path: &str) -> io::Result<String> {
    let limit = Duration::from_secs(2);
    let mut stream = TcpStream::connect_timeout(&addr, limit)?;
    stream.set_read_timeout(Some(limit))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {addr}\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    match text.split_once("\r\n\r\n") {
        Some((_, body)) => Ok(body.to_owned()),
        None => Err(io::Error::other("not an HTTP answer")),
    }
}

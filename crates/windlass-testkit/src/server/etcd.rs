//! A test etcd cluster of one member or several.

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

use super::etcd_config::{EtcdClusterBuilder, EtcdVersion};
use super::peer_network::PeerNetwork;
use super::port::ReservedPort;
use super::tls::TlsFiles;
use crate::owned_child::OwnedChild;

const STARTUP_LIMIT: Duration = Duration::from_secs(30);
const LOG_LINES_SHOWN: usize = 12;

/// Real etcd members on their own ports and folder. They end when this value is dropped.
///
/// All methods take `&self`, so that one part of a test can use the cluster while another injects
/// faults.
#[derive(Debug)]
pub struct EtcdCluster {
    program: PathBuf,
    etcdctl: PathBuf,
    members: Vec<EtcdMember>,
    /// The connections between members, if they can be cut off.
    network: Option<PeerNetwork>,
    tls: Option<TlsFiles>,
    flags: Vec<String>,
    folder: TempDir,
}

#[derive(Debug)]
struct EtcdMember {
    name: String,
    client: ReservedPort,
    peer: ReservedPort,
    process: Mutex<Option<OwnedChild>>,
}

impl EtcdMember {
    /// The address for the other members.
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

    pub(super) fn launch(options: EtcdClusterBuilder) -> io::Result<EtcdCluster> {
        let missing = |text| io::Error::new(io::ErrorKind::NotFound, text);
        let program = options.version.find().map_err(missing)?;
        let etcdctl = options.version.find_etcdctl().map_err(missing)?;
        let folder = tempfile::Builder::new().prefix("wl-etcd-").tempdir()?;
        let tls = match options.tls {
            true => Some(TlsFiles::generate(folder.path())?),
            false => None,
        };
        let members = (0..options.members)
            .map(|number| {
                Ok(EtcdMember {
                    name: format!("m{number}"),
                    client: ReservedPort::free()?,
                    peer: ReservedPort::free()?,
                    process: Mutex::new(None),
                })
            })
            .collect::<io::Result<Vec<EtcdMember>>>()?;
        let network = match options.partitionable {
            true => {
                let listening: Vec<SocketAddr> =
                    members.iter().map(EtcdMember::peer_addr).collect();
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
            flags: options.flags,
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

    /// The URL of all members.
    pub fn url(&self) -> String {
        let hosts: Vec<String> = (0..self.members.len())
            .map(|at| self.addr(at).to_string())
            .collect();
        self.url_of(&hosts.join(","))
    }

    /// The URL for other addresses, such as those of a proxy.
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

    /// The certificate (PEM) of the authority to trust, if the cluster was built with TLS.
    pub fn ca_path(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| tls.ca.as_path())
    }

    /// How many members there are.
    pub fn members(&self) -> usize {
        self.members.len()
    }

    /// The address of a member for clients.
    pub fn addr(&self, member: usize) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.members[member].client.number()))
    }

    /// The index of the leader.
    ///
    /// # Errors
    ///
    /// If there is no leader for ten seconds.
    pub fn leader(&self) -> io::Result<usize> {
        let deadline = Instant::now() + Duration::from_secs(10);
        while Instant::now() < deadline {
            for at in 0..self.members.len() {
                if self.process(&self.members[at]).is_none() {
                    continue;
                }
                let metric = self.metric(at, "etcd_server_is_leader");
                if metric.is_ok_and(|value| value == 1.0) {
                    return Ok(at);
                }
            }
            thread::sleep(Duration::from_millis(20));
        }
        Err(io::Error::other("nobody leads"))
    }

    /// A metric of a member; labels are part of the name.
    ///
    /// # Errors
    ///
    /// If the member does not answer, or has no such metric.
    pub fn metric(&self, member: usize, name: &str) -> io::Result<f64> {
        let text = get(self.addr(member), "/metrics")?;
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.ok_or_else(|| io::Error::other(format!("there is no metric {name}")))
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

    /// Restarts a killed member with its data.
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

    /// Resumes a frozen member.
    ///
    /// # Errors
    ///
    /// If it is not running.
    pub fn resume(&self, member: usize) -> io::Result<()> {
        self.with_process(member, OwnedChild::resume)
    }

    /// Cuts a member off from the others. They do not notice immediately: open connections stay
    /// open, but nothing arrives. New connections fail. Clients reach all members as before.
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
    /// If the cluster was not built [partitionable](EtcdClusterBuilder::partitionable).
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

    /// Runs `etcdctl` and returns its output.
    ///
    /// # Errors
    ///
    /// If the command fails, with its error output.
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
        let peer_url = |at: usize| match &self.network {
            Some(network) => format!("http://{}", network.addr(at)),
            None => format!("http://{}", self.members[at].peer_addr()),
        };
        let all = self.members.iter().enumerate();
        let all = all.map(|(at, member)| format!("{}={}", member.name, peer_url(at)));
        let all: Vec<String> = all.collect();
        let log = File::create(self.log_file(member))?;
        let mut command = Command::new("sh");
        // The shell waits for "go" before it becomes the server, with the same pid. By then the
        // watchdog runs, so the server can never outlive the test process.
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
            .args(["--initial-advertise-peer-urls", &peer_url(at)])
            .args(["--initial-cluster", &all.join(",")])
            // Short, so that leases can be short and failures are detected soon.
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
            // With TLS, only check that the port is open: the health endpoint needs a client
            // certificate.
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

    /// The status of each member, for a test that gets no reply.
    pub fn status_report(&self) -> String {
        let of = |member: &EtcdMember| {
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

    fn failure(&self, member: &EtcdMember, what: &str) -> io::Error {
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

    fn process<'a>(&self, member: &'a EtcdMember) -> MutexGuard<'a, Option<OwnedChild>> {
        member
            .process
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn log_file(&self, member: &EtcdMember) -> PathBuf {
        self.folder.path().join(format!("{}.log", member.name))
    }
}

impl Drop for EtcdCluster {
    fn drop(&mut self) {
        // Before the folder is removed.
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

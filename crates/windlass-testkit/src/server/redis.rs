//! A Redis or Valkey test server.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::binary::Flavor;
use super::config::RedisServerBuilder;
use super::port::ReservedPort;
use super::resp::RespClient;
use super::tls::TlsFiles;
use crate::owned_child::OwnedChild;

/// Long, because a busy machine is no reason to fail; a server that exits is detected immediately.
const STARTUP_LIMIT: Duration = Duration::from_secs(20);
const PORT_ATTEMPTS: usize = 5;
const LOG_LINES_SHOWN: usize = 12;

/// A real server on its own port and folder. It ends when this value is dropped.
///
/// The server also ends when the test process is killed. All methods take `&self`, so that one part
/// of a test can use the server while another injects faults.
///
/// ```
/// # fn main() -> std::io::Result<()> {
/// let server = windlass_testkit::RedisServer::start()?;
/// server.command(&["SET", "greeting", "hello"])?;
/// server.restart()?;
/// assert_eq!(server.command(&["GET", "greeting"])?, "(nil)");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct RedisServer {
    wishes: RedisServerBuilder,
    program: PathBuf,
    port: ReservedPort,
    bus: Option<ReservedPort>,
    tls: Option<TlsFiles>,
    // Before the folder, so that the server is gone when its files are removed.
    process: Mutex<Option<OwnedChild>>,
    folder: TempDir,
}

impl RedisServer {
    /// Starts a Redis server without password, TLS or persistence.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// Describes a server that differs from the one of [`start`](Self::start).
    pub fn builder() -> RedisServerBuilder {
        RedisServerBuilder::new()
    }

    /// The path of the server program, or a sentence that says what to install.
    pub fn available(flavor: Flavor) -> Result<PathBuf, String> {
        flavor.find()
    }

    /// The URL of the server, including credentials.
    pub fn url(&self) -> String {
        self.wishes.url(self.port(), &self.socket_file())
    }

    /// The TCP port, which stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The port of the cluster bus, if built with one; otherwise the default for its port.
    pub fn bus_port(&self) -> u16 {
        let usual = self.port().wrapping_add(10_000);
        self.bus.as_ref().map_or(usual, ReservedPort::number)
    }

    /// The TCP address, which stays the same over restarts.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// The Unix socket, if the server was built with one.
    pub fn socket_path(&self) -> Option<PathBuf> {
        self.wishes.unix_socket.then(|| self.socket_file())
    }

    /// The certificate (PEM) of the authority to trust, if the server was built with TLS.
    pub fn ca_path(&self) -> Option<&Path> {
        self.tls.as_ref().map(|tls| tls.ca.as_path())
    }

    /// The process id of the server, unless it was killed.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(OwnedChild::pid)
    }

    /// Kills the server with SIGKILL and returns when it is gone. Killing it again does nothing.
    pub fn kill(&self) -> io::Result<()> {
        match self.process().take() {
            Some(mut process) => process.kill().map(drop),
            None => Ok(()),
        }
    }

    /// Freezes the server with SIGSTOP and returns when it has stopped.
    ///
    /// The kernel still accepts connections and data; clients get no reply.
    pub fn pause(&self) -> io::Result<()> {
        self.with_process(OwnedChild::pause)
    }

    /// Resumes a frozen server with SIGCONT.
    pub fn resume(&self) -> io::Result<()> {
        self.with_process(OwnedChild::resume)
    }

    /// Kills the server, if it is running, and starts it again on the same port and folder.
    ///
    /// It keeps its data if built with [`append_only`](RedisServerBuilder::append_only), and is
    /// empty otherwise.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        let process = self.spawn()?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Moves the clock of a server that was built with
    /// [`movable_clock`](RedisServerBuilder::movable_clock), relative to the machine's.
    pub fn shift_clock(&self, seconds: i64) -> io::Result<()> {
        // Replaced atomically: the server reads the file whenever it reads the clock.
        let new = self.folder.path().join("clock.new");
        fs::write(&new, format!("{seconds:+}\n"))?;
        fs::rename(new, self.clock_file())
    }

    /// Runs one command, logged in as [`url`](Self::url) would be, and renders the reply as text.
    ///
    /// A nil is `(nil)`; an array has one element per line. The command uses a private Unix socket,
    /// so it also works with TLS.
    ///
    /// # Errors
    ///
    /// An error reply, with its text; a server that does not answer within ten seconds.
    pub fn command(&self, words: &[&str]) -> io::Result<String> {
        let mut client = RespClient::connect(&self.socket_file())?;
        if let Some(auth) = self.wishes.auth() {
            client.command(&auth)?;
        }
        client.command(words)
    }

    /// Runs one command as this ACL user.
    ///
    /// # Errors
    ///
    /// As [`command`](Self::command).
    pub fn command_as(&self, user: &str, password: &str, words: &[&str]) -> io::Result<String> {
        let mut client = RespClient::connect(&self.socket_file())?;
        client.command(&["AUTH", user, password])?;
        client.command(words)
    }

    pub(super) fn launch(wishes: RedisServerBuilder) -> io::Result<Self> {
        Self::launch_on(wishes, ReservedPort::free)
    }

    fn launch_on(
        wishes: RedisServerBuilder,
        mut next_port: impl FnMut() -> io::Result<ReservedPort>,
    ) -> io::Result<Self> {
        let program = Self::available(wishes.flavor)
            .map_err(|text| io::Error::new(io::ErrorKind::NotFound, text))?;
        // A short name, because the path of a Unix socket is limited to about a hundred bytes.
        let mut folder = tempfile::Builder::new();
        folder.prefix("wl-");
        let folder = match &wishes.folder_in {
            Some(parent) => folder.tempdir_in(parent)?,
            None => folder.tempdir()?,
        };
        let tls = match wishes.tls {
            true => Some(TlsFiles::generate(folder.path())?),
            false => None,
        };
        let mut server = Self {
            wishes,
            program,
            port: next_port()?,
            bus: None,
            tls,
            process: Mutex::new(None),
            folder,
        };
        let mut attempt = 1;
        if server.wishes.cluster_bus {
            server.bus = Some(ReservedPort::free()?);
        }
        loop {
            match server.restart() {
                Err(error)
                    if error.kind() == io::ErrorKind::AddrInUse && attempt < PORT_ATTEMPTS =>
                {
                    server.port = next_port()?;
                    if server.wishes.cluster_bus {
                        server.bus = Some(ReservedPort::free()?);
                    }
                    attempt += 1;
                }
                other => return other.map(|()| server),
            }
        }
    }

    fn spawn(&self) -> io::Result<OwnedChild> {
        let (folder, socket) = (self.folder.path(), self.socket_file());
        let config = folder.join("server.conf");
        let bus = self.bus.as_ref().map(ReservedPort::number);
        self.wishes.write(
            &config,
            folder,
            self.port(),
            bus,
            &socket,
            self.tls.as_ref(),
        )?;
        // A socket file left by a killed server would be mistaken for the new one.
        if let Err(error) = fs::remove_file(&socket)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let log = File::create(self.log_file())?;
        // The shell waits for "go" before it becomes the server, with the same pid. By then the
        // watchdog runs, so the server can never outlive the test process.
        let mut shell = Command::new("sh");
        if self.wishes.movable_clock {
            let clock = self.clock_file();
            if !clock.exists() {
                fs::write(&clock, "+0\n")?;
            }
            shell
                .env("LD_PRELOAD", libfaketime()?)
                .env("FAKETIME_TIMESTAMP_FILE", clock)
                .env("FAKETIME_NO_CACHE", "1")
                .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        }
        let mut process = OwnedChild::spawn_in(
            shell
                .args(["-c", r#"read -r go && exec "$0" "$@""#])
                .arg(&self.program)
                .arg(&config)
                .args(self.wishes.sentinel.then_some("--sentinel"))
                .stdin(Stdio::piped())
                .stdout(log.try_clone()?)
                .stderr(log)
                // Ctrl-C goes to the test, which ends the server itself.
                .process_group(0),
            Some(folder),
        )?;
        if let Some(mut stdin) = process.pipes().stdin.take() {
            stdin.write_all(b"go\n")?;
        }
        self.wait_until_ready(&mut process)?;
        Ok(process)
    }

    /// Uses the private socket, because on the port another test's server might answer.
    fn wait_until_ready(&self, process: &mut OwnedChild) -> io::Result<()> {
        let deadline = Instant::now() + STARTUP_LIMIT;
        loop {
            if let Some(status) = process.try_wait()? {
                return Err(self.failure(&format!("ended at once ({status})")));
            }
            match self.command(&["PING"]) {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(self.failure(&format!("does not answer: {error}")));
                }
                Err(_) => thread::sleep(Duration::from_millis(3)),
            }
        }
    }

    fn failure(&self, what: &str) -> io::Error {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let kind = match log.contains("Address already in use") {
            true => io::ErrorKind::AddrInUse,
            false => io::ErrorKind::Other,
        };
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        let (program, port) = (self.program.display(), self.port());
        io::Error::new(
            kind,
            format!("{program} on port {port} {what}; it logged:\n{tail}"),
        )
    }

    fn with_process(
        &self,
        action: impl FnOnce(&mut OwnedChild) -> io::Result<()>,
    ) -> io::Result<()> {
        match self.process().as_mut() {
            Some(process) => action(process),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the server was killed; restart it first",
            )),
        }
    }

    fn process(&self) -> MutexGuard<'_, Option<OwnedChild>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clock_file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }

    fn socket_file(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }
}

/// The library that fakes the time of a program.
fn libfaketime() -> io::Result<PathBuf> {
    let candidates = fs::read_dir("/usr/lib")?
        .flatten()
        .map(|entry| entry.path().join("faketime/libfaketimeMT.so.1"));
    let plain = PathBuf::from("/usr/lib/faketime/libfaketimeMT.so.1");
    let found = candidates.chain([plain]).find(|path| path.exists());
    found.ok_or_else(|| {
        let hint = "libfaketime is missing: install the package libfaketime";
        io::Error::new(io::ErrorKind::NotFound, hint)
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn occupied_port_is_replaced() -> io::Result<()> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let taken_port = taken.local_addr()?.port();
        let mut attempts = 0;
        let server = RedisServer::launch_on(RedisServer::builder(), || {
            attempts += 1;
            match attempts {
                1 | 2 => Ok(ReservedPort::unsecured(taken_port)),
                _ => ReservedPort::free(),
            }
        })?;
        assert_ne!(server.port(), taken_port);
        assert_eq!(attempts, 3);
        Ok(())
    }

    #[test]
    fn permanently_occupied_port_is_an_error() -> io::Result<()> {
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let taken_port = taken.local_addr()?.port();
        let result = RedisServer::launch_on(RedisServer::builder(), || {
            Ok(ReservedPort::unsecured(taken_port))
        });
        let error = result.expect_err("a taken port cannot be used");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        Ok(())
    }
}

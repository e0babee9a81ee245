//! A PostgreSQL test server, and a PgBouncer in front of one.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use tempfile::TempDir;

use super::port::ReservedPort;
use crate::owned_child::OwnedChild;

/// Long, because a busy machine is no reason to fail; a server that exits is detected immediately.
const STARTUP_LIMIT: Duration = Duration::from_secs(30);
/// How long a server may take to end by itself before it is killed.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(10);
const LOG_LINES_SHOWN: usize = 12;
/// Where Debian and its kin install servers, each in a folder of its version.
const DEBIAN_FOLDER: &str = "/usr/lib/postgresql";
/// The variable that names the folder with `initdb`, `postgres` and `psql`.
const VARIABLE: &str = "WINDLASS_POSTGRES_BIN";
/// The superuser of every test server, and its password over TCP.
const USER: &str = "windlass";
const PASSWORD: &str = "pg-s3cret";

/// Describes a [`PostgresServer`].
#[derive(Clone, Debug, Default)]
#[must_use = "start() starts the server"]
pub struct PostgresServerBuilder {
    settings: Vec<(String, String)>,
    durable: bool,
}

impl PostgresServerBuilder {
    /// A setting of `postgresql.conf`.
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Syncs every commit to disk, as a server in production does.
    pub fn durable(mut self) -> Self {
        self.durable = true;
        self
    }

    /// Starts the server.
    pub fn start(self) -> io::Result<PostgresServer> {
        PostgresServer::launch(self, None)
    }
}

/// A real server on its own port and folder. It ends when this value is dropped.
///
/// The server also ends when the test process is killed. It accepts passwords over TCP and any user
/// over its Unix socket. PostgreSQL refuses to run as root: started by root, it runs as the user
/// `postgres`, or as `nobody`.
#[derive(Debug)]
pub struct PostgresServer {
    wishes: PostgresServerBuilder,
    programs: PathBuf,
    account: Option<&'static str>,
    port: ReservedPort,
    // Before the folder, so that the server is gone when its files are removed.
    process: Mutex<Option<OwnedChild>>,
    folder: TempDir,
}

impl PostgresServer {
    /// Starts a server that does not sync commits to disk.
    pub fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    /// Describes a server that differs from the one of [`start`](Self::start).
    pub fn builder() -> PostgresServerBuilder {
        PostgresServerBuilder::default()
    }

    /// The folder of the programs, or a sentence that says what to install.
    pub fn available() -> Result<PathBuf, String> {
        if let Some(folder) = std::env::var_os(VARIABLE).map(PathBuf::from) {
            return match folder.join("postgres").is_file() {
                true => Ok(folder),
                false => Err(format!(
                    "{VARIABLE} names {}, which has no postgres",
                    folder.display()
                )),
            };
        }
        let versions = fs::read_dir(DEBIAN_FOLDER).into_iter().flatten().flatten();
        let mut folders: Vec<PathBuf> = versions
            .map(|version| version.path().join("bin"))
            .filter(|folder| folder.join("initdb").is_file() && folder.join("postgres").is_file())
            .collect();
        folders.sort();
        folders.pop().ok_or_else(|| {
            format!(
                "PostgreSQL is not installed in {DEBIAN_FOLDER}: install it, for instance with the \
                 Debian package \"postgresql-15\", or name its folder in {VARIABLE}"
            )
        })
    }

    /// Starts a standby that follows `primary`: read-only until it is [promoted](Self::promote).
    pub fn standby_of(primary: &PostgresServer) -> io::Result<Self> {
        Self::launch(primary.wishes.clone(), Some(primary))
    }

    /// Makes a standby the primary of its own timeline.
    pub fn promote(&self) -> io::Result<()> {
        self.sql("SELECT pg_promote(true, 30)").map(drop)
    }

    /// The URL of the server, with the superuser's credentials.
    pub fn url(&self) -> String {
        self.url_of(USER, PASSWORD)
    }

    /// The URL for another user.
    pub fn url_of(&self, user: &str, password: &str) -> String {
        format!("postgres://{user}:{password}@{}/postgres", self.addr())
    }

    /// The URL of the Unix socket.
    pub fn socket_url(&self) -> String {
        let folder = self.folder.path().display().to_string();
        let folder = folder.replace('/', "%2F");
        format!("postgres://{USER}@{folder}:{}/postgres", self.port())
    }

    /// The TCP port, which stays the same over restarts.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The TCP address, which stays the same over restarts.
    pub fn addr(&self) -> SocketAddr {
        SocketAddr::from((Ipv4Addr::LOCALHOST, self.port()))
    }

    /// The process id of the server, unless it was stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process().as_ref().map(OwnedChild::pid)
    }

    /// Ends the server as a crash does: without a checkpoint, and without telling clients in advance.
    pub fn kill(&self) -> io::Result<()> {
        self.end(Signal::QUIT)
    }

    /// Shuts the server down: it disconnects its clients and writes a checkpoint.
    pub fn stop(&self) -> io::Result<()> {
        self.end(Signal::INT)
    }

    /// Kills the server, if it is running, and starts it again on the same port with its data.
    pub fn restart(&self) -> io::Result<()> {
        self.kill()?;
        let process = self.spawn()?;
        *self.process() = Some(process);
        Ok(())
    }

    /// Freezes the server, except for sessions that are open, with SIGSTOP.
    pub fn pause(&self) -> io::Result<()> {
        match self.process().as_mut() {
            Some(process) => process.pause(),
            None => Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the server was stopped",
            )),
        }
    }

    /// Runs SQL as the superuser, and returns the rows: one line each, columns separated by `|`.
    ///
    /// # Errors
    ///
    /// The server's message, if it reports an error.
    pub fn sql(&self, sql: &str) -> io::Result<String> {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.args([
            "-X",
            "-q",
            "-A",
            "-t",
            "-v",
            "ON_ERROR_STOP=1",
            "-d",
            "postgres",
            "-U",
            USER,
        ])
        .arg("-h")
        .arg(self.folder.path())
        .args(["-p", &self.port().to_string(), "-c", sql])
        .env_remove("PGOPTIONS")
        .stdin(Stdio::null());
        let answer = psql.output()?;
        match answer.status.success() {
            true => Ok(String::from_utf8_lossy(&answer.stdout)
                .trim_end()
                .to_owned()),
            false => Err(io::Error::other(
                String::from_utf8_lossy(&answer.stderr)
                    .trim_end()
                    .to_owned(),
            )),
        }
    }

    fn launch(wishes: PostgresServerBuilder, primary: Option<&PostgresServer>) -> io::Result<Self> {
        let programs =
            Self::available().map_err(|text| io::Error::new(io::ErrorKind::NotFound, text))?;
        // A short name, because the path of a Unix socket is limited to about a hundred bytes.
        let folder = tempfile::Builder::new().prefix("wl-pg-").tempdir()?;
        let account = account()?;
        own(folder.path(), account)?;
        let server = Self {
            wishes,
            programs,
            account,
            port: ReservedPort::free()?,
            process: Mutex::new(None),
            folder,
        };
        match primary {
            None => server.create_cluster()?,
            Some(primary) => server.copy_cluster(primary)?,
        }
        server.restart()?;
        Ok(server)
    }

    fn create_cluster(&self) -> io::Result<()> {
        let password = self.folder.path().join("password");
        fs::write(&password, PASSWORD)?;
        own(&password, self.account)?;
        let mut initdb = self.as_account(self.programs.join("initdb"));
        initdb
            .args(["--no-sync", "--encoding=UTF8", "--locale=C"])
            .args(["--auth-local=trust", "--auth-host=scram-sha-256"])
            .args(["--username", USER, "--pwfile"])
            .arg(&password)
            .arg("--pgdata")
            .arg(self.data());
        finish(&mut initdb)
    }

    fn copy_cluster(&self, primary: &PostgresServer) -> io::Result<()> {
        let mut copy = self.as_account(self.programs.join("pg_basebackup"));
        copy.args([
            "--write-recovery-conf",
            "--no-sync",
            "--checkpoint=fast",
            "--wal-method=stream",
        ])
        .args(["--username", USER, "--host"])
        .arg(primary.folder.path())
        .args(["--port", &primary.port().to_string(), "--pgdata"])
        .arg(self.data());
        finish(&mut copy)
    }

    fn spawn(&self) -> io::Result<OwnedChild> {
        let deadline = Instant::now() + STARTUP_LIMIT;
        loop {
            let mut process = self.spawn_once()?;
            match self.wait_until_ready(&mut process, deadline) {
                // Sessions of a killed server end a moment after it.
                Err(_) if self.is_still_in_use() && Instant::now() < deadline => {
                    thread::sleep(Duration::from_millis(50));
                }
                other => return other.map(|()| process),
            }
        }
    }

    fn spawn_once(&self) -> io::Result<OwnedChild> {
        let log = File::create(self.log_file())?;
        let folder = self.folder.path();
        let sync = if self.wishes.durable { "on" } else { "off" };
        let port = self.port().to_string();
        let socket = folder.display().to_string();
        let mut settings = vec![
            ("listen_addresses", "127.0.0.1"),
            ("port", &port),
            ("unix_socket_directories", &socket),
            ("fsync", sync),
            ("synchronous_commit", "on"),
            ("full_page_writes", sync),
            ("shared_buffers", "64MB"),
            ("max_connections", "300"),
            ("timezone", "UTC"),
            ("log_timezone", "UTC"),
        ];
        settings.extend(
            self.wishes
                .settings
                .iter()
                .map(|(n, v)| (n.as_str(), v.as_str())),
        );
        // The shell waits for "go" before it becomes the server, with the same pid. By then the
        // watchdog runs, so the server can never outlive the test process.
        let mut shell = self.as_account("sh");
        shell
            .args(["-c", r#"read -r go && exec "$0" "$@""#])
            .arg(self.programs.join("postgres"))
            .arg("-D")
            .arg(self.data());
        for (name, value) in settings {
            shell.args(["-c", &format!("{name}={value}")]);
        }
        let mut process = OwnedChild::spawn_in(
            shell
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
        Ok(process)
    }

    fn wait_until_ready(&self, process: &mut OwnedChild, deadline: Instant) -> io::Result<()> {
        loop {
            if let Some(status) = process.try_wait()? {
                return Err(self.failure(&format!("ended at once ({status})")));
            }
            match self.sql("SELECT 1") {
                Ok(_) => return Ok(()),
                Err(error) if Instant::now() > deadline => {
                    return Err(self.failure(&format!("does not answer: {error}")));
                }
                Err(_) => thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    fn is_still_in_use(&self) -> bool {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        log.contains("still in use") || log.contains("Is another postmaster")
    }

    fn end(&self, signal: Signal) -> io::Result<()> {
        let Some(mut process) = self.process().take() else {
            return Ok(());
        };
        process.end(signal, SHUTDOWN_LIMIT).map(drop)
    }

    fn failure(&self, what: &str) -> io::Error {
        let log = fs::read_to_string(self.log_file()).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(LOG_LINES_SHOWN)..].join("\n");
        let port = self.port();
        io::Error::other(format!(
            "postgres on port {port} {what}; it logged:\n{tail}"
        ))
    }

    /// A command that runs as the user that the server runs as.
    fn as_account(&self, program: impl AsRef<OsStr>) -> Command {
        as_account(self.account, program.as_ref())
    }

    fn process(&self) -> MutexGuard<'_, Option<OwnedChild>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn log_file(&self) -> PathBuf {
        self.folder.path().join("server.log")
    }
}

/// When PgBouncer gives the connection to the server back to its pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolMode {
    /// When the client disconnects.
    Session,
    /// After each transaction.
    Transaction,
}

/// A PgBouncer in front of a [`PostgresServer`], on its own port.
#[derive(Debug)]
pub struct PgBouncer {
    port: ReservedPort,
    account: Option<&'static str>,
    process: Mutex<Option<OwnedChild>>,
    folder: TempDir,
}

impl PgBouncer {
    /// Starts a pooler with up to `connections` connections to the server.
    pub fn start(server: &PostgresServer, mode: PoolMode, connections: u32) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix("wl-pb-").tempdir()?;
        let account = account()?;
        let port = ReservedPort::free()?;
        let mode = match mode {
            PoolMode::Session => "session",
            PoolMode::Transaction => "transaction",
        };
        let config = format!(
            "[databases]\n\
             postgres = host=127.0.0.1 port={} dbname=postgres user={USER} password={PASSWORD}\n\
             [pgbouncer]\n\
             listen_addr = 127.0.0.1\nlisten_port = {}\nunix_socket_dir =\n\
             auth_type = any\npool_mode = {mode}\ndefault_pool_size = {connections}\n\
             max_client_conn = 500\nlogfile = {}\n",
            server.port(),
            port.number(),
            folder.path().join("log").display(),
        );
        fs::write(folder.path().join("pgbouncer.ini"), config)?;
        own(folder.path(), account)?;
        own(&folder.path().join("pgbouncer.ini"), account)?;
        let bouncer = Self {
            port,
            account,
            process: Mutex::new(None),
            folder,
        };
        bouncer.restart()?;
        Ok(bouncer)
    }

    /// The URL of the pooler.
    pub fn url(&self) -> String {
        let port = self.port.number();
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{port}/postgres")
    }

    /// Kills the pooler, if it is running, and starts it again on the same port.
    pub fn restart(&self) -> io::Result<()> {
        let mut process = self.process.lock().unwrap_or_else(PoisonError::into_inner);
        *process = None;
        let program = [
            "/usr/sbin/pgbouncer",
            "/usr/bin/pgbouncer",
            "/usr/local/bin/pgbouncer",
        ];
        let program = program.iter().find(|path| Path::new(path).is_file()).ok_or_else(|| {
            let hint = "pgbouncer was not found: install it, for instance with the Debian package \
                        \"pgbouncer\"";
            io::Error::new(io::ErrorKind::NotFound, hint)
        })?;
        let log = File::create(self.folder.path().join("output"))?;
        let mut shell = as_account(self.account, "sh".as_ref());
        let mut child = OwnedChild::spawn_in(
            shell
                .args(["-c", r#"read -r go && exec "$0" "$@""#, program])
                .arg(self.folder.path().join("pgbouncer.ini"))
                .stdin(Stdio::piped())
                .stdout(log.try_clone()?)
                .stderr(log)
                .process_group(0),
            Some(self.folder.path()),
        )?;
        if let Some(mut stdin) = child.pipes().stdin.take() {
            stdin.write_all(b"go\n")?;
        }
        let deadline = Instant::now() + STARTUP_LIMIT;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port.number()));
        while std::net::TcpStream::connect(address).is_err() {
            if let Some(status) = child.try_wait()? {
                let log = fs::read_to_string(self.folder.path().join("output"));
                let log = log.unwrap_or_default();
                return Err(io::Error::other(format!(
                    "pgbouncer ended ({status}): {log}"
                )));
            }
            if Instant::now() > deadline {
                return Err(io::Error::other("pgbouncer does not listen"));
            }
            thread::sleep(Duration::from_millis(10));
        }
        *process = Some(child);
        Ok(())
    }
}

/// The user to run servers as that refuse root; `None` if this process is not root.
fn account() -> io::Result<Option<&'static str>> {
    if !rustix::process::geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let exists = |name: &&str| {
        users
            .lines()
            .any(|line| line.split(':').next() == Some(name))
    };
    let found = ["postgres", "nobody"].into_iter().find(exists);
    found.map(Some).ok_or_else(|| {
        let text = "PostgreSQL does not run as root, and there is no user postgres or nobody";
        io::Error::new(io::ErrorKind::NotFound, text)
    })
}

/// Gives a file or folder to the account.
fn own(path: &Path, account: Option<&str>) -> io::Result<()> {
    if let Some(account) = account {
        finish(Command::new("chown").arg(account).arg(path))?;
    }
    if path.is_dir() {
        // The temporary folder of the test process may be closed to others, not this one.
        fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    }
    Ok(())
}

fn as_account(account: Option<&str>, program: &OsStr) -> Command {
    match account {
        None => Command::new(program),
        Some(account) => {
            let mut command = Command::new("setpriv");
            let user = format!("--reuid={account}");
            command
                .args([user.as_str(), "--clear-groups", "--"])
                .arg(program);
            // The account may not enter the folder of the test.
            command.current_dir("/");
            command
        }
    }
}

/// Runs a command to its end.
fn finish(command: &mut Command) -> io::Result<()> {
    let answer = command.stdin(Stdio::null()).output()?;
    if answer.status.success() {
        return Ok(());
    }
    let program = command.get_program().to_string_lossy().into_owned();
    let said = String::from_utf8_lossy(&answer.stderr);
    Err(io::Error::other(format!(
        "{program} failed ({}): {said}",
        answer.status
    )))
}

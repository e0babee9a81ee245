//! A TCP proxy with switchable faults.

mod byte_queue;
mod connection;
mod counters;
mod faults;
mod listener;

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc as blocking;
use std::thread;
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::mpsc;

use connection::Upstream;
use counters::ProxyCounters;
use faults::{Change, ProxiedCommand};

pub use faults::Direction;

/// A TCP proxy in front of a server, with faults that tests switch while clients use it.
///
/// It runs on its own thread and tokio runtime, so it keeps real time when the test's clock is
/// paused, and serves a test that blocks its own runtime. It stops on drop.
///
/// Unless stated otherwise a fault applies to open and new connections, until [`heal`](Self::heal).
/// When a method returns, its fault is in effect for every client whose `connect` had returned
/// before.
///
/// ```
/// # use std::io::{Read, Write};
/// # fn main() -> std::io::Result<()> {
/// use windlass_testkit::{Direction, FaultProxy, RedisServer};
///
/// let server = RedisServer::start()?;
/// let proxy = FaultProxy::start(server.addr())?;
/// let mut client = std::net::TcpStream::connect(proxy.addr())?;
///
/// // The server gets the command, the client does not get the reply.
/// proxy.blackhole(Direction::ToClient);
/// client.write_all(b"SET greeting hello\r\n")?;
/// # assert!(windlass_testkit::eventually_blocking(std::time::Duration::from_secs(5), || {
/// #     server.command(&["GET", "greeting"]).unwrap() == "hello"
/// # }));
/// # Ok(())
/// # }
/// ```
pub struct FaultProxy {
    addr: SocketAddr,
    upstream: SocketAddr,
    counters: Arc<ProxyCounters>,
    runtime: Handle,
    // An option only so that drop can close the channel before it joins the thread.
    commands: Option<mpsc::UnboundedSender<ProxiedCommand>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a faultless proxy on a free port of 127.0.0.1.
    ///
    /// The server need not be up: the proxy connects to it for each client, and resets the client
    /// if that fails.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::start_with_retry(upstream, Duration::ZERO)
    }

    /// The same for a server that may not listen yet: the proxy retries for `retry_for` before it
    /// resets a client.
    ///
    /// A client whose connection is refused retries soon; one that is accepted and then reset may
    /// treat the server as broken.
    pub fn start_with_retry(upstream: SocketAddr, retry_for: Duration) -> io::Result<Self> {
        let backlog = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        backlog.set_nonblocking(true)?;
        let addr = backlog.local_addr()?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let handle = runtime.handle().clone();
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(backlog.try_clone()?)?
        };
        let counters = Arc::new(ProxyCounters::default());
        let (commands, inbox) = mpsc::unbounded_channel();
        let server = Upstream {
            addr: upstream,
            retry_for,
        };
        let serving = listener::serve(listener, backlog, server, inbox, Arc::clone(&counters));
        let thread = thread::Builder::new()
            .name(format!("fault proxy {}", addr.port()))
            .spawn(move || runtime.block_on(serving))?;
        Ok(Self {
            addr,
            upstream,
            counters,
            runtime: handle,
            commands: Some(commands),
            thread: Some(thread),
        })
    }

    /// The address for clients to connect to.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The port for clients to connect to.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// Delays all bytes by `latency`, in order and without reducing the throughput.
    ///
    /// Bytes already in the proxy are delayed too. Zero removes the delay.
    pub fn delay(&self, direction: Direction, latency: Duration) {
        self.apply(Change::Delay(direction, latency));
    }

    /// Swallows all bytes, while the connection stays open.
    ///
    /// The end of a connection is swallowed too: neither side learns that the other has closed.
    pub fn blackhole(&self, direction: Direction) {
        self.apply(Change::Blackhole(direction));
    }

    /// Holds all bytes until [`release_held`](Self::release_held) or [`heal`](Self::heal).
    ///
    /// The end of a connection is held too.
    pub fn hold(&self, direction: Direction) {
        self.apply(Change::Hold(direction));
    }

    /// Ends every [`hold`](Self::hold): held bytes are delivered in order.
    pub fn release_held(&self) {
        self.apply(Change::ReleaseHeld);
    }

    /// Resets all open connections, on both sides, once. New connections work.
    pub fn reset_all(&self) {
        self.apply(Change::ResetAll);
    }

    /// Whether new connections are reset immediately. Open connections are not affected.
    pub fn refuse(&self, refuse: bool) {
        self.apply(Change::Refuse(refuse));
    }

    /// Closes the server's side of all open connections, once. New connections work.
    ///
    /// The client's side stays open: what the client sends vanishes, and no reply comes.
    pub fn half_open(&self) {
        self.apply(Change::HalfOpen);
    }

    /// Removes all faults and delivers held bytes.
    ///
    /// A connection that has lost bytes, by [`blackhole`](Self::blackhole) or
    /// [`half_open`](Self::half_open), is reset, because the rest of its stream would be
    /// meaningless.
    pub fn heal(&self) {
        self.apply(Change::Heal);
    }

    /// How many connections were accepted so far, refused ones included.
    pub fn connections(&self) -> u64 {
        self.counters.accepted()
    }

    /// How many connections are open on either side.
    pub fn open_connections(&self) -> u64 {
        self.counters.open()
    }

    /// How many bytes were delivered to the server so far.
    pub fn bytes_to_server(&self) -> u64 {
        self.counters.to_server()
    }

    /// How many bytes were delivered to clients so far.
    pub fn bytes_to_client(&self) -> u64 {
        self.counters.to_client()
    }

    /// How many bytes are held now.
    pub fn held(&self, direction: Direction) -> usize {
        self.counters.held(direction)
    }

    /// Waits until at least `min_bytes` are held. Returns whether that happened in time.
    ///
    /// `timeout` is real time, even if the clock of the calling runtime is paused.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost by cancelling: the bytes stay held.
    pub async fn wait_held(
        &self,
        direction: Direction,
        min_bytes: usize,
        timeout: Duration,
    ) -> bool {
        let counters = Arc::clone(&self.counters);
        let wait = async move {
            let enough = counters.until_held(direction, min_bytes);
            tokio::time::timeout(timeout, enough).await.is_ok()
        };
        // The task fails only if the proxy is gone.
        self.runtime.spawn(wait).await.unwrap_or(false)
    }

    /// Blocks until the listener and every open connection have applied the change: microseconds.
    fn apply(&self, change: Change) {
        let (done, all_done) = blocking::channel();
        if let Some(commands) = &self.commands {
            // Fails only if the proxy's thread has panicked; its clients then notice.
            let _ = commands.send(ProxiedCommand { change, done });
        }
        // Nothing is ever sent: the wait ends when the last copy of the command is dropped.
        let _ = all_done.recv();
    }
}

impl Drop for FaultProxy {
    fn drop(&mut self) {
        self.commands = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl fmt::Debug for FaultProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultProxy")
            .field("addr", &self.addr)
            .field("upstream", &self.upstream)
            .field("open_connections", &self.open_connections())
            .finish_non_exhaustive()
    }
}

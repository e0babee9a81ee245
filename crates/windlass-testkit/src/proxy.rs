//! A TCP proxy that misbehaves on command.

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
use faults::{Change, Command};

pub use faults::Direction;

/// A TCP proxy in front of a server, whose faults can be switched while clients use it.
///
/// It runs on a thread and a tokio runtime of its own, so it keeps real time when the clock of the
/// test is paused, and it serves a test that blocks its own runtime. It stops on drop.
///
/// Unless said otherwise a fault applies to open and to new connections, until [`heal`](Self::heal).
/// When a method returns, its fault is in effect for every client whose `connect` had returned before.
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
    // An option only so that drop can close the channel before it waits for the thread.
    commands: Option<mpsc::UnboundedSender<Command>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl FaultProxy {
    /// Starts a faultless proxy on a free port of 127.0.0.1.
    ///
    /// The server need not be up: each client that connects is connected to it anew, and is reset if
    /// that fails.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::start_with_retry(upstream, Duration::ZERO)
    }

    /// The same for a server that may not listen yet: for so long, clients are not reset because of that.
    ///
    /// A client that is refused comes again soon; one that is accepted, and reset then, may draw other
    /// conclusions.
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

    /// Lets all bytes arrive later by `latency`, in command and without reducing the throughput.
    ///
    /// Bytes that are already on their way are delayed alike. Zero removes the delay.
    pub fn delay(&self, direction: Direction, latency: Duration) {
        self.apply(Change::Delay(direction, latency));
    }

    /// Swallows all bytes, while the connection stays open.
    ///
    /// The end of a connection is swallowed too: the one side does not learn that the other has gone.
    pub fn blackhole(&self, direction: Direction) {
        self.apply(Change::Blackhole(direction));
    }

    /// Keeps all bytes back until [`release_held`](Self::release_held) or [`heal`](Self::heal).
    ///
    /// The end of a connection is kept back with them.
    pub fn hold(&self, direction: Direction) {
        self.apply(Change::Hold(direction));
    }

    /// Ends every [`hold`](Self::hold): what was kept back is delivered in command.
    pub fn release_held(&self) {
        self.apply(Change::ReleaseHeld);
    }

    /// Resets all open connections, on both sides, once. New connections work.
    pub fn reset_all(&self) {
        self.apply(Change::ResetAll);
    }

    /// Whether new connections are reset at once. Open connections are not touched.
    pub fn refuse(&self, refuse: bool) {
        self.apply(Change::Refuse(refuse));
    }

    /// Lets the server forget all open connections, once. New connections work.
    ///
    /// The server sees them closed. The clients see nothing: their side stays open, what they send
    /// vanishes, and nothing comes back.
    pub fn half_open(&self) {
        self.apply(Change::HalfOpen);
    }

    /// Removes all faults, and lets held bytes flow.
    ///
    /// A connection that has lost bytes, by [`blackhole`](Self::blackhole) or
    /// [`half_open`](Self::half_open), is reset, because what would follow made no sense.
    pub fn heal(&self) {
        self.apply(Change::Heal);
    }

    /// How many connections were accepted so far, refused ones included.
    pub fn connections(&self) -> u64 {
        self.counters.accepted()
    }

    /// How many connections the proxy keeps open, on whichever side.
    pub fn open_connections(&self) -> u64 {
        self.counters.open()
    }

    /// How many bytes were handed to the server so far.
    pub fn bytes_to_server(&self) -> u64 {
        self.counters.to_server()
    }

    /// How many bytes were handed to clients so far.
    pub fn bytes_to_client(&self) -> u64 {
        self.counters.to_client()
    }

    /// How many bytes are held back at this moment.
    pub fn held(&self, direction: Direction) -> usize {
        self.counters.held(direction)
    }

    /// Waits until at least `min_bytes` are held back, and tells whether that happened in time.
    ///
    /// `timeout` is real time, whatever the clock of the calling runtime.
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
        // The task fails only if the proxy is gone, and its held bytes with it.
        self.runtime.spawn(wait).await.unwrap_or(false)
    }

    /// Blocks until the listener and every open connection have obeyed, which takes microseconds.
    fn apply(&self, change: Change) {
        let (done, all_done) = blocking::channel();
        if let Some(commands) = &self.commands {
            // Fails only if the thread of the proxy has panicked; its clients then notice.
            let _ = commands.send(Command { change, done });
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

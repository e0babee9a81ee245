//! One client, its connection to the server, and the two queues between them.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::byte_queue::{ByteQueue, WriteOutcome, is_temporary};
use super::counters::ProxyCounters;
use super::faults::{Change, DirectionFaults, PerDirection, ProxiedCommand};

/// The address of the server, and for how long a refused connection is retried.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upstream {
    pub(super) addr: SocketAddr,
    pub(super) retry_for: Duration,
}

impl Upstream {
    async fn connect(self) -> io::Result<TcpStream> {
        let give_up = Instant::now() + self.retry_for;
        loop {
            match TcpStream::connect(self.addr).await {
                Err(_) if Instant::now() < give_up => sleep(Duration::from_millis(10)).await,
                connected => return connected,
            }
        }
    }
}

pub(super) struct ProxiedConnection {
    queues: PerDirection<ByteQueue>,
    commands: mpsc::UnboundedReceiver<ProxiedCommand>,
    counters: Arc<ProxyCounters>,
    held: PerDirection<usize>,
    /// Whether the server's side was closed behind the client's back.
    forgotten: bool,
    /// The last applied command. Dropping it signals the caller that the command is done; a command
    /// that ends the connection must not be dropped before the sockets are closed.
    command: Option<ProxiedCommand>,
}

/// What to do next with a connection.
enum NextStep {
    Continue,
    Close,
    Reset,
    /// The server's side is closed, and the client does not know.
    HalfOpen,
}

/// What a connection was waiting for.
enum ReadyEvent {
    Command(Option<ProxiedCommand>),
    FromClient,
    FromServer,
    ToServer,
    ToClient,
}

impl ProxiedConnection {
    pub(super) fn new(
        commands: mpsc::UnboundedReceiver<ProxiedCommand>,
        faults: PerDirection<DirectionFaults>,
        counters: Arc<ProxyCounters>,
    ) -> Self {
        counters.count_open();
        Self {
            queues: PerDirection {
                to_server: ByteQueue::new(faults.to_server),
                to_client: ByteQueue::new(faults.to_client),
            },
            commands,
            counters,
            held: PerDirection::default(),
            forgotten: false,
            command: None,
        }
    }

    /// Serves `client` until either side ends the connection.
    pub(super) async fn run(mut self, mut client: TcpStream, upstream: Upstream) {
        let next = match self.connect(upstream).await {
            Ok(server) => self.forward(&mut client, server).await,
            Err(next) => next,
        };
        match next {
            NextStep::Reset => reset(&client),
            NextStep::HalfOpen => self.serve_half_open(&client).await,
            NextStep::Continue | NextStep::Close => {}
        }
        // `client` is dropped before `self`, which holds the command that may have ended the
        // connection.
    }

    /// Applies commands while the connection to the server is being established.
    async fn connect(&mut self, upstream: Upstream) -> Result<TcpStream, NextStep> {
        let connecting = upstream.connect();
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                server = &mut connecting => return server.map_err(|_| NextStep::Reset),
                command = self.commands.recv() => match self.apply(command) {
                    NextStep::Continue => self.command = None,
                    end => return Err(end),
                },
            }
        }
    }

    /// Forwards bytes in both directions until the connection ends.
    async fn forward(&mut self, client: &mut TcpStream, mut server: TcpStream) -> NextStep {
        // Nagle's algorithm would add delays.
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        loop {
            let next = match self.event(client, &server).await {
                ReadyEvent::Command(command) => self.apply(command),
                ReadyEvent::FromClient => {
                    self.queues.to_server.read(client);
                    NextStep::Continue
                }
                ReadyEvent::FromServer => {
                    self.queues.to_client.read(&server);
                    NextStep::Continue
                }
                ReadyEvent::ToServer => self.deliver_to_server(&mut server).await,
                ReadyEvent::ToClient => self.deliver_to_client(client).await,
            };
            self.publish_held(PerDirection {
                to_server: self.queues.to_server.held_bytes(),
                to_client: self.queues.to_client.held_bytes(),
            });
            match next {
                NextStep::Continue if self.is_finished() => return NextStep::Close,
                NextStep::Continue => self.command = None,
                NextStep::Reset => {
                    reset(&server);
                    return NextStep::Reset;
                }
                NextStep::Close | NextStep::HalfOpen => return next,
            }
        }
    }

    /// Waits until there is something to do.
    async fn event(&mut self, client: &TcpStream, server: &TcpStream) -> ReadyEvent {
        let PerDirection {
            to_server,
            to_client,
        } = &self.queues;
        // Errors appear again, and are handled, when the socket is read or written.
        tokio::select! {
            command = self.commands.recv() => ReadyEvent::Command(command),
            _ = client.readable(), if to_server.wants_to_read() => ReadyEvent::FromClient,
            _ = server.readable(), if to_client.wants_to_read() => ReadyEvent::FromServer,
            () = writable(server, to_server.due()) => ReadyEvent::ToServer,
            () = writable(client, to_client.due()) => ReadyEvent::ToClient,
        }
    }

    fn apply(&mut self, command: Option<ProxiedCommand>) -> NextStep {
        let Some(command) = command else {
            return NextStep::Close;
        };
        let mut faults = PerDirection {
            to_server: self.queues.to_server.faults,
            to_client: self.queues.to_client.faults,
        };
        command.change.switch(&mut faults);
        self.queues.to_server.faults = faults.to_server;
        self.queues.to_client.faults = faults.to_client;
        let next = match command.change {
            Change::ResetAll => NextStep::Reset,
            Change::HalfOpen => NextStep::HalfOpen,
            Change::Heal if self.has_lost() => NextStep::Reset,
            _ => NextStep::Continue,
        };
        self.command = Some(command);
        next
    }

    async fn deliver_to_server(&mut self, server: &mut TcpStream) -> NextStep {
        let delivered = &self.counters.delivered().to_server;
        match self.queues.to_server.write(server, delivered).await {
            WriteOutcome::Done => {}
            WriteOutcome::ReceiverGone => self.queues.to_client.sender_gone(),
            WriteOutcome::Reset => return NextStep::Reset,
        }
        NextStep::Continue
    }

    async fn deliver_to_client(&mut self, client: &mut TcpStream) -> NextStep {
        let delivered = &self.counters.delivered().to_client;
        match self.queues.to_client.write(client, delivered).await {
            WriteOutcome::Done => {}
            WriteOutcome::ReceiverGone => self.queues.to_server.sender_gone(),
            WriteOutcome::Reset => return NextStep::Reset,
        }
        NextStep::Continue
    }

    /// Keeps a client's side open whose server's side is closed.
    async fn serve_half_open(&mut self, client: &TcpStream) {
        self.forgotten = true;
        self.publish_held(PerDirection::default());
        let mut vanishing = [0; 1024];
        loop {
            self.command = None;
            tokio::select! {
                command = self.commands.recv() => match self.apply(command) {
                    NextStep::Continue | NextStep::HalfOpen => {}
                    NextStep::Reset => return reset(client),
                    NextStep::Close => return,
                },
                _ = client.readable() => match client.try_read(&mut vanishing) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) if is_temporary(&error) => {}
                    Err(_) => return,
                },
            }
        }
    }

    /// Whether both senders are done, even if their end was swallowed.
    fn is_finished(&self) -> bool {
        self.queues.to_server.is_finished() && self.queues.to_client.is_finished()
    }

    fn has_lost(&self) -> bool {
        self.forgotten || self.queues.to_server.has_lost() || self.queues.to_client.has_lost()
    }

    fn publish_held(&mut self, now: PerDirection<usize>) {
        self.counters.count_held(self.held, now);
        self.held = now;
    }
}

impl Drop for ProxiedConnection {
    fn drop(&mut self) {
        self.publish_held(PerDirection::default());
        self.counters.count_closed();
    }
}

/// Returns when bytes are due and the socket is writable.
async fn writable(receiver: &TcpStream, due: Option<Instant>) {
    match due {
        None => pending().await,
        // Not for bytes that are due already: tokio rounds up to whole milliseconds.
        Some(due) if due > Instant::now() => sleep_until(due).await,
        Some(_) => {}
    }
    let _ = receiver.writable().await;
}

/// Makes the drop of the socket send a reset.
fn reset(socket: &TcpStream) {
    // Fails only on a broken socket.
    let _ = socket.set_zero_linger();
}

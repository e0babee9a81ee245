//! One client, its connection to the server, and the two lanes between them.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use super::faults::{Change, EachWay, LaneFaults, Order};
use super::lane::{Delivery, Lane, is_temporary};
use super::tally::Tally;

/// Where the server is, and for how long it is looked for there if it refuses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Upstream {
    pub(super) addr: SocketAddr,
    pub(super) patience: Duration,
}

impl Upstream {
    async fn connect(self) -> io::Result<TcpStream> {
        let give_up = Instant::now() + self.patience;
        loop {
            match TcpStream::connect(self.addr).await {
                Err(_) if Instant::now() < give_up => sleep(Duration::from_millis(10)).await,
                connected => return connected,
            }
        }
    }
}

pub(super) struct Connection {
    lanes: EachWay<Lane>,
    orders: mpsc::UnboundedReceiver<Order>,
    tally: Arc<Tally>,
    held: EachWay<usize>,
    /// Whether the server has forgotten the connection.
    forgotten: bool,
    /// What was obeyed last. Dropping it tells the caller that the order is done, and in the case of
    /// an order that ends the connection this must not happen before the sockets are closed.
    order: Option<Order>,
}

/// How a connection goes on.
enum Next {
    Continue,
    Close,
    Reset,
    /// The server has forgotten the connection, and the client does not know.
    HalfOpen,
}

/// What a connection has been waiting for.
enum Event {
    Order(Option<Order>),
    FromClient,
    FromServer,
    ToServer,
    ToClient,
}

impl Connection {
    pub(super) fn new(
        orders: mpsc::UnboundedReceiver<Order>,
        faults: EachWay<LaneFaults>,
        tally: Arc<Tally>,
    ) -> Self {
        tally.count_open();
        Self {
            lanes: EachWay {
                to_server: Lane::new(faults.to_server),
                to_client: Lane::new(faults.to_client),
            },
            orders,
            tally,
            held: EachWay::default(),
            forgotten: false,
            order: None,
        }
    }

    /// Serves `client` until either side has had enough.
    pub(super) async fn run(mut self, mut client: TcpStream, upstream: Upstream) {
        let next = match self.connect(upstream).await {
            Ok(server) => self.forward(&mut client, server).await,
            Err(next) => next,
        };
        match next {
            Next::Reset => reset(&client),
            Next::HalfOpen => self.pretend(&client).await,
            Next::Continue | Next::Close => {}
        }
        // `client` is dropped before `self`, and with `self` the order that may have led here.
    }

    /// Obeys orders while the connection to the server comes about.
    async fn connect(&mut self, upstream: Upstream) -> Result<TcpStream, Next> {
        let connecting = upstream.connect();
        tokio::pin!(connecting);
        loop {
            tokio::select! {
                server = &mut connecting => return server.map_err(|_| Next::Reset),
                order = self.orders.recv() => match self.obey(order) {
                    Next::Continue => self.order = None,
                    end => return Err(end),
                },
            }
        }
    }

    /// Carries bytes both ways until something ends that.
    async fn forward(&mut self, client: &mut TcpStream, mut server: TcpStream) -> Next {
        // Otherwise the proxy would add delays that nobody asked for.
        let _ = client.set_nodelay(true);
        let _ = server.set_nodelay(true);
        loop {
            let next = match self.event(client, &server).await {
                Event::Order(order) => self.obey(order),
                Event::FromClient => {
                    self.lanes.to_server.read(client);
                    Next::Continue
                }
                Event::FromServer => {
                    self.lanes.to_client.read(&server);
                    Next::Continue
                }
                Event::ToServer => self.deliver_to_server(&mut server).await,
                Event::ToClient => self.deliver_to_client(client).await,
            };
            self.publish_held(EachWay {
                to_server: self.lanes.to_server.held_bytes(),
                to_client: self.lanes.to_client.held_bytes(),
            });
            match next {
                Next::Continue if self.is_finished() => return Next::Close,
                Next::Continue => self.order = None,
                Next::Reset => {
                    reset(&server);
                    return Next::Reset;
                }
                Next::Close | Next::HalfOpen => return next,
            }
        }
    }

    /// Waits until there is something to do.
    async fn event(&mut self, client: &TcpStream, server: &TcpStream) -> Event {
        let EachWay {
            to_server,
            to_client,
        } = &self.lanes;
        // Errors show up again, and are dealt with, when the socket is read or written.
        tokio::select! {
            order = self.orders.recv() => Event::Order(order),
            _ = client.readable(), if to_server.wants_to_read() => Event::FromClient,
            _ = server.readable(), if to_client.wants_to_read() => Event::FromServer,
            () = writable(server, to_server.due()) => Event::ToServer,
            () = writable(client, to_client.due()) => Event::ToClient,
        }
    }

    fn obey(&mut self, order: Option<Order>) -> Next {
        let Some(order) = order else {
            return Next::Close;
        };
        let mut faults = EachWay {
            to_server: self.lanes.to_server.faults,
            to_client: self.lanes.to_client.faults,
        };
        order.change.switch(&mut faults);
        self.lanes.to_server.faults = faults.to_server;
        self.lanes.to_client.faults = faults.to_client;
        let next = match order.change {
            Change::ResetAll => Next::Reset,
            Change::HalfOpen => Next::HalfOpen,
            Change::Heal if self.has_lost() => Next::Reset,
            _ => Next::Continue,
        };
        self.order = Some(order);
        next
    }

    async fn deliver_to_server(&mut self, server: &mut TcpStream) -> Next {
        let delivered = &self.tally.delivered().to_server;
        match self.lanes.to_server.write(server, delivered).await {
            Delivery::Done => {}
            Delivery::ReceiverGone => self.lanes.to_client.sender_gone(),
            Delivery::Reset => return Next::Reset,
        }
        Next::Continue
    }

    async fn deliver_to_client(&mut self, client: &mut TcpStream) -> Next {
        let delivered = &self.tally.delivered().to_client;
        match self.lanes.to_client.write(client, delivered).await {
            Delivery::Done => {}
            Delivery::ReceiverGone => self.lanes.to_server.sender_gone(),
            Delivery::Reset => return Next::Reset,
        }
        Next::Continue
    }

    /// Keeps up appearances towards a client that the server has forgotten.
    async fn pretend(&mut self, client: &TcpStream) {
        self.forgotten = true;
        self.publish_held(EachWay::default());
        let mut vanishing = [0; 1024];
        loop {
            self.order = None;
            tokio::select! {
                order = self.orders.recv() => match self.obey(order) {
                    Next::Continue | Next::HalfOpen => {}
                    Next::Reset => return reset(client),
                    Next::Close => return,
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

    /// Whether nobody has anything more to say, even if it was swallowed.
    fn is_finished(&self) -> bool {
        self.lanes.to_server.is_finished() && self.lanes.to_client.is_finished()
    }

    fn has_lost(&self) -> bool {
        self.forgotten || self.lanes.to_server.has_lost() || self.lanes.to_client.has_lost()
    }

    fn publish_held(&mut self, now: EachWay<usize>) {
        self.tally.count_held(self.held, now);
        self.held = now;
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.publish_held(EachWay::default());
        self.tally.count_closed();
    }
}

/// Returns when bytes are due to be written and there is room for them.
async fn writable(receiver: &TcpStream, due: Option<Instant>) {
    match due {
        None => pending().await,
        // Not for bytes that are due already: tokio rounds up to whole milliseconds.
        Some(due) if due > Instant::now() => sleep_until(due).await,
        Some(_) => {}
    }
    let _ = receiver.writable().await;
}

/// Makes the coming drop of the socket a reset.
fn reset(socket: &TcpStream) {
    // Fails only on a socket that is broken already.
    let _ = socket.set_zero_linger();
}

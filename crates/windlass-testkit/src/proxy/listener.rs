//! Accepts clients, and passes orders on to their connections.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::connection::{Connection, Upstream};
use super::faults::{Change, EachWay, LaneFaults, Order};
use super::tally::Tally;

/// Serves until the sender of `orders` is dropped.
///
/// `listener` and `backlog` are two handles of one socket; `accept_waiting` says why.
pub(super) async fn serve(
    listener: TcpListener,
    backlog: StdListener,
    upstream: Upstream,
    mut orders: mpsc::UnboundedReceiver<Order>,
    tally: Arc<Tally>,
) {
    let mut clients = Clients {
        upstream,
        tally,
        faults: EachWay::default(),
        refuse: false,
        orders: Vec::new(),
        // Dropped, and with it all connections, when this function returns.
        tasks: JoinSet::new(),
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                clients.welcome(client);
            },
            order = orders.recv() => match order {
                Some(order) => {
                    clients.accept_waiting(&backlog);
                    clients.obey(order);
                }
                None => return,
            },
        }
    }
}

struct Clients {
    upstream: Upstream,
    tally: Arc<Tally>,
    faults: EachWay<LaneFaults>,
    refuse: bool,
    orders: Vec<mpsc::UnboundedSender<Order>>,
    tasks: JoinSet<()>,
}

impl Clients {
    /// Accepts those whose `connect` has returned because the kernel answered it, so that the next
    /// order finds them.
    ///
    /// Asks the kernel directly: the tokio listener knows only what its reactor has already noticed.
    fn accept_waiting(&mut self, backlog: &StdListener) {
        while let Ok((client, _)) = backlog.accept() {
            if client.set_nonblocking(true).is_ok()
                && let Ok(client) = TcpStream::from_std(client)
            {
                self.welcome(client);
            }
        }
    }

    fn welcome(&mut self, client: TcpStream) {
        self.tally.count_accepted();
        if self.refuse {
            // Makes the drop at the end of this function a reset.
            let _ = client.set_zero_linger();
            return;
        }
        let (sender, inbox) = mpsc::unbounded_channel();
        let connection = Connection::new(inbox, self.faults, Arc::clone(&self.tally));
        self.tasks.spawn(connection.run(client, self.upstream));
        self.orders.push(sender);
    }

    fn obey(&mut self, order: Order) {
        order.change.switch(&mut self.faults);
        match order.change {
            Change::Refuse(refuse) => self.refuse = refuse,
            Change::Heal => self.refuse = false,
            _ => {}
        }
        // Those of connections that have ended are sorted out on the way.
        self.orders
            .retain(|orders| orders.send(order.clone()).is_ok());
        while self.tasks.try_join_next().is_some() {}
    }
}

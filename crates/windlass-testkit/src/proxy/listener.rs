//! Accepts clients and forwards commands to their connections.

use std::net::TcpListener as StdListener;
use std::sync::Arc;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::connection::{ProxiedConnection, Upstream};
use super::counters::ProxyCounters;
use super::faults::{Change, DirectionFaults, PerDirection, ProxiedCommand};

/// Serves until the sender of `commands` is dropped.
///
/// `listener` and `backlog` are two handles of one socket; `accept_waiting` says why.
pub(super) async fn serve(
    listener: TcpListener,
    backlog: StdListener,
    upstream: Upstream,
    mut commands: mpsc::UnboundedReceiver<ProxiedCommand>,
    counters: Arc<ProxyCounters>,
) {
    let mut clients = ClientConnections {
        upstream,
        counters,
        faults: PerDirection::default(),
        refuse: false,
        commands: Vec::new(),
        // Dropped, and with it all connections, when this function returns.
        tasks: JoinSet::new(),
    };
    loop {
        tokio::select! {
            accepted = listener.accept() => if let Ok((client, _)) = accepted {
                clients.add_client(client);
            },
            command = commands.recv() => match command {
                Some(command) => {
                    clients.accept_waiting(&backlog);
                    clients.apply(command);
                }
                None => return,
            },
        }
    }
}

struct ClientConnections {
    upstream: Upstream,
    counters: Arc<ProxyCounters>,
    faults: PerDirection<DirectionFaults>,
    refuse: bool,
    commands: Vec<mpsc::UnboundedSender<ProxiedCommand>>,
    tasks: JoinSet<()>,
}

impl ClientConnections {
    /// Accepts clients whose `connect` has returned because the kernel answered it, so that the
    /// next command reaches them.
    ///
    /// Calls the kernel directly: the tokio listener knows only what its reactor has noticed.
    fn accept_waiting(&mut self, backlog: &StdListener) {
        while let Ok((client, _)) = backlog.accept() {
            if client.set_nonblocking(true).is_ok()
                && let Ok(client) = TcpStream::from_std(client)
            {
                self.add_client(client);
            }
        }
    }

    fn add_client(&mut self, client: TcpStream) {
        self.counters.count_accepted();
        if self.refuse {
            // Makes the drop at the end of this function a reset.
            let _ = client.set_zero_linger();
            return;
        }
        let (sender, inbox) = mpsc::unbounded_channel();
        let connection = ProxiedConnection::new(inbox, self.faults, Arc::clone(&self.counters));
        self.tasks.spawn(connection.run(client, self.upstream));
        self.commands.push(sender);
    }

    fn apply(&mut self, command: ProxiedCommand) {
        command.change.switch(&mut self.faults);
        match command.change {
            Change::Refuse(refuse) => self.refuse = refuse,
            Change::Heal => self.refuse = false,
            _ => {}
        }
        // Removes ended connections on the way.
        self.commands
            .retain(|commands| commands.send(command.clone()).is_ok());
        while self.tasks.try_join_next().is_some() {}
    }
}

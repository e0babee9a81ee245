//! Ports that stay reserved while a server is down.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::TcpSocket;

/// A free port on 127.0.0.1, reserved for one server.
///
/// Servers that are killed and restarted must find their port free. On Linux a socket that is bound
/// but does not listen ensures that: the server may bind the same port beside it (both set
/// `SO_REUSEADDR`), clients are refused while the server is down, and the kernel assigns the port
/// to no other socket, neither as a free port nor as the local end of an outgoing connection. The
/// latter matters most: a client that keeps reconnecting to a dead port of the ephemeral range
/// would eventually get that port as its own and connect to itself.
#[derive(Debug)]
pub(super) struct ReservedPort {
    port: u16,
    _reservation: Option<TcpSocket>,
}

impl ReservedPort {
    pub(super) fn free() -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))?;
        Ok(Self {
            port: socket.local_addr()?.port(),
            // On other systems two sockets cannot share a port this way, so the server would not
            // start.
            _reservation: cfg!(target_os = "linux").then_some(socket),
        })
    }

    /// A port that was chosen elsewhere and may be in use.
    #[cfg(test)]
    pub(super) fn unsecured(port: u16) -> Self {
        Self {
            port,
            _reservation: None,
        }
    }

    pub(super) fn number(&self) -> u16 {
        self.port
    }
}

//! Wake-ups between the processes of one machine: a datagram to an abstract socket.
//!
//! An abstract socket needs no file, so nothing is left behind by a process that was killed. Anyone
//! on the machine could send one; so a wake-up is only a hint to ask the database.

use std::sync::Weak;

use crate::backend::{WakeAddress, WakeUps};

/// Listens for this client's wake-ups, until dropped.
#[derive(Debug)]
pub(super) struct Ear {
    listener: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Ear {
    fn drop(&mut self) {
        if let Some(listener) = &self.listener {
            listener.abort();
        }
    }
}

#[cfg(target_os = "linux")]
mod imp {
    use std::io;
    use std::os::linux::net::SocketAddrExt as _;
    use std::os::unix::net::{SocketAddr, UnixDatagram};
    use std::sync::OnceLock;

    use super::*;

    fn address(client: u64) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("windlass-{client:016x}"))
    }

    impl Ear {
        /// Without an ear, waiters are woken by their heartbeats alone.
        pub(crate) fn listen(client: u64, wakeups: Weak<dyn WakeUps>) -> Ear {
            let bind = || -> io::Result<tokio::net::UnixDatagram> {
                let socket = UnixDatagram::bind_addr(&address(client)?)?;
                socket.set_nonblocking(true)?;
                tokio::net::UnixDatagram::from_std(socket)
            };
            let listener = match bind() {
                Ok(socket) => Some(tokio::spawn(hear(socket, wakeups))),
                Err(e) => {
                    tracing::warn!(error = %e, "cannot listen for wake-ups; waiting will be slower");
                    None
                }
            };
            Ear { listener }
        }
    }

    async fn hear(socket: tokio::net::UnixDatagram, wakeups: Weak<dyn WakeUps>) {
        let mut bytes = [0u8; 8];
        while let Ok(length) = socket.recv(&mut bytes).await {
            let Some(wakeups) = wakeups.upgrade() else {
                return;
            };
            if length == bytes.len() {
                wakeups.granted(u64::from_be_bytes(bytes), None);
            }
        }
    }

    /// Tells a waiter of another process. If it cannot be told, its heartbeat will find out.
    pub(crate) fn send(to: WakeAddress) {
        static SOCKET: OnceLock<Option<UnixDatagram>> = OnceLock::new();
        let socket = SOCKET.get_or_init(|| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        });
        if let (Some(socket), Ok(address)) = (socket, address(to.client)) {
            let _ = socket.send_to_addr(&to.claim.to_be_bytes(), &address);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::*;

    impl Ear {
        pub(crate) fn listen(_client: u64, _wakeups: Weak<dyn WakeUps>) -> Ear {
            Ear { listener: None }
        }
    }

    pub(crate) fn send(_to: WakeAddress) {}
}

pub(super) use imp::send;

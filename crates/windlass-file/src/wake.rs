//! Wake-ups between the processes of one machine: a datagram to an abstract socket.
//!
//! An abstract socket needs no file, so nothing is left behind by a process that was killed. Anyone
//! on the machine could send one; so a wake-up is only a hint to ask the database.

use std::sync::{Arc, Weak};

use windlass_core::store::GrantListener;
use windlass_core::store::notification::SubscriberRegistry;

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
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// Claims in one datagram.
    const MOST: usize = 64;
    /// How often a full socket is tried, and how long it is left to its owner in between.
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_micros(500);
    /// What stands for the claim in a datagram that brings news instead; then comes the channel.
    const NEWS: [u8; 8] = [0; 8];
    /// The longest datagram: a channel is a name and a word.
    const LONGEST: usize = 2048;

    fn address(client: u64) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("windlass-{client:016x}"))
    }

    impl Ear {
        /// Without an ear, waiters are woken by their heartbeats alone.
        pub(crate) fn listen(
            client: u64,
            wakeups: Weak<dyn GrantListener>,
            listeners: Arc<SubscriberRegistry>,
        ) -> Ear {
            let bind = || -> io::Result<tokio::net::UnixDatagram> {
                let socket = UnixDatagram::bind_addr(&address(client)?)?;
                socket.set_nonblocking(true)?;
                tokio::net::UnixDatagram::from_std(socket)
            };
            let listener = match bind() {
                Ok(socket) => Some(tokio::spawn(hear(socket, wakeups, listeners))),
                Err(e) => {
                    tracing::warn!(error = %e, "cannot listen for wake-ups; waiting will be slower");
                    None
                }
            };
            Ear { listener }
        }
    }

    async fn hear(
        socket: tokio::net::UnixDatagram,
        wakeups: Weak<dyn GrantListener>,
        listeners: Arc<SubscriberRegistry>,
    ) {
        let mut bytes = vec![0u8; LONGEST];
        while let Ok(length) = socket.recv(&mut bytes).await {
            let Some(wakeups) = wakeups.upgrade() else {
                return;
            };
            if let Some(channel) = bytes[..length].strip_prefix(&NEWS) {
                if let Ok(channel) = std::str::from_utf8(channel) {
                    listeners.heard(channel, b"");
                }
                continue;
            }
            for claim in bytes[..length].as_chunks::<8>().0 {
                wakeups.granted(u64::from_be_bytes(*claim), None);
            }
        }
    }

    /// Tells waiters of another process. If they cannot be told, their heartbeats will find out.
    pub(crate) fn send(client: u64, claims: &[u64]) {
        for claims in claims.chunks(MOST) {
            let bytes: Vec<u8> = claims.iter().flat_map(|c| c.to_be_bytes()).collect();
            deliver(client, &bytes, TRIES);
        }
    }

    /// Tells another process that there is news. False if that process has ended.
    pub(crate) fn announce(client: u64, channel: &str) -> bool {
        // Tried once: whoever does not read has plenty to read already, and will look when it does.
        deliver(client, &[&NEWS, channel.as_bytes()].concat(), 1)
    }

    /// Whether that process is there to listen.
    pub(crate) fn is_there(client: u64) -> bool {
        deliver(client, &NEWS, 1)
    }

    fn deliver(client: u64, bytes: &[u8], tries: u32) -> bool {
        static SOCKET: OnceLock<Option<UnixDatagram>> = OnceLock::new();
        let socket = SOCKET.get_or_init(|| {
            let socket = UnixDatagram::unbound().ok()?;
            socket.set_nonblocking(true).ok()?;
            Some(socket)
        });
        let (Some(socket), Ok(address)) = (socket, address(client)) else {
            return true;
        };
        for left in (0..tries).rev() {
            match socket.send_to_addr(bytes, &address) {
                // A socket holds a few datagrams; its owner is awake and reading them.
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && left > 0 => thread::sleep(PAUSE),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => break,
                Err(e) => return e.kind() != io::ErrorKind::ConnectionRefused,
                Ok(_) => break,
            }
        }
        true
    }
}

#[cfg(not(target_os = "linux"))]
mod imp {
    use super::*;

    impl Ear {
        pub(crate) fn listen(
            _client: u64,
            _wakeups: Weak<dyn GrantListener>,
            _listeners: Arc<SubscriberRegistry>,
        ) -> Ear {
            Ear { listener: None }
        }
    }

    pub(crate) fn send(_client: u64, _claims: &[u64]) {}

    pub(crate) fn announce(_client: u64, _channel: &str) -> bool {
        true
    }

    pub(crate) fn is_there(_client: u64) -> bool {
        true
    }
}

pub(super) use imp::{announce, is_there, send};

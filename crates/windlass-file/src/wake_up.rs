//! Wake-ups and notifications between the processes of one machine: datagrams to an abstract Unix
//! socket.
//!
//! An abstract socket has no file, so a killed process leaves nothing behind. Any process of the
//! machine can send a datagram, so a wake-up is only a hint: the client reads the database before
//! it believes in a grant.

use std::sync::{Arc, Weak};

use windlass_core::store::GrantListener;
use windlass_core::store::notification::SubscriberRegistry;

/// Receives this client's datagrams, until dropped.
#[derive(Debug)]
pub(super) struct WakeUpListener {
    task: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for WakeUpListener {
    fn drop(&mut self) {
        if let Some(task) = &self.task {
            task.abort();
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

    /// Claims in one datagram: each is 8 bytes.
    const MAX_CLAIMS: usize = 64;
    /// Attempts to send to a socket whose buffer is full, and the pause between two of them.
    const TRIES: u32 = 20;
    const PAUSE: Duration = Duration::from_micros(500);
    /// What a notification starts with, in place of a claim; the channel follows.
    const NOTIFICATION: [u8; 8] = [0; 8];
    /// The longest datagram: a channel is a kind and a name.
    const MAX_DATAGRAM: usize = 2048;

    fn address(client: u64) -> io::Result<SocketAddr> {
        SocketAddr::from_abstract_name(format!("windlass-{client:016x}"))
    }

    impl WakeUpListener {
        /// Starts to receive. If the socket cannot be bound, waiters find their grants by
        /// heartbeat.
        pub(crate) fn listen(
            client: u64,
            grants: Weak<dyn GrantListener>,
            subscribers: Arc<SubscriberRegistry>,
        ) -> WakeUpListener {
            let bind = || -> io::Result<tokio::net::UnixDatagram> {
                let socket = UnixDatagram::bind_addr(&address(client)?)?;
                socket.set_nonblocking(true)?;
                tokio::net::UnixDatagram::from_std(socket)
            };
            let task = match bind() {
                Ok(socket) => Some(tokio::spawn(receive(socket, grants, subscribers))),
                Err(e) => {
                    tracing::warn!(error = %e, "no wake-ups: waiting is slower");
                    None
                }
            };
            WakeUpListener { task }
        }
    }

    async fn receive(
        socket: tokio::net::UnixDatagram,
        grants: Weak<dyn GrantListener>,
        subscribers: Arc<SubscriberRegistry>,
    ) {
        let mut bytes = vec![0u8; MAX_DATAGRAM];
        while let Ok(length) = socket.recv(&mut bytes).await {
            let Some(grants) = grants.upgrade() else {
                return;
            };
            if let Some(channel) = bytes[..length].strip_prefix(&NOTIFICATION) {
                if let Ok(channel) = std::str::from_utf8(channel) {
                    subscribers.notify(channel, b"");
                }
                continue;
            }
            for claim in bytes[..length].as_chunks::<8>().0 {
                grants.granted(u64::from_be_bytes(*claim), None);
            }
        }
    }

    /// Wakes waiters of another process. If that fails, their heartbeats find the grant.
    pub(crate) fn send_wake_ups(client: u64, claims: &[u64]) {
        for claims in claims.chunks(MAX_CLAIMS) {
            let bytes: Vec<u8> = claims.iter().flat_map(|c| c.to_be_bytes()).collect();
            send(client, &bytes, TRIES);
        }
    }

    /// Notifies another process. False if that process has ended.
    pub(crate) fn send_notification(client: u64, channel: &str) -> bool {
        // One try: a full buffer means that the process reads the state soon anyway.
        send(client, &[&NOTIFICATION, channel.as_bytes()].concat(), 1)
    }

    /// Whether the client's process is still running.
    pub(crate) fn is_listening(client: u64) -> bool {
        send(client, &NOTIFICATION, 1)
    }

    fn send(client: u64, bytes: &[u8], tries: u32) -> bool {
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
                // A socket buffers a few datagrams, and its owner is reading them.
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

    impl WakeUpListener {
        pub(crate) fn listen(
            _client: u64,
            _grants: Weak<dyn GrantListener>,
            _subscribers: Arc<SubscriberRegistry>,
        ) -> WakeUpListener {
            WakeUpListener { task: None }
        }
    }

    pub(crate) fn send_wake_ups(_client: u64, _claims: &[u64]) {}

    pub(crate) fn send_notification(_client: u64, _channel: &str) -> bool {
        true
    }

    pub(crate) fn is_listening(_client: u64) -> bool {
        true
    }
}

pub(super) use imp::{is_listening, send_notification, send_wake_ups};

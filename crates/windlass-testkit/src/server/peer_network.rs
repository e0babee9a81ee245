//! A network between the members of a cluster in which any member can be cut off.
//!
//! All members must use the same address for a member, because an etcd member is identified by the
//! address that it advertises. So the address alone does not tell which member connects. A listener
//! behind each address finds out which process has connected, and forwards the connection through
//! the [`FaultProxy`] for that pair of members.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tokio::net::TcpStream;
use tokio::runtime;
use tokio::sync::oneshot;

use crate::proxy::{Direction, FaultProxy};

/// The proxies between all pairs of members.
#[derive(Debug)]
pub(super) struct PeerNetwork {
    listeners: Vec<PeerListener>,
    links: Arc<Vec<PeerLink>>,
    members: MemberPids,
}

/// The proxy from one member to another.
#[derive(Debug)]
struct PeerLink {
    from: usize,
    to: usize,
    proxy: FaultProxy,
}

/// The member of each process id.
type MemberPids = Arc<Mutex<HashMap<u32, usize>>>;

/// The listener through which all other members reach a member.
#[derive(Debug)]
struct PeerListener {
    addr: SocketAddr,
    /// Dropping it closes the listener.
    open: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PeerNetwork {
    /// Starts a network between members that listen on these addresses.
    pub(super) fn start(listening: &[SocketAddr]) -> io::Result<PeerNetwork> {
        if !cfg!(target_os = "linux") {
            let text =
                "members can be cut off on Linux only: it shows which process owns a connection";
            return Err(io::Error::new(io::ErrorKind::Unsupported, text));
        }
        let mut links = Vec::new();
        for (to, addr) in listening.iter().enumerate() {
            for from in (0..listening.len()).filter(|from| *from != to) {
                let proxy = FaultProxy::start(*addr)?;
                links.push(PeerLink { from, to, proxy });
            }
        }
        let (links, members) = (Arc::new(links), MemberPids::default());
        let listeners = (0..listening.len())
            .map(|to| PeerListener::open(to, Arc::clone(&links), Arc::clone(&members)))
            .collect::<io::Result<Vec<PeerListener>>>()?;
        Ok(PeerNetwork {
            listeners,
            links,
            members,
        })
    }

    /// The address that a member advertises to the others.
    pub(super) fn addr(&self, member: usize) -> SocketAddr {
        self.listeners[member].addr
    }

    /// Sets the process of a member. Before that, its connections are reset.
    pub(super) fn set_process(&self, member: usize, pid: u32) {
        let mut members = lock(&self.members);
        members.retain(|_, known| *known != member);
        members.insert(pid, member);
    }

    /// Blocks all bytes between a member and the others on open connections; new connections fail.
    pub(super) fn cut_off(&self, member: usize) {
        for link in self.links_of(member) {
            link.proxy.refuse(true);
            link.proxy.blackhole(Direction::Both);
        }
    }

    pub(super) fn rejoin(&self, member: usize) {
        for link in self.links_of(member) {
            link.proxy.heal();
            link.proxy.reset_all();
        }
    }

    fn links_of(&self, member: usize) -> impl Iterator<Item = &PeerLink> {
        let ends = move |link: &&PeerLink| link.from == member || link.to == member;
        self.links.iter().filter(ends)
    }
}

impl PeerListener {
    fn open(to: usize, links: Arc<Vec<PeerLink>>, members: MemberPids) -> io::Result<PeerListener> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let addr = listener.local_addr()?;
        let runtime = runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let listener = {
            let _inside = runtime.enter();
            tokio::net::TcpListener::from_std(listener)?
        };
        let (open, closed) = oneshot::channel::<()>();
        let serve = async move {
            loop {
                let Ok((caller, from)) = listener.accept().await else {
                    continue;
                };
                let (links, members) = (Arc::clone(&links), Arc::clone(&members));
                tokio::spawn(async move {
                    // Not on this thread, which carries the members' heartbeats: reading the tables of a
                    // busy system takes a while.
                    let known = tokio::task::spawn_blocking(move || {
                        let members = lock(&members).clone();
                        member_of(from, addr, &members)
                    });
                    let known = known.await.ok().flatten();
                    let link = links
                        .iter()
                        .find(|link| Some(link.from) == known && link.to == to);
                    match link {
                        Some(link) => pass(caller, link.proxy.addr()).await,
                        // The process is gone or unknown: reset the connection.
                        None => drop(caller.set_zero_linger()),
                    }
                });
            }
        };
        let thread = thread::Builder::new()
            .name(format!("door {}", addr.port()))
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve => {}
                        _ = closed => {}
                    }
                });
            })?;
        Ok(PeerListener {
            addr,
            open: Some(open),
            thread: Some(thread),
        })
    }
}

impl Drop for PeerListener {
    fn drop(&mut self) {
        self.open = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Forwards bytes in both directions until one side closes.
async fn pass(mut caller: TcpStream, to: SocketAddr) {
    if let Ok(mut called) = TcpStream::connect(to).await {
        let _ = caller.set_nodelay(true).and(called.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut caller, &mut called).await;
    }
}

/// The member that owns this end of a connection.
fn member_of(end: SocketAddr, other: SocketAddr, members: &HashMap<u32, usize>) -> Option<usize> {
    let socket = format!("socket:[{}]", inode_of(end, other)?);
    let has_it = |pid: &u32| {
        let open = fs::read_dir(format!("/proc/{pid}/fd"));
        let mut open = open.into_iter().flatten().flatten();
        open.any(|file| fs::read_link(file.path()).is_ok_and(|to| to.as_os_str() == &*socket))
    };
    let (_, member) = members.iter().find(|(pid, _)| has_it(pid))?;
    Some(*member)
}

/// The inode of a socket.
fn inode_of(end: SocketAddr, other: SocketAddr) -> Option<u64> {
    let (end, other) = (hex_address(end)?, hex_address(other)?);
    // A table that changes while it is read may miss entries.
    (0..50).find_map(|_| {
        let table = fs::read_to_string("/proc/net/tcp").ok()?;
        table.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let ours = words.next()? == end && words.next()? == other;
            words.nth(6).filter(|_| ours)?.parse().ok()
        })
    })
}

/// The address in the format of `/proc/net/tcp`.
fn hex_address(addr: SocketAddr) -> Option<String> {
    let SocketAddr::V4(addr) = addr else {
        return None;
    };
    let ip = u32::from_ne_bytes(addr.ip().octets());
    Some(format!("{ip:08X}:{:04X}", addr.port()))
}

fn lock(members: &Mutex<HashMap<u32, usize>>) -> MutexGuard<'_, HashMap<u32, usize>> {
    members.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::TcpStream;
    use std::time::Duration;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// What arrives at `listener` of bytes sent `through` a peer listener; `None` if the connection
    /// is refused. Waits for one or the other, because silence proves little.
    fn delivered(through: SocketAddr, listener: &TcpListener) -> Option<Vec<u8>> {
        let mut caller = TcpStream::connect(through).unwrap();
        // Fails if the connection was refused already.
        let _ = caller.write_all(b"hello");
        caller.set_nonblocking(true).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (mut called, mut is_refused) = (None, false);
        let decided = crate::eventually_blocking(SOON, || {
            let answer = caller.read(&mut [0]);
            is_refused = !answer.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock);
            called = listener.accept().ok();
            called.is_some() || is_refused
        });
        assert!(decided, "neither delivered nor refused");
        let (mut called, _) = called?;
        called.set_nonblocking(false).unwrap();
        called.set_read_timeout(Some(SOON)).unwrap();
        let mut received = [0; 5];
        called.read_exact(&mut received).ok()?;
        Some(received.to_vec())
    }

    #[test]
    fn members_are_identified_and_one_is_cut_off() {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let listeners = [listen(), listen(), listen()];
        let addrs = listeners.each_ref().map(|l| l.local_addr().unwrap());
        let network = PeerNetwork::start(&addrs).unwrap();
        let is_delivered_to = |to: usize| {
            let received = delivered(network.addr(to), &listeners[to]);
            received.as_deref() == Some(b"hello")
        };
        let is_refused_by = |to: usize| delivered(network.addr(to), &listeners[to]).is_none();
        assert!(is_refused_by(1), "an unknown process");
        network.set_process(0, std::process::id());
        assert!(is_delivered_to(1));
        network.cut_off(2);
        assert!(is_refused_by(2));
        assert!(is_delivered_to(1), "not concerned");
        network.set_process(2, std::process::id());
        assert!(is_refused_by(1), "the same address, another caller");
        network.rejoin(2);
        assert!(is_delivered_to(1));
    }
}

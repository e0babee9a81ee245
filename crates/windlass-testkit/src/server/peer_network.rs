//! A network between the members of a cluster, of which any can be cut off from the others.
//!
//! All members must name each other alike: an etcd member is known by the address that it tells the others. So
//! an address alone does not say who calls whom. Behind each there is a door here that looks which
//! process has knocked, and lets it through by a [`FaultProxy`] for just these two.

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

/// Ways between members, each in its own right.
#[derive(Debug)]
pub(super) struct PeerNetwork {
    listeners: Vec<PeerListener>,
    links: Arc<Vec<PeerLink>>,
    members: MemberPids,
}

/// How one member reaches another.
#[derive(Debug)]
struct PeerLink {
    from: usize,
    to: usize,
    proxy: FaultProxy,
}

/// Which process is which member.
type MemberPids = Arc<Mutex<HashMap<u32, usize>>>;

/// Where all others reach a member.
#[derive(Debug)]
struct PeerListener {
    addr: SocketAddr,
    /// Dropped, and the door closes.
    open: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl PeerNetwork {
    /// Between members that listen for each other there.
    pub(super) fn start(listening: &[SocketAddr]) -> io::Result<PeerNetwork> {
        if !cfg!(target_os = "linux") {
            let text =
                "whose connection it is can be told on Linux alone: no member can be cut off here";
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

    /// Where a member tells the others to reach it.
    pub(super) fn addr(&self, member: usize) -> SocketAddr {
        self.listeners[member].addr
    }

    /// Says which process a member is. Before that, it reaches nobody.
    pub(super) fn set_process(&self, member: usize, pid: u32) {
        let mut members = lock(&self.members);
        members.retain(|_, known| *known != member);
        members.insert(pid, member);
    }

    /// Nothing arrives any more between a member and the others, over connections that there are; new ones come
    /// to nothing.
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
                let known = member_of(from, addr, &lock(&members));
                let link = links
                    .iter()
                    .find(|link| Some(link.from) == known && link.to == to);
                match link {
                    Some(link) => drop(tokio::spawn(pass(caller, link.proxy.addr()))),
                    // Gone already, or a stranger: dropped, it is reset.
                    None => drop(caller.set_zero_linger()),
                }
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

/// Passes on all that is said, until one of the two has ended it.
async fn pass(mut caller: TcpStream, to: SocketAddr) {
    if let Ok(mut called) = TcpStream::connect(to).await {
        let _ = caller.set_nodelay(true).and(called.set_nodelay(true));
        let _ = tokio::io::copy_bidirectional(&mut caller, &mut called).await;
    }
}

/// Which of the members has that end of a connection.
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

/// The number that the kernel knows a socket by.
fn inode_of(end: SocketAddr, other: SocketAddr) -> Option<u64> {
    let (end, other) = (hex_address(end)?, hex_address(other)?);
    // A table that changes while it is read may leave something out.
    (0..50).find_map(|_| {
        let table = fs::read_to_string("/proc/net/tcp").ok()?;
        table.lines().find_map(|line| {
            let mut words = line.split_whitespace().skip(1);
            let ours = words.next()? == end && words.next()? == other;
            words.nth(6).filter(|_| ours)?.parse().ok()
        })
    })
}

/// As the kernel writes it in its table.
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

    /// What arrives of what is said to a door, or nothing if the caller is hung up on. One or the other is waited
    /// for: that nothing has come for some time says little.
    fn said(through: SocketAddr, listener: &TcpListener) -> Option<Vec<u8>> {
        let mut caller = TcpStream::connect(through).unwrap();
        // Of one that is hung up on at once, this may fail.
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
        assert!(decided, "neither heard nor refused");
        let (mut called, _) = called?;
        called.set_nonblocking(false).unwrap();
        called.set_read_timeout(Some(SOON)).unwrap();
        let mut heard = [0; 5];
        called.read_exact(&mut heard).ok()?;
        Some(heard.to_vec())
    }

    #[test]
    fn members_are_identified_and_one_is_cut_off() {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let listeners = [listen(), listen(), listen()];
        let addrs = listeners.each_ref().map(|l| l.local_addr().unwrap());
        let network = PeerNetwork::start(&addrs).unwrap();
        let hears = |to: usize| {
            let heard = said(network.addr(to), &listeners[to]);
            heard.as_deref() == Some(b"hello")
        };
        let hears_not = |to: usize| said(network.addr(to), &listeners[to]).is_none();
        assert!(hears_not(1), "a stranger");
        network.set_process(0, std::process::id());
        assert!(hears(1));
        network.cut_off(2);
        assert!(hears_not(2));
        assert!(hears(1), "not concerned");
        network.set_process(2, std::process::id());
        assert!(hears_not(1), "the same address, another caller");
        network.rejoin(2);
        assert!(hears(1));
    }
}

//! [`ClientIp`]: the address of the client, behind proxies that are trusted by name.
//!
//! Each proxy appends the address that it sees to the header, so the right-most addresses are the most reliable ones. The
//! header is read from the right, for as long as the hop that reported an address is trusted. The first address
//! that is not a trusted proxy is the client. What stands further left was written by the client itself, and is
//! never read.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Once};

use http::header::FORWARDED;
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName};
use ipnet::IpNet;

use crate::key::RequestKey;
use crate::maybe_ready::MaybeReady;

/// The address of the peer, as a request extension: for servers other than axum, which set `ConnectInfo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddr(pub SocketAddr);

/// The header in which the trusted proxies report the client.
///
/// Choose the one that *every* trusted proxy sets. A header that a proxy passes on unchanged is written by the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProxyHeader {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

/// The address of the client as the key.
///
/// By default it is the address of the connection. Headers count only if the connection comes from a
/// [trusted](ClientIp::trust) proxy. IPv6 clients are grouped by their /64, since one client has that many addresses.
/// An IPv4-mapped address counts as the IPv4 address.
///
/// The address of the connection comes from axum's `ConnectInfo<SocketAddr>` (feature `axum`; serve with
/// `into_make_service_with_connect_info::<SocketAddr>()`), from [`PeerAddr`], or from a [function](ClientIp::peer).
/// Without any, the key is [missing](crate::OnMissingKey), and all such clients share one limit by default; the first
/// such request is logged as a warning.
///
/// ```
/// use windlass_tower::ClientIp;
///
/// let behind_nginx = ClientIp::new().trust(["127.0.0.1/32".parse().unwrap(), "10.0.0.0/8".parse().unwrap()]);
/// ```
#[derive(Clone)]
pub struct ClientIp {
    trusted: Vec<IpNet>,
    header: ProxyHeader,
    ipv6_prefix: u8,
    peer: PeerFn,
}

type PeerFn = Arc<dyn Fn(&Extensions) -> Option<IpAddr> + Send + Sync>;

impl ClientIp {
    /// The address of the connection; no proxy is trusted.
    pub fn new() -> ClientIp {
        ClientIp {
            trusted: Vec::new(),
            header: ProxyHeader::default(),
            ipv6_prefix: 64,
            peer: Arc::new(peer_of),
        }
    }

    /// Trusts the proxies with these addresses, and no others.
    pub fn trust(mut self, proxies: impl IntoIterator<Item = IpNet>) -> ClientIp {
        self.trusted = proxies.into_iter().collect();
        self
    }

    /// The header that the trusted proxies set; `X-Forwarded-For` by default.
    pub fn header(mut self, header: ProxyHeader) -> ClientIp {
        self.header = header;
        self
    }

    /// The length of the prefix by which IPv6 clients are grouped: 64 by default, 128 for single addresses.
    pub fn ipv6_prefix(mut self, bits: u8) -> ClientIp {
        self.ipv6_prefix = bits.min(128);
        self
    }

    /// Where the address of the connection comes from, such as tonic's `TcpConnectInfo`.
    pub fn peer(
        mut self,
        peer: impl Fn(&Extensions) -> Option<IpAddr> + Send + Sync + 'static,
    ) -> ClientIp {
        self.peer = Arc::new(peer);
        self
    }

    /// The address of the client of a request.
    pub fn address(&self, parts: &Parts) -> Option<IpAddr> {
        let Some(peer) = (self.peer)(&parts.extensions) else {
            warn_of_unknown_peer();
            return None;
        };
        let peer = peer.to_canonical();
        Some(match self.header {
            ProxyHeader::XForwardedFor => self.client(peer, x_forwarded_for(&parts.headers)),
            ProxyHeader::Forwarded => self.client(peer, forwarded(&parts.headers)),
        })
    }

    /// Walks from the peer to the client. `hops` are the reported addresses, from the right; `None` is one that cannot
    /// be read.
    fn client(&self, peer: IpAddr, hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        for hop in hops {
            if !self.is_trusted(client) {
                break;
            }
            // What a trusted proxy reported and cannot be read hides what is left of it.
            let Some(hop) = hop else { break };
            client = hop.to_canonical();
        }
        client
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|net| net.contains(&address))
    }

    fn group(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(address) if self.ipv6_prefix == 128 => address.to_string(),
            IpAddr::V6(address) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(self.ipv6_prefix));
                let group = Ipv6Addr::from_bits(address.to_bits() & mask.unwrap_or(0));
                format!("{group}/{}", self.ipv6_prefix)
            }
        }
    }
}

impl Default for ClientIp {
    fn default() -> ClientIp {
        ClientIp::new()
    }
}

impl RequestKey for ClientIp {
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        let address = self.address(parts);
        MaybeReady::ready(address.map(|address| self.group(address)))
    }
}

/// Without its warning, a service that is not set up for it would limit all clients as one.
fn warn_of_unknown_peer() {
    static WARNED: Once = Once::new();
    WARNED.call_once(|| {
        tracing::warn!(
            "the address of a client is not known: serve with \
             into_make_service_with_connect_info::<SocketAddr>(), or set PeerAddr; such clients have no key of their own"
        );
    });
}

fn peer_of(extensions: &Extensions) -> Option<IpAddr> {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::ConnectInfo(address)) = extensions.get() {
        let address: &SocketAddr = address;
        return Some(address.ip());
    }
    extensions.get().map(|PeerAddr(address)| address.ip())
}

/// The addresses of `X-Forwarded-For`, from the right.
fn x_forwarded_for(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let name = HeaderName::from_static("x-forwarded-for");
    let lines: Vec<&[u8]> = headers
        .get_all(name)
        .iter()
        .map(|line| line.as_bytes())
        .collect();
    lines.into_iter().rev().flat_map(|line| {
        line.rsplit(|&byte| byte == b',')
            .map(|hop| node(std::str::from_utf8(hop).ok()?.trim()))
    })
}

/// The addresses of `Forwarded`, from the right.
fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    let lines: Vec<&[u8]> = headers
        .get_all(FORWARDED)
        .iter()
        .map(|line| line.as_bytes())
        .collect();
    lines.into_iter().rev().flat_map(|line| {
        line.rsplit(|&byte| byte == b',')
            .map(|element| forwarded_for(std::str::from_utf8(element).ok()?))
    })
}

/// The parameter `for` of one element of `Forwarded`. It must occur once.
fn forwarded_for(element: &str) -> Option<IpAddr> {
    let mut found = None;
    for pair in element.split(';') {
        let Some((name, value)) = pair.split_once('=') else {
            continue;
        };
        if name.trim().eq_ignore_ascii_case("for") && found.replace(value.trim()).is_some() {
            return None;
        }
    }
    let value = found?;
    let unquoted = value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'));
    node(unquoted.unwrap_or(value))
}

/// An address, perhaps with a port, and brackets around IPv6.
fn node(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip());
    }
    let bare = text.strip_prefix('[')?.strip_suffix(']')?;
    bare.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

impl std::fmt::Debug for ClientIp {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientIp")
            .field("trusted", &self.trusted)
            .field("header", &self.header)
            .field("ipv6_prefix", &self.ipv6_prefix)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderValue, Request};

    fn key(ip: &ClientIp, peer: &str, lines: &[(&'static str, &[u8])]) -> String {
        let mut request = Request::new(());
        let peer = SocketAddr::new(peer.parse().unwrap(), 4711);
        request.extensions_mut().insert(PeerAddr(peer));
        for (name, value) in lines {
            let value = HeaderValue::from_bytes(value).unwrap();
            request.headers_mut().append(*name, value);
        }
        let (parts, ()) = request.into_parts();
        ip.group(ip.address(&parts).unwrap())
    }

    fn behind_proxies() -> ClientIp {
        ClientIp::new().trust([
            "10.0.0.0/8".parse().unwrap(),
            "2001:db8:f::/48".parse().unwrap(),
        ])
    }

    #[test]
    fn header_of_an_untrusted_peer_is_ignored() {
        let forged: &[(&str, &[u8])] = &[("x-forwarded-for", b"1.2.3.4")];
        assert_eq!(
            key(&ClientIp::new(), "198.51.100.1", forged),
            "198.51.100.1"
        );
        assert_eq!(
            key(&behind_proxies(), "198.51.100.1", forged),
            "198.51.100.1"
        );
    }

    #[test]
    fn client_is_the_first_untrusted_hop_from_the_right() {
        let ip = behind_proxies();
        for (header, client) in [
            (&b"203.0.113.7"[..], "203.0.113.7"),
            (b"1.1.1.1, 203.0.113.7", "203.0.113.7"),
            (b"1.1.1.1, 203.0.113.7, 10.1.1.1,10.2.2.2", "203.0.113.7"),
            // All are trusted: the left-most is the client.
            (b"10.3.3.3, 10.1.1.1", "10.3.3.3"),
            // What cannot be read ends the walk.
            (b"203.0.113.7, unknown", "10.0.0.1"),
            (b"203.0.113.7, \xff\xfe, 10.1.1.1", "10.1.1.1"),
            (b"", "10.0.0.1"),
            (b"203.0.113.7:8080", "203.0.113.7"),
            (b"[2001:db8::1]:80", "2001:db8::/64"),
            (b"::ffff:203.0.113.7", "203.0.113.7"),
            (b"1.1.1.1, ::ffff:10.9.9.9", "1.1.1.1"),
        ] {
            let found = key(&ip, "10.0.0.1", &[("x-forwarded-for", header)]);
            assert_eq!(found, client, "{:?}", String::from_utf8_lossy(header));
        }
        // Several lines are one list.
        let lines: &[(&str, &[u8])] = &[
            ("x-forwarded-for", b"1.1.1.1"),
            ("x-forwarded-for", b"203.0.113.7"),
        ];
        assert_eq!(key(&ip, "10.0.0.1", lines), "203.0.113.7");
    }

    #[test]
    fn only_the_chosen_header_counts() {
        let lines: &[(&str, &[u8])] = &[
            ("x-forwarded-for", b"203.0.113.7"),
            ("forwarded", b"for=1.1.1.1"),
        ];
        assert_eq!(key(&behind_proxies(), "10.0.0.1", lines), "203.0.113.7");
        let ip = behind_proxies().header(ProxyHeader::Forwarded);
        assert_eq!(key(&ip, "10.0.0.1", lines), "1.1.1.1");
    }

    #[test]
    fn forwarded_is_read_from_the_right() {
        let ip = behind_proxies().header(ProxyHeader::Forwarded);
        for (header, client) in [
            (
                &b"for=1.1.1.1, for=203.0.113.7;proto=https;by=10.0.0.9"[..],
                "203.0.113.7",
            ),
            (b"For=\"[2001:db8:1:2:3::4]:4711\"", "2001:db8:1:2::/64"),
            (b"for=203.0.113.7, for=10.1.1.1", "203.0.113.7"),
            (b"for=203.0.113.7, for=_hidden", "10.0.0.1"),
            (b"for=1.1.1.1, for=203.0.113.7;for=2.2.2.2", "10.0.0.1"),
            (b"proto=https", "10.0.0.1"),
            // A comma inside quotes splits the element, and neither part is an address.
            (b"for=\"1.1.1.1,2.2.2.2\"", "10.0.0.1"),
        ] {
            let found = key(&ip, "10.0.0.1", &[("forwarded", header)]);
            assert_eq!(found, client, "{:?}", String::from_utf8_lossy(header));
        }
    }

    #[test]
    fn ipv6_clients_are_grouped_by_prefix() {
        let ip = ClientIp::new();
        let a = key(&ip, "2001:db8:1:2:3:4:5:6", &[]);
        assert_eq!(a, key(&ip, "2001:db8:1:2:ffff::1", &[]));
        assert_ne!(a, key(&ip, "2001:db8:1:3::1", &[]));
        assert_eq!(key(&ip, "::ffff:203.0.113.7", &[]), "203.0.113.7");
        let single = ClientIp::new().ipv6_prefix(128);
        assert_eq!(key(&single, "2001:db8::1", &[]), "2001:db8::1");
        assert_eq!(
            key(&ClientIp::new().ipv6_prefix(0), "2001:db8::1", &[]),
            "::/0"
        );
    }
}

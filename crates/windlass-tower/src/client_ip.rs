//! [`ClientIp`]: the address of the client, behind proxies that are trusted by name.
//!
//! Each proxy appends the address that it sees to the header, so the right-most addresses are the most reliable ones. The
//! header is read from the right, for as long as the hop that reported an address is trusted. The first address
//! that is not a trusted proxy is the client. What stands further left was written by the client itself, and is
//! never read.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Once};

use http::header::FORWARDED;
use http::request::Parts;
use http::{Extensions, HeaderMap, HeaderName, HeaderValue};
use ipnet::{IpNet, Ipv4Net};

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
    ///
    /// Name the proxies, not a network that has clients too: a client in a trusted network chooses its own address. An
    /// IPv4-mapped network (`::ffff:10.0.0.0/104`) is the IPv4 network.
    pub fn trust(mut self, proxies: impl IntoIterator<Item = IpNet>) -> ClientIp {
        self.trusted = proxies.into_iter().map(canonical).collect();
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
        if self.trusted.is_empty() {
            return Some(peer);
        }
        Some(match self.header {
            ProxyHeader::XForwardedFor => self.client(peer, x_forwarded_for(&parts.headers)),
            ProxyHeader::Forwarded => self.client(peer, forwarded(&parts.headers)),
        })
    }

    /// Walks from the peer to the client. `hops` are the reported addresses, from the right; `None` is one that cannot
    /// be read.
    fn client(&self, peer: IpAddr, mut hops: impl Iterator<Item = Option<IpAddr>>) -> IpAddr {
        let mut client = peer;
        while self.is_trusted(client) {
            // What a trusted proxy reported and cannot be read hides what is left of it.
            let Some(Some(hop)) = hops.next() else { break };
            client = hop.to_canonical();
        }
        client
    }

    fn is_trusted(&self, address: IpAddr) -> bool {
        self.trusted.iter().any(|net| net.contains(&address))
    }

    fn group(&self, address: IpAddr) -> String {
        match address {
            IpAddr::V4(address) => dotted(address),
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

/// The IPv4 network, if it is one in the form of IPv6.
fn canonical(net: IpNet) -> IpNet {
    let IpNet::V6(mapped) = net else {
        return net;
    };
    let bits = mapped.prefix_len().checked_sub(96);
    let ipv4 = mapped.addr().to_ipv4_mapped().zip(bits);
    let ipv4 = ipv4.and_then(|(address, bits)| Ipv4Net::new(address, bits).ok());
    ipv4.map_or(net, IpNet::V4)
}

/// As `to_string`, at a fraction of its cost: the key is made for each request.
fn dotted(address: Ipv4Addr) -> String {
    let mut text = String::with_capacity("255.255.255.255".len());
    for octet in address.octets() {
        if !text.is_empty() {
            text.push('.');
        }
        if octet >= 100 {
            text.push(digit(octet / 100));
        }
        if octet >= 10 {
            text.push(digit(octet / 10 % 10));
        }
        text.push(digit(octet % 10));
    }
    text
}

fn digit(value: u8) -> char {
    char::from(b'0' + value)
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
    static NAME: HeaderName = HeaderName::from_static("x-forwarded-for");
    lines(headers, &NAME)
        .flat_map(|line| line.as_bytes().rsplit(|&byte| byte == b','))
        .filter(|hop| !hop.trim_ascii().is_empty())
        .map(|hop| node(std::str::from_utf8(hop).ok()?.trim()))
}

/// The addresses of `Forwarded`, from the right.
fn forwarded(headers: &HeaderMap) -> impl Iterator<Item = Option<IpAddr>> {
    static NAME: HeaderName = FORWARDED;
    lines(headers, &NAME)
        .flat_map(|line| parts_from_right(line.as_bytes(), b','))
        .filter(|element| element.is_none_or(|element| !element.trim_ascii().is_empty()))
        .map(|element| forwarded_for(element?))
}

/// The lines of a header, from the last. Nothing is looked up until the first is wanted.
fn lines<'a>(
    headers: &'a HeaderMap,
    name: &'static HeaderName,
) -> impl Iterator<Item = &'a HeaderValue> {
    std::iter::once_with(move || headers.get_all(name)).flat_map(|lines| lines.into_iter().rev())
}

/// The parts of a text between separators outside quotes, from the right; `None` for one in which a quote is left open.
///
/// It is scanned from the right, where the trusted proxy wrote: from the left, a quote that the client opened in a
/// header of its own would hide the element of the proxy.
fn parts_from_right(text: &[u8], separator: u8) -> impl Iterator<Item = Option<&[u8]>> {
    let mut rest = Some(text);
    std::iter::from_fn(move || {
        let text = rest.take()?;
        let mut is_quoted = false;
        for (i, &byte) in text.iter().enumerate().rev() {
            if byte == b'"' && !is_escaped(&text[..i]) {
                is_quoted = !is_quoted;
            } else if byte == separator && !is_quoted {
                rest = Some(&text[..i]);
                return Some(Some(&text[i + 1..]));
            }
        }
        Some((!is_quoted).then_some(text))
    })
}

/// Whether a byte after this text is escaped.
fn is_escaped(before: &[u8]) -> bool {
    let backslashes = before.iter().rev().take_while(|&&byte| byte == b'\\');
    backslashes.count() % 2 == 1
}

/// The parameter `for` of one element of `Forwarded`. It must occur once.
fn forwarded_for(element: &[u8]) -> Option<IpAddr> {
    let mut found = None;
    for pair in parts_from_right(element, b';') {
        let pair = pair?;
        let Some(end) = pair.iter().position(|&byte| byte == b'=') else {
            continue;
        };
        let (name, value) = (pair[..end].trim_ascii(), pair[end + 1..].trim_ascii());
        if name.eq_ignore_ascii_case(b"for") && found.replace(value).is_some() {
            return None;
        }
    }
    let value = std::str::from_utf8(found?).ok()?;
    let unquoted = value
        .strip_prefix('"')
        .and_then(|value| value.strip_suffix('"'));
    node(unquoted.unwrap_or(value))
}

/// An address, perhaps with a port, and brackets around IPv6.
fn node(text: &str) -> Option<IpAddr> {
    address(text).or_else(|| address(without_hidden_port(text)?))
}

fn address(text: &str) -> Option<IpAddr> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address);
    }
    if let Ok(address) = text.parse::<SocketAddr>() {
        return Some(address.ip());
    }
    let bare = text.strip_prefix('[')?.strip_suffix(']')?;
    bare.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// Without the port, if the proxy does not disclose it (RFC 7239, 6.3): `192.0.2.1:_port`.
fn without_hidden_port(text: &str) -> Option<&str> {
    let (address, name) = text.rsplit_once(":_")?;
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    let is_hidden = !name.is_empty() && name.bytes().all(is_allowed);
    is_hidden.then_some(address)
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
    fn addresses_are_written_as_the_standard_library_does() {
        for octet in 0..=255 {
            let address = Ipv4Addr::new(octet, 255 - octet, 0, octet);
            assert_eq!(dotted(address), address.to_string());
        }
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
            // Empty elements of a list do not count.
            (b", 203.0.113.7, ,10.1.1.1 ,", "203.0.113.7"),
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
            (b"for=\"1.1.1.1,2.2.2.2\"", "10.0.0.1"),
            // The port is hidden, the address is not.
            (b"for=\"203.0.113.7:_port\"", "203.0.113.7"),
            (b"for=\"[2001:db8:1:2::1]:_p-1\"", "2001:db8:1:2::/64"),
            (b"for=\"203.0.113.7:_\"", "10.0.0.1"),
            (b"for=\"203.0.113.7:_p q\"", "10.0.0.1"),
            (b"for=203.0.113.7, , for=10.1.1.1,", "203.0.113.7"),
        ] {
            let found = key(&ip, "10.0.0.1", &[("forwarded", header)]);
            assert_eq!(found, client, "{:?}", String::from_utf8_lossy(header));
        }
    }

    /// A proxy that reports the `Host` of a request quotes what the client wrote.
    #[test]
    fn quoted_text_in_forwarded_is_not_an_address() {
        let ip = behind_proxies().header(ProxyHeader::Forwarded);
        for header in [
            &br#"for=203.0.113.7;host="a,for=1.1.1.1;x""#[..],
            br#"host="a,for=1.1.1.1;x";for=203.0.113.7"#,
            br#"for=203.0.113.7;host="a;for=1""#,
            br#"for=203.0.113.7;host="\"", for=10.1.1.1"#,
            // The client sent a quote that it did not close.
            br#"for=1.1.1.1;host="a, for=203.0.113.7"#,
            br#"host="a\, for=203.0.113.7"#,
        ] {
            let found = key(&ip, "10.0.0.1", &[("forwarded", header)]);
            assert_eq!(found, "203.0.113.7", "{}", String::from_utf8_lossy(header));
        }
        // A proxy that does not escape quotes cannot be read, and hides what is left of it.
        let broken: &[u8] = br#"for=1.1.1.1, for=203.0.113.7;host="a"""#;
        assert_eq!(key(&ip, "10.0.0.1", &[("forwarded", broken)]), "10.0.0.1");
    }

    /// Whatever the client sends itself, and whatever it has the proxy quote.
    #[test]
    fn client_writes_nothing_into_the_element_of_the_proxy() {
        const TEXTS: [&str; 6] = ["\"", "\\", ",", ";", "=", "for=1.1.1.1"];
        let texts = |n: usize| {
            (0..TEXTS.len().pow(n as u32)).map(move |mut number| {
                let mut text = String::new();
                for _ in 0..n {
                    text.push_str(TEXTS[number % TEXTS.len()]);
                    number /= TEXTS.len();
                }
                text
            })
        };
        let ip = behind_proxies().header(ProxyHeader::Forwarded);
        let is_client = |header: &str| {
            let found = key(&ip, "10.0.0.1", &[("forwarded", header.as_bytes())]);
            assert_eq!(found, "203.0.113.7", "{header}");
        };
        for n in 0..5 {
            for host in texts(n) {
                let host = host.replace('\\', "\\\\").replace('"', "\\\"");
                is_client(&format!("for=203.0.113.7;host=\"{host}\""));
                is_client(&format!("host=\"{host}\";for=203.0.113.7;proto=http"));
            }
            for sent in texts(n) {
                is_client(&format!("{sent}, for=203.0.113.7;host=\"a,\\\"\""));
                is_client(&format!("{sent},for=203.0.113.7, for=10.1.1.1"));
            }
        }
    }

    #[test]
    fn ipv4_mapped_network_is_trusted_as_the_ipv4_network() {
        let ip = ClientIp::new().trust(["::ffff:10.0.0.0/104".parse().unwrap()]);
        let lines: &[(&str, &[u8])] = &[("x-forwarded-for", b"203.0.113.7")];
        assert_eq!(key(&ip, "10.0.0.1", lines), "203.0.113.7");
        assert_eq!(key(&ip, "::ffff:10.0.0.1", lines), "203.0.113.7");
        assert_eq!(key(&ip, "11.0.0.1", lines), "11.0.0.1");
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

//! Keys: what a layer tells requests apart by.

use std::fmt;
use std::fmt::Write as _;
use std::sync::Arc;

use http::header::{AUTHORIZATION, PROXY_AUTHORIZATION};
use http::request::Parts;
use http::{HeaderName, Uri};
use sha2::{Digest as _, Sha256};

use crate::maybe_ready::MaybeReady;
use crate::rejection::{Rejection, RejectionKind};

/// The longest key that is stored as it is; a longer one is stored as its SHA-256 digest.
const LONGEST_READABLE: usize = 200;
/// The key of requests that have none. No other key begins with the same character: see [`stored`].
const MISSING: &str = "(no key)";
/// What stands before the digest of a key that is not readable.
const DIGEST: &str = "(sha256)";

/// The key of a request: requests with the same key share a limit, or a lock.
///
/// Ready keys are [`ClientIp`](crate::ClientIp), [`Header`], [`Path`], `MatchedPath` (feature `axum`) and [`Everyone`].
/// A tuple of keys is the combination. [`key_fn`] and [`async_key_fn`] make a key of a function.
///
/// Keys of more than 200 bytes, with control characters, or beginning with `(`, are stored as their SHA-256 digest:
/// different keys never meet in the store.
pub trait RequestKey: Send + Sync + 'static {
    /// The key; `None` if the request has none: see [`OnMissingKey`].
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>>;
}

/// What happens with a request that has no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum OnMissingKey {
    /// All requests without a key share one: leaving a header out does not avoid the limit.
    Share,
    /// The request is refused with 400.
    Reject,
    /// The layer does nothing: the request is not limited, and not locked.
    Skip,
}

/// The key of a layer, with the policy for requests that have none.
#[derive(Clone)]
pub(crate) struct LayerKey {
    key: Arc<dyn RequestKey>,
    pub(crate) on_missing: OnMissingKey,
}

impl LayerKey {
    pub(crate) fn new(key: impl RequestKey, on_missing: OnMissingKey) -> LayerKey {
        LayerKey {
            key: Arc::new(key),
            on_missing,
        }
    }

    pub(crate) fn set(&mut self, key: impl RequestKey) {
        self.key = Arc::new(key);
    }

    /// The key of a request, to be [resolved](LayerKey::resolve).
    pub(crate) fn of(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        self.key.key(parts)
    }

    /// The key as it is stored; `None` if the layer skips the request.
    pub(crate) fn resolve(&self, key: Option<String>) -> Result<Option<String>, Rejection> {
        match (key, self.on_missing) {
            (Some(key), _) => Ok(Some(stored(key))),
            (None, OnMissingKey::Share) => Ok(Some(MISSING.to_owned())),
            (None, OnMissingKey::Skip) => Ok(None),
            (None, OnMissingKey::Reject) => Err(Rejection::new(
                RejectionKind::MissingKey,
                "the request lacks what the key is made of",
            )),
        }
    }
}

/// The name of what a key of a layer refers to in the store: `LAYER/KEY`, or `LAYER` for an empty key. As in the name of
/// a limiter, slashes of the layer are escaped: no key reaches what belongs to another layer.
pub(crate) fn name_in_store(layer: &str, key: &str) -> String {
    let mut name = layer.replace('%', "%25").replace('/', "%2F");
    if !key.is_empty() {
        name.push('/');
        name.push_str(key);
    }
    name
}

/// The target as the client sent it: axum's `nest` removes its prefix from the URI.
pub(crate) fn original_uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri;
    }
    &parts.uri
}

/// One key for all requests.
#[derive(Clone, Copy, Debug)]
pub struct Everyone;

impl RequestKey for Everyone {
    fn key(&self, _: &Parts) -> MaybeReady<Option<String>> {
        MaybeReady::ready(Some(String::new()))
    }
}

/// The value of a header, such as an API key. Only a digest is stored.
///
/// Of `authorization` and `proxy-authorization`, the scheme counts without regard to case, and the spaces after it do not
/// count: `Bearer t` and `bearer  t` are one key, as they are one token to the authentication.
///
/// A header that occurs more than once counts as missing. **The value is not checked**: put the layer behind the
/// authentication, or a client avoids the limit with a new value for each request.
#[derive(Clone, Debug)]
pub struct Header(HeaderName);

impl Header {
    /// The header of this name.
    pub fn new(name: HeaderName) -> Header {
        Header(name)
    }

    /// The header of this name.
    ///
    /// # Panics
    ///
    /// If it is not a valid header name in lower case.
    pub fn named(name: &'static str) -> Header {
        Header(HeaderName::from_static(name))
    }
}

impl RequestKey for Header {
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        let mut values = parts.headers.get_all(&self.0).iter();
        let key = match (values.next(), values.next()) {
            (Some(value), None) if [AUTHORIZATION, PROXY_AUTHORIZATION].contains(&self.0) => {
                let (scheme, credentials) = scheme_and_credentials(value.as_bytes());
                Some(digest(&[&scheme.to_ascii_lowercase(), credentials]))
            }
            (Some(value), None) => Some(digest(&[value.as_bytes()])),
            _ => None,
        };
        MaybeReady::ready(key)
    }
}

/// The two parts of `Bearer token`.
fn scheme_and_credentials(value: &[u8]) -> (&[u8], &[u8]) {
    let value = value.trim_ascii();
    let end = value.iter().position(u8::is_ascii_whitespace);
    let (scheme, credentials) = value.split_at(end.unwrap_or(value.len()));
    (scheme, credentials.trim_ascii_start())
}

/// The path of the request, percent-decoded, without the query; in axum (feature `axum`), with the prefix that `nest`
/// removes.
///
/// **It is the text of the path, not the resource**: if `/documents/7`, `/documents/07` and `/documents/7/` reach the
/// same document, they are three keys. To lock a resource, make the key of its id, in one form, with [`key_fn`].
///
/// A path with parameters is a key for each value of them: to limit routes in axum, `MatchedPath` is mostly better.
#[derive(Clone, Copy, Debug)]
pub struct Path;

impl RequestKey for Path {
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        MaybeReady::ready(Some(percent_decoded(original_uri(parts).path())))
    }
}

/// The route in axum, such as `/users/{id}`. Requests without a route (404) have one key, so that in a combination such as
/// `(ClientIp, MatchedPath)` each client has its own.
#[cfg(feature = "axum")]
#[derive(Clone, Copy, Debug)]
pub struct MatchedPath;

#[cfg(feature = "axum")]
impl RequestKey for MatchedPath {
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        let path = parts.extensions.get::<axum::extract::MatchedPath>();
        // A route begins with a slash.
        let path = path.map_or("no route", |path| path.as_str());
        MaybeReady::ready(Some(path.to_owned()))
    }
}

/// A key from a function of the request.
///
/// ```
/// use windlass_tower::key_fn;
///
/// /// Set by the authentication.
/// #[derive(Clone)]
/// struct Account(String);
///
/// let account = key_fn(|parts| Some(parts.extensions.get::<Account>()?.0.clone()));
/// ```
///
/// Take the key from what the service knows. A client that chooses its own key, with a header or a host name that is
/// not checked, avoids its limit.
pub fn key_fn<F>(function: F) -> KeyFn<F>
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    KeyFn(function)
}

/// A key from an async function of the request. The future must not borrow from the request: take what it needs
/// before `async move`.
///
/// ```
/// use windlass_tower::async_key_fn;
///
/// # async fn account_of(token: String) -> Option<String> { Some(token) }
/// let account = async_key_fn(|parts| {
///     let token = parts.headers.get("authorization");
///     let token = token.and_then(|token| token.to_str().ok()).map(str::to_owned);
///     async move { account_of(token?).await }
/// });
/// ```
pub fn async_key_fn<F, Fut>(function: F) -> AsyncKeyFn<F>
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Option<String>> + Send + 'static,
{
    AsyncKeyFn(function)
}

/// See [`key_fn`].
#[derive(Clone, Copy)]
pub struct KeyFn<F>(F);

/// See [`async_key_fn`].
#[derive(Clone, Copy)]
pub struct AsyncKeyFn<F>(F);

impl<F> RequestKey for KeyFn<F>
where
    F: Fn(&Parts) -> Option<String> + Send + Sync + 'static,
{
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        MaybeReady::ready((self.0)(parts))
    }
}

impl<F, Fut> RequestKey for AsyncKeyFn<F>
where
    F: Fn(&Parts) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Option<String>> + Send + 'static,
{
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        MaybeReady::later((self.0)(parts))
    }
}

impl<F> fmt::Debug for KeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("KeyFn")
    }
}

impl<F> fmt::Debug for AsyncKeyFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AsyncKeyFn")
    }
}

impl<A: RequestKey, B: RequestKey> RequestKey for (A, B) {
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        combined(self.0.key(parts), self.1.key(parts))
    }
}

impl<A: RequestKey, B: RequestKey, C: RequestKey> RequestKey for (A, B, C) {
    fn key(&self, parts: &Parts) -> MaybeReady<Option<String>> {
        let first = combined(self.0.key(parts), self.1.key(parts));
        combined(first, self.2.key(parts))
    }
}

/// Both keys, joined so that different pairs never give the same key.
fn combined(
    a: MaybeReady<Option<String>>,
    b: MaybeReady<Option<String>>,
) -> MaybeReady<Option<String>> {
    fn join(a: Option<String>, b: Option<String>) -> Option<String> {
        let (mut a, b) = (a?, b?);
        if a.contains(['|', '\\']) {
            a = a.replace('\\', "\\\\").replace('|', "\\|");
        }
        a.push('|');
        a.push_str(&b);
        Some(a)
    }
    match (a, b) {
        (MaybeReady::Ready(Some(a)), MaybeReady::Ready(Some(b))) => MaybeReady::ready(join(a, b)),
        (a, b) => MaybeReady::later(async move { join(a.await, b.await) }),
    }
}

/// The key as it is stored: readable if that is possible. A readable key does not begin as [`MISSING`] and [`DIGEST`] do.
fn stored(key: String) -> String {
    let is_printable = |byte| matches!(byte, b' '..=b'~');
    let is_readable = key.bytes().all(is_printable) || !key.chars().any(char::is_control);
    if key.len() <= LONGEST_READABLE && is_readable && !key.starts_with('(') {
        return key;
    }
    format!("{DIGEST}{}", digest(&[key.as_bytes()]))
}

/// The text with `%41` decoded. What is not UTF-8 is replaced: that joins keys, and never splits one.
fn percent_decoded(text: &str) -> String {
    if !text.contains('%') {
        return text.to_owned();
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [byte, after @ ..] = rest {
        rest = after;
        decoded.push(match after {
            [high, low, after @ ..] if *byte == b'%' => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    rest = after;
                    high << 4 | low
                }
                _ => *byte,
            },
            _ => *byte,
        });
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

/// The SHA-256 digest of some texts, in a form in which they cannot be confused.
pub(crate) fn digest(texts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update((text.len() as u64).to_be_bytes());
        hash.update(text);
    }
    let mut hex = String::with_capacity(64);
    for byte in hash.finalize() {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn joined(a: &str, b: &str) -> Option<String> {
        let [a, b] = [a, b].map(|key| MaybeReady::ready(Some(key.to_owned())));
        combined(a, b).await
    }

    #[tokio::test]
    async fn different_combinations_have_different_keys() {
        let mut seen = std::collections::HashSet::new();
        let parts = ["", "a", "|", "\\", "a|", "|a", "\\|", "a\\"];
        for a in parts {
            for b in parts {
                assert!(seen.insert(joined(a, b).await.unwrap()), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn unreadable_keys_are_stored_as_a_digest() {
        assert_eq!(stored("203.0.113.7".to_owned()), "203.0.113.7");
        for key in ["x".repeat(8_192), "a\nb".to_owned(), MISSING.to_owned()] {
            let stored = stored(key);
            assert_eq!(stored.strip_prefix(DIGEST).unwrap().len(), 64);
        }
    }

    fn key_of(key: impl RequestKey, headers: &[(&'static str, &'static str)]) -> Option<String> {
        let mut request = http::Request::new(());
        for (name, value) in headers {
            let value = http::HeaderValue::from_static(value);
            request.headers_mut().append(*name, value);
        }
        match key.key(&request.into_parts().0) {
            MaybeReady::Ready(key) => key.unwrap(),
            MaybeReady::Later(_) => panic!("it is known at once"),
        }
    }

    #[test]
    fn authorization_in_other_letters_and_spaces_is_the_same_key() {
        for name in ["authorization", "proxy-authorization"] {
            let of = |value| key_of(Header::named(name), &[(name, value)]).unwrap();
            let same = of("Bearer token");
            for value in [
                "bearer token",
                "BEARER token",
                "Bearer    token",
                "bEARER \t token",
                "Bearer token  ",
            ] {
                assert_eq!(of(value), same, "{value:?}");
            }
            for value in ["Bearer Token", "Basic token", "Bearertoken", "Bearer", ""] {
                assert_ne!(of(value), same, "{value:?}");
            }
        }
        // Of any other header, each byte counts.
        let of = |value| key_of(Header::named("x-api-key"), &[("x-api-key", value)]).unwrap();
        assert_ne!(of("Bearer token"), of("bearer token"));
    }

    #[cfg(feature = "axum")]
    #[test]
    fn request_without_a_route_has_a_key() {
        let peer = std::net::SocketAddr::from(([203, 0, 113, 7], 80));
        let ip = crate::ClientIp::new().peer(move |_| Some(peer.ip()));
        let key = key_of((ip, MatchedPath), &[]).expect("a key with the address");
        assert!(key.starts_with("203.0.113.7|"), "{key}");
        assert!(!key_of(MatchedPath, &[]).unwrap().starts_with('/'));
    }

    #[test]
    fn paths_are_decoded_once() {
        for (path, decoded) in [
            ("/a/7", "/a/7"),
            ("/a/%37", "/a/7"),
            ("/%c3%A9", "/\u{e9}"),
            ("/%2541", "/%41"),
            ("/%", "/%"),
            ("/%4", "/%4"),
            ("/%4x%41", "/%4xA"),
            ("/%ff", "/\u{fffd}"),
        ] {
            assert_eq!(percent_decoded(path), decoded, "{path}");
        }
    }
}

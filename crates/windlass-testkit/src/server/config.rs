//! What a test server is asked to be, as builder, configuration file and URL.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::binary::Flavor;
use super::redis::RedisServer;
use super::tls::TlsFiles;

/// The wishes for a [`RedisServer`]; made by [`RedisServer::builder`].
#[derive(Debug, Clone)]
#[must_use = "a builder does nothing before start()"]
pub struct RedisServerBuilder {
    pub(super) flavor: Flavor,
    pub(super) tls: bool,
    pub(super) unix_socket: bool,
    password: Option<String>,
    acl_users: Vec<(String, String)>,
    append_only: bool,
    pub(super) folder_in: Option<PathBuf>,
    pub(super) movable_clock: bool,
    pub(super) sentinel: bool,
    pub(super) cluster_bus: bool,
    extra: Vec<(String, String)>,
}

impl RedisServerBuilder {
    pub(super) fn new() -> Self {
        Self {
            flavor: Flavor::Redis,
            tls: false,
            unix_socket: false,
            password: None,
            acl_users: Vec::new(),
            append_only: false,
            folder_in: None,
            movable_clock: false,
            sentinel: false,
            cluster_bus: false,
            extra: Vec::new(),
        }
    }

    /// The make of the server; Redis unless told otherwise.
    pub fn binary(mut self, flavor: Flavor) -> Self {
        self.flavor = flavor;
        self
    }

    /// Demands this password of the default user.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Adds a user who may do everything.
    ///
    /// [`RedisServer::url`] names the first such user. Without [`password`](Self::password) the
    /// default user is switched off, so that a client that forgets to log in is found out.
    pub fn acl_user(mut self, name: impl Into<String>, password: impl Into<String>) -> Self {
        self.acl_users.push((name.into(), password.into()));
        self
    }

    /// Accepts only TLS on the port, with a new certificate of the authority in
    /// [`RedisServer::ca_path`]. Clients need no certificate.
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Makes [`RedisServer::url`] point to a Unix socket instead of the port, which stays open too.
    pub fn unix_socket(mut self) -> Self {
        self.unix_socket = true;
        self
    }

    /// Whether every write reaches the disk before its reply, and so survives
    /// [`RedisServer::restart`]. Off unless told otherwise: then nothing is persisted at all.
    pub fn append_only(mut self, append_only: bool) -> Self {
        self.append_only = append_only;
        self
    }

    /// Puts the server's folder there, instead of where temporary files go.
    pub fn folder_in(mut self, path: impl Into<PathBuf>) -> Self {
        self.folder_in = Some(path.into());
        self
    }

    /// Gives the server a clock that [`RedisServer::shift_clock`] can move (by libfaketime).
    pub fn movable_clock(mut self) -> Self {
        self.movable_clock = true;
        self
    }

    /// Adds a line to the server's configuration file, after all others; `value` is taken as it is
    /// and may be several words.
    pub fn config(mut self, key: impl Into<String>, value: impl Into<String>) -> Self {
        self.extra.push((key.into(), value.into()));
        self
    }

    /// Puts lines in front of all that were added, which so have the last word.
    pub(super) fn defaults(mut self, lines: &[(&str, &str)]) -> Self {
        let lines = lines
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        self.extra.splice(0..0, lines);
        self
    }

    /// Makes it a sentinel. What it watches over is configured with [`config`](Self::config).
    pub fn sentinel(mut self) -> Self {
        self.sentinel = true;
        self
    }

    /// Gives it a second port, for the bus of a cluster.
    pub fn cluster_bus(mut self) -> Self {
        self.cluster_bus = true;
        self
    }

    /// Starts the server and returns when it answers.
    ///
    /// # Errors
    ///
    /// When the program is not installed (the error says what to install) or does not come up (the
    /// error shows what the server logged).
    pub fn start(self) -> io::Result<RedisServer> {
        RedisServer::launch(self)
    }

    /// Writes the configuration file of a server that lives in `folder`.
    pub(super) fn write(
        &self,
        file: &Path,
        folder: &Path,
        port: u16,
        bus: Option<u16>,
        socket: &Path,
        tls: Option<&TlsFiles>,
    ) -> io::Result<()> {
        let path = |path: &Path| quoted(&path.to_string_lossy());
        let mut text = String::new();
        let mut line = |key: &str, value: &str| text.push_str(&format!("{key} {value}\n"));
        line("bind", "127.0.0.1");
        line("dir", &path(folder));
        line("unixsocket", &path(socket));
        line("save", "\"\"");
        line("appendfsync", "always");
        line("appendonly", if self.append_only { "yes" } else { "no" });
        match tls {
            None => line("port", &port.to_string()),
            Some(tls) => {
                line("port", "0");
                line("tls-port", &port.to_string());
                line("tls-ca-cert-file", &path(&tls.ca));
                line("tls-cert-file", &path(&tls.certificate));
                line("tls-key-file", &path(&tls.key));
                line("tls-auth-clients", "no");
            }
        }
        if let Some(bus) = bus {
            line("cluster-port", &bus.to_string());
        }
        if let Some(password) = &self.password {
            line("requirepass", &quoted(password));
        } else if !self.acl_users.is_empty() {
            line("user", "default off");
        }
        for (name, password) in &self.acl_users {
            let (name, password) = (quoted(name), quoted(&format!(">{password}")));
            line("user", &format!("{name} on {password} ~* &* +@all"));
        }
        for (key, value) in &self.extra {
            line(key, if value.is_empty() { "\"\"" } else { value });
        }
        fs::write(file, text)
    }

    /// The AUTH command that lets a client in, if the server asks for one.
    pub(super) fn auth(&self) -> Option<Vec<&str>> {
        match (self.acl_users.first(), &self.password) {
            (Some((name, password)), _) => Some(vec!["AUTH", name, password]),
            (None, Some(password)) => Some(vec!["AUTH", password]),
            (None, None) => None,
        }
    }

    /// The URL, credentials included, by which a client reaches the server.
    pub(super) fn url(&self, port: u16, socket: &Path) -> String {
        let user = self.acl_users.first().map(|(name, _)| escaped(name));
        let password = match self.acl_users.first() {
            Some((_, password)) => Some(escaped(password)),
            None => self.password.as_deref().map(escaped),
        };
        if self.unix_socket {
            // A URL without host has no place for credentials, hence the query.
            let user = user.map(|user| format!("user={user}"));
            let password = password.map(|password| format!("pass={password}"));
            let query: Vec<String> = user.into_iter().chain(password).collect();
            let mark = if query.is_empty() { "" } else { "?" };
            let socket = socket.display();
            return format!("redis+unix://{socket}{mark}{}", query.join("&"));
        }
        let scheme = if self.tls { "rediss" } else { "redis" };
        let credentials = password
            .map(|password| format!("{}:{password}@", user.unwrap_or_default()))
            .unwrap_or_default();
        format!("{scheme}://{credentials}127.0.0.1:{port}")
    }
}

/// A word for the configuration file, whatever it contains.
fn quoted(word: &str) -> String {
    let word = word.replace('\\', r"\\").replace('"', "\\\"");
    format!("\"{}\"", word.replace('\n', r"\n").replace('\r', r"\r"))
}

/// A word for a URL, whatever it contains.
fn escaped(word: &str) -> String {
    let mut url = String::new();
    for byte in word.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                url.push(char::from(byte));
            }
            _ => url.push_str(&format!("%{byte:02X}")),
        }
    }
    url
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(builder: RedisServerBuilder) -> String {
        builder.url(7777, Path::new("/run/x.sock"))
    }

    #[test]
    fn urls_carry_the_configuration() {
        let new = RedisServerBuilder::new;
        assert_eq!(url(new()), "redis://127.0.0.1:7777");
        assert_eq!(url(new().tls()), "rediss://127.0.0.1:7777");
        assert_eq!(
            url(new().password("p@ss")),
            "redis://:p%40ss@127.0.0.1:7777"
        );
        assert_eq!(
            url(new().password("other").acl_user("ann", "a/b")),
            "redis://ann:a%2Fb@127.0.0.1:7777"
        );
        assert_eq!(url(new().unix_socket()), "redis+unix:///run/x.sock");
        assert_eq!(
            url(new().unix_socket().acl_user("ann", "x&y")),
            "redis+unix:///run/x.sock?user=ann&pass=x%26y"
        );
    }
}

//! A ZooKeeper server with TLS.

use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::port::ReservedPort;
use super::tls::TlsFiles;
use super::zookeeper::{STARTUP_LIMIT, ZooKeeperServers};

/// Whether the server requires client certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Every client may connect.
    Optional,
    /// Only clients with a certificate signed by the server's authority.
    Required,
}

/// A single server with a port for TLS and one for plain connections.
#[derive(Debug)]
pub struct TlsZooKeeper {
    server: ZooKeeperServers,
    port: ReservedPort,
    trusted: TlsFiles,
    untrusted: TlsFiles,
    _folder: TempDir,
}

impl TlsZooKeeper {
    /// Starts the server.
    pub fn start(certificates: ClientCertificates) -> io::Result<TlsZooKeeper> {
        let folder = tempfile::Builder::new().prefix("wl-zk-tls-").tempdir()?;
        let files = |name: &str| {
            let folder = folder.path().join(name);
            fs::create_dir(&folder)?;
            TlsFiles::generate(&folder)
        };
        let (trusted, untrusted) = (files("trusted")?, files("untrusted")?);
        // The server needs both in one file, and tells the format by its extension.
        let both = folder.path().join("server.pem");
        let (key, certificate) = (
            fs::read_to_string(&trusted.key)?,
            fs::read_to_string(&trusted.certificate)?,
        );
        fs::write(&both, key + &certificate)?;
        let authority = folder.path().join("ca.pem");
        fs::copy(&trusted.ca, &authority)?;
        let port = ReservedPort::free()?;
        let asks = match certificates {
            ClientCertificates::Optional => "none",
            ClientCertificates::Required => "need",
        };
        let server = ZooKeeperServers::start(
            1,
            &[
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory",
                &format!("secureClientPort={}", port.number()),
                "secureClientPortAddress=127.0.0.1",
                &format!("ssl.keyStore.location={}", both.display()),
                &format!("ssl.trustStore.location={}", authority.display()),
                &format!("ssl.clientAuth={asks}"),
            ],
        )?;
        let secure = TlsZooKeeper {
            server,
            port,
            trusted,
            untrusted,
            _folder: folder,
        };
        // The TLS port opens a moment after the plain port answers.
        let listens = || std::net::TcpStream::connect(secure.addr()).is_ok();
        match crate::eventually_blocking(STARTUP_LIMIT, listens) {
            true => Ok(secure),
            false => Err(io::Error::other("ZooKeeper does not listen for TLS")),
        }
    }

    /// The server, through its plain port.
    pub fn plain(&self) -> &ZooKeeperServers {
        &self.server
    }

    /// The address of the TLS port.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// The certificate of the authority that signed the server's.
    pub fn ca(&self) -> &Path {
        &self.trusted.ca
    }

    /// A certificate that the server trusts, and its key.
    pub fn identity(&self) -> (&Path, &Path) {
        (&self.trusted.certificate, &self.trusted.key)
    }

    /// The certificate of an authority unknown to the server.
    pub fn untrusted_ca(&self) -> &Path {
        &self.untrusted.ca
    }

    /// A certificate signed by that authority, and its key.
    pub fn untrusted_identity(&self) -> (&Path, &Path) {
        (&self.untrusted.certificate, &self.untrusted.key)
    }
}

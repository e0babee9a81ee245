//! A ZooKeeper server that speaks TLS.

use std::fs;
use std::io;
use std::path::Path;

use tempfile::TempDir;

use super::port::ReservedPort;
use super::tls::TlsFiles;
use super::zookeeper::{STARTUP_LIMIT, ZooKeeperServers};

/// Whether a server looks at its clients' certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificates {
    /// Anybody may connect.
    Optional,
    /// Only whoever has a certificate of the server's own authority.
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
    /// Starts it.
    pub fn start(certificates: ClientCertificates) -> io::Result<TlsZooKeeper> {
        let folder = tempfile::Builder::new().prefix("wl-zk-tls-").tempdir()?;
        let files = |name: &str| {
            let folder = folder.path().join(name);
            fs::create_dir(&folder)?;
            TlsFiles::generate(&folder)
        };
        let (trusted, untrusted) = (files("trusted")?, files("untrusted")?);
        // The server wants both in one file, and to be told by its ending what it is.
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
        // It listens there a moment after it answers on the other port.
        let listens = || std::net::TcpStream::connect(secure.addr()).is_ok();
        match crate::eventually_blocking(STARTUP_LIMIT, listens) {
            true => Ok(secure),
            false => Err(io::Error::other("ZooKeeper does not listen for TLS")),
        }
    }

    /// The server, by its plain port.
    pub fn plain(&self) -> &ZooKeeperServers {
        &self.server
    }

    /// Where it speaks TLS.
    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port.number())
    }

    /// The certificate of the authority that has signed the server's.
    pub fn ca(&self) -> &Path {
        &self.trusted.ca
    }

    /// A certificate that the server trusts, and its key.
    pub fn identity(&self) -> (&Path, &Path) {
        (&self.trusted.certificate, &self.trusted.key)
    }

    /// The certificate of an authority that has nothing to do with the server.
    pub fn untrusted_ca(&self) -> &Path {
        &self.untrusted.ca
    }

    /// A certificate of that authority, and its key.
    pub fn untrusted_identity(&self) -> (&Path, &Path) {
        (&self.untrusted.certificate, &self.untrusted.key)
    }
}

//! TLS: trusted certificates, the client's own certificate, and why a handshake failed.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use zookeeper_client::TlsOptions;

use super::address::TlsPaths;
use windlass_core::error::{Error, ErrorKind, Result};

/// The contents of the files that the URL names.
pub(super) struct TlsMaterial {
    ca: String,
    /// The client's certificate and its key.
    identity: Option<(String, String)>,
    config: Arc<ClientConfig>,
}

impl TlsMaterial {
    pub(super) fn read(files: &TlsPaths) -> Result<TlsMaterial> {
        let ca = read(&files.ca)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            let certificate = certificate.map_err(|e| unusable(&files.ca, e))?;
            // A system's bundle may contain certificates that rustls does not accept.
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            return Err(unusable(&files.ca, "it contains no certificate"));
        }
        let builder = builder().with_root_certificates(roots);
        let Some((certificate, key)) = &files.identity else {
            let config = Arc::new(builder.with_no_client_auth());
            return Ok(TlsMaterial {
                ca,
                identity: None,
                config,
            });
        };
        let texts = (read(certificate)?, read(key)?);
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(texts.0.as_bytes()).collect();
        let chain = chain.map_err(|e| unusable(certificate, e))?;
        let secret =
            PrivateKeyDer::from_pem_slice(texts.1.as_bytes()).map_err(|e| unusable(key, e))?;
        let config = builder
            .with_client_auth_cert(chain, secret)
            .map_err(|e| unusable(certificate, e))?;
        Ok(TlsMaterial {
            ca,
            identity: Some(texts),
            config: Arc::new(config),
        })
    }

    pub(super) fn client_options(&self) -> Result<TlsOptions> {
        // The client uses the installed provider, and panics if there is none. The call fails only if
        // one is installed already, which is fine.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let wrong = |e: zookeeper_client::Error| Error::invalid("connect", e.to_string());
        let options = TlsOptions::new().with_pem_ca(&self.ca).map_err(wrong)?;
        match &self.identity {
            Some((certificate, key)) => options.with_pem_identity(certificate, key).map_err(wrong),
            None => Ok(options),
        }
    }

    /// Connects to a server, and verifies its certificate.
    pub(super) async fn handshake(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let connected = connector.connect(server_name(host)?, stream).await;
        connected.map_err(|error| {
            if let Some(alert) = alert(host, &error) {
                return alert;
            }
            let is_tls = error.get_ref().is_some_and(|e| e.is::<rustls::Error>());
            let hint = match is_tls {
                true => "check tls_ca, and that the certificate contains the host name of the URL",
                false => "does this port speak TLS (secureClientPort)? If not, use zookeeper://",
            };
            failed(host, &format!("TLS failed: {error}"), hint)
        })
    }
}

/// The server's alert about this client, during the handshake or, with TLS 1.3, after it.
pub(super) fn alert(host: &str, error: &io::Error) -> Option<Error> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => Some(failed(
            host,
            &format!("the server does not accept this client's certificate: {alert:?}"),
            "the server requires a certificate that it trusts: tls_cert=FILE and tls_key=FILE",
        )),
        _ => None,
    }
}

/// Whether a server speaks TLS, with any certificate.
pub(super) async fn server_speaks_tls(host: &str) -> bool {
    let (Ok(name), Ok(stream)) = (server_name(host), TcpStream::connect(host).await) else {
        return false;
    };
    let no_roots = builder().with_root_certificates(RootCertStore::empty());
    let connector = TlsConnector::from(Arc::new(no_roots.with_no_client_auth()));
    let Err(error) = connector.connect(name, stream).await else {
        return true;
    };
    let reason = error.get_ref().and_then(|e| e.downcast_ref());
    matches!(
        reason,
        Some(rustls::Error::InvalidCertificate(_) | rustls::Error::AlertReceived(_))
    )
}

pub(super) fn expected(host: &str) -> Error {
    failed(
        host,
        "this port speaks TLS, but the URL uses a plain connection",
        "use zookeeper+tls:// with ?tls_ca=FILE, or the port for plain connections",
    )
}

/// The name that a server's certificate must contain.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).map_err(|_| {
        let message = format!("{name:?} is not a name that a certificate can contain");
        Error::invalid("connect", message).with_hint("use a host name or an IP address")
    })
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider supports the default protocol versions")
}

fn failed(host: &str, what: &str, hint: &str) -> Error {
    let message = format!("{host}: {what}");
    Error::new(ErrorKind::Unreachable, "connect", message).with_hint(hint.to_owned())
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|e| unusable(path, e))
}

fn unusable(path: &Path, why: impl ToString) -> Error {
    let message = format!("{} cannot be used: {}", path.display(), why.to_string());
    Error::invalid("connect", message)
        .with_hint("tls_ca, tls_cert and tls_key are PEM files: certificates, and a private key")
}

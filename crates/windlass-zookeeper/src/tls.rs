//! TLS: whom to trust, who we are, and what went wrong.

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

use super::address::TlsFiles;
use windlass_core::error::{Error, ErrorKind, Result};

/// What the files say.
pub(super) struct Trust {
    ca: String,
    /// Certificate and key.
    identity: Option<(String, String)>,
    config: Arc<ClientConfig>,
}

impl Trust {
    pub(super) fn read(files: &TlsFiles) -> Result<Trust> {
        let ca = read(&files.ca)?;
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(ca.as_bytes()) {
            let certificate = certificate.map_err(|e| unusable(&files.ca, e))?;
            // A system's collection may hold some that are too old for this.
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            return Err(unusable(&files.ca, "it holds no certificate"));
        }
        let builder = builder().with_root_certificates(roots);
        let Some((certificate, key)) = &files.identity else {
            let config = Arc::new(builder.with_no_client_auth());
            return Ok(Trust {
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
        Ok(Trust {
            ca,
            identity: Some(texts),
            config: Arc::new(config),
        })
    }

    pub(super) fn for_client(&self) -> Result<TlsOptions> {
        // The client takes the one that is installed, and panics if there is none. This fails only when
        // one is there already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let wrong = |e: zookeeper_client::Error| Error::invalid("connect", e.to_string());
        let options = TlsOptions::new().with_pem_ca(&self.ca).map_err(wrong)?;
        match &self.identity {
            Some((certificate, key)) => options.with_pem_identity(certificate, key).map_err(wrong),
            None => Ok(options),
        }
    }

    /// Shakes hands.
    pub(super) async fn greet(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>> {
        let connector = TlsConnector::from(Arc::clone(&self.config));
        let met = connector.connect(server_name(host)?, stream).await;
        met.map_err(|error| {
            if let Some(told) = alert(host, &error) {
                return told;
            }
            let speaks = error.get_ref().is_some_and(|e| e.is::<rustls::Error>());
            let hint = match speaks {
                true => "check tls_ca, and that the certificate names the host as the URL does",
                false => "does this port speak TLS (secureClientPort)? If not, write zookeeper://",
            };
            failed(host, &format!("TLS failed: {error}"), hint)
        })
    }
}

/// What a server said of us: while hands are shaken, or afterwards, when TLS 1.3 looks at our certificate.
pub(super) fn alert(host: &str, error: &io::Error) -> Option<Error> {
    match error.get_ref()?.downcast_ref::<rustls::Error>()? {
        rustls::Error::AlertReceived(alert) => Some(failed(
            host,
            &format!("it does not accept who we are: {alert:?}"),
            "the server wants a certificate that it trusts: tls_cert=FILE and tls_key=FILE",
        )),
        _ => None,
    }
}

/// Whether a server speaks TLS, whoever it is.
pub(super) async fn is_spoken_by(host: &str) -> bool {
    let (Ok(name), Ok(stream)) = (server_name(host), TcpStream::connect(host).await) else {
        return false;
    };
    let trusting_nobody = builder().with_root_certificates(RootCertStore::empty());
    let connector = TlsConnector::from(Arc::new(trusting_nobody.with_no_client_auth()));
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
        "it speaks TLS, and was not spoken to that way",
        "write zookeeper+tls://, with ?tls_ca=FILE; or take the port for plain connections",
    )
}

/// The name that a server's certificate has to bear.
pub(super) fn server_name(host: &str) -> Result<ServerName<'static>> {
    let name = host.rsplit_once(':').map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    ServerName::try_from(name.to_owned()).map_err(|_| {
        let message = format!("{name:?} is not a name that a certificate can bear");
        Error::invalid("connect", message).with_hint("name a host, or its address")
    })
}

fn builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has what the usual versions need")
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
        .with_hint("tls_ca, tls_cert and tls_key name files in PEM: certificates, and a key")
}

//! ZooKeeper over TLS: trust, and errors.

use std::path::Path;
use std::time::{Duration, Instant};

use windlass::{ErrorKind, Options, connect};
use windlass_testkit::{ClientCertificates, TlsZooKeeper};

/// The first handshake of a server that has just started takes seconds on a busy machine.
const LIMIT: Duration = Duration::from_secs(20);

fn url(addr: &str, ca: &Path) -> String {
    format!(
        "zookeeper+tls://{addr}/app?chroot=create&tls_ca={}",
        ca.display()
    )
}

fn as_whom(url: &str, (certificate, key): (&Path, &Path)) -> String {
    let (certificate, key) = (certificate.display(), key.display());
    format!("{url}&tls_cert={certificate}&tls_key={key}")
}

async fn works(url: &str) {
    let patient = Options::new().call_timeout(LIMIT);
    let w = patient.connect(url).await.unwrap();
    let guard = w.lock("stock").acquire().await.unwrap();
    assert!(w.lock("stock").try_acquire().await.unwrap().is_busy());
    assert!(guard.release().await.unwrap().was_held());
    let findings = w.diagnose().await.unwrap();
    let reports = |word: &str| findings.iter().any(|f| f.message.contains(word));
    assert!(reports("ZooKeeper 3.") && reports("TLS"), "{findings:?}");
}

/// One clear error, in time.
async fn refused(url: &str, kind: ErrorKind, word: &str, hint: &str) {
    let since = Instant::now();
    let error = Options::new().call_timeout(LIMIT).connect(url).await;
    let error = error.expect_err(url);
    assert!(since.elapsed() < 2 * LIMIT, "{:?}", since.elapsed());
    assert_eq!(error.kind(), kind, "{error}");
    assert!(error.to_string().contains(word), "{error} lacks {word:?}");
    let found = error.hint().unwrap_or_default();
    assert!(found.contains(hint), "{error}: {found} lacks {hint:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_is_trusted_if_its_ca_is_given() {
    let server = TlsZooKeeper::start(ClientCertificates::Optional).expect("a server to test on");
    let addr = server.addr();
    works(&url(&addr, server.ca())).await;
    let unreachable = ErrorKind::Unreachable;
    let strange = url(&addr, server.untrusted_ca());
    refused(&strange, unreachable, "invalid peer certificate", "tls_ca").await;
    // The certificate is for 127.0.0.1 and localhost.
    let other_name = url(&addr.replace("127.0.0.1", "127.0.0.2"), server.ca());
    assert!(connect(&other_name).await.is_err());
    let nowhere = url(&addr, Path::new("/nowhere.pem"));
    refused(&nowhere, ErrorKind::InvalidInput, "/nowhere.pem", "PEM").await;
    let no_certificate = url(&addr, server.identity().1);
    refused(
        &no_certificate,
        ErrorKind::InvalidInput,
        "no certificate",
        "PEM",
    )
    .await;
    // Each protocol on the other's port.
    let plain = format!("zookeeper://{addr}");
    refused(&plain, unreachable, "speaks TLS", "zookeeper+tls://").await;
    let on_plain = url(&server.plain().addrs()[0].to_string(), server.ca());
    refused(&on_plain, unreachable, "TLS failed", "zookeeper://").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn client_certificate_is_sent_when_required() {
    let server = TlsZooKeeper::start(ClientCertificates::Required).expect("a server to test on");
    let anonymous = url(&server.addr(), server.ca());
    works(&as_whom(&anonymous, server.identity())).await;
    let unreachable = ErrorKind::Unreachable;
    refused(&anonymous, unreachable, "does not accept", "tls_cert").await;
    let strange = as_whom(&anonymous, server.untrusted_identity());
    refused(&strange, unreachable, "does not accept", "tls_cert").await;
}

//! Bare operations on ZooKeeper: those that the lock recipe needs, through the same client library.
//!
//! There is no check of other layouts, fencing token, renewal or validity: this is a lower bound, not a lock to use.

use windlass::Lease;
use windlass_term::{Advice, Exit, Failure};
#[cfg(feature = "zookeeper-tls")]
use zookeeper_client::TlsOptions;
use zookeeper_client::{Acls, Client, CreateMode, Error};

use crate::interleave::Cycle;
use crate::invalid_run;

/// Opens a separate session on the same servers.
pub(crate) async fn connect(url: &str) -> Result<Client, Failure> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (cluster, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (digest, cluster) = match cluster.rsplit_once('@') {
        Some((digest, cluster)) => (Some(digest), cluster),
        None => (None, cluster),
    };
    let mut connector = Client::connector().with_session_timeout(Lease::DEFAULT_TTL);
    if let Some(digest) = digest {
        connector = connector.with_auth("digest", digest.as_bytes());
    }
    #[cfg(feature = "zookeeper-tls")]
    if scheme == "zookeeper+tls" {
        let connector = connector.with_tls(tls(query).map_err(failure)?);
        return connector.secure_connect(cluster).await.map_err(failure);
    }
    // Without the feature, the store has refused the scheme.
    let _ = (scheme, query);
    connector.connect(cluster).await.map_err(failure)
}

#[cfg(feature = "zookeeper-tls")]
/// The TLS files that the URL names; connecting the store has already read them.
fn tls(query: &str) -> Result<TlsOptions, Error> {
    let file = |name: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let path = pairs.find_map(|(key, path)| (key == name).then_some(path))?;
        std::fs::read_to_string(path).ok()
    };
    let options = TlsOptions::new().with_pem_ca(&file("tls_ca").unwrap_or_default())?;
    match file("tls_cert").zip(file("tls_key")) {
        Some((certificate, key)) => options.with_pem_identity(&certificate, &key),
        None => Ok(options),
    }
}

fn failure(error: Error) -> Failure {
    Failure {
        kind: "unreachable",
        name: None,
        message: format!("the plain ZooKeeper client failed: {error}"),
        advice: Advice::Try("windlass doctor".into()),
        exit: Exit::UNREACHABLE,
    }
}

/// Create a sequential node, list the children, delete the node.
pub(crate) struct BareNode {
    client: Client,
    parent: String,
    parent_exists: bool,
}

impl BareNode {
    pub(crate) fn new(client: &Client, name: &str) -> BareNode {
        BareNode {
            client: client.clone(),
            parent: format!("/{name}:bare"),
            parent_exists: false,
        }
    }
}

impl Cycle for BareNode {
    async fn once(&mut self) -> Result<(), Failure> {
        let all = Acls::anyone_all();
        if !self.parent_exists {
            let container = CreateMode::Container.with_acls(all);
            match self.client.create(&self.parent, b"", &container).await {
                Ok(_) | Err(Error::NodeExists) => self.parent_exists = true,
                Err(error) => return Err(failure(error)),
            }
        }
        let id = rand::random::<u128>();
        let front = format!("{}/_c_{id:032x}-lock-", self.parent);
        let options = CreateMode::EphemeralSequential.with_acls(all);
        let (_, sequence) = self
            .client
            .create(&front, b"", &options)
            .await
            .map_err(failure)?;
        let children = self
            .client
            .list_children(&self.parent)
            .await
            .map_err(failure)?;
        if children.len() != 1 {
            return Err(invalid_run("another client holds a lock of this run"));
        }
        let path = format!("{front}{sequence}");
        self.client.delete(&path, None).await.map_err(failure)
    }
}

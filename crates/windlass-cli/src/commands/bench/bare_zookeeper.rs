//! The other side on ZooKeeper: the operations that the recipe for a lock needs, sent through the same
//! client library.
//!
//! No check of other layouts, no fence, no renewal, no validity: this is the floor, and not a lock to
//! use.

use windlass::DEFAULT_TTL;
use zookeeper_client::{Acls, Client, CreateMode, Error, TlsOptions};

use super::spoilt;
use super::turns::Cycle;
use crate::exit::Exit;
use crate::failure::{Advice, Failure};

/// A session of its own, on the same servers.
pub(super) async fn connect(url: &str) -> Result<Client, Failure> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (cluster, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (digest, cluster) = match cluster.rsplit_once('@') {
        Some((digest, cluster)) => (Some(digest), cluster),
        None => (None, cluster),
    };
    let mut connector = Client::connector().with_session_timeout(DEFAULT_TTL);
    if let Some(digest) = digest {
        connector = connector.with_auth("digest", digest.as_bytes());
    }
    if scheme != "zookeeper+tls" {
        return connector.connect(cluster).await.map_err(failure);
    }
    let tls = tls(query).map_err(failure)?;
    let connector = connector.with_tls(tls);
    connector.secure_connect(cluster).await.map_err(failure)
}

/// The files that the other side has read already.
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
        message: format!("the bare client failed: {error}"),
        advice: Advice::Try("windlass doctor".into()),
        exit: Exit::UNREACHABLE,
    }
}

/// Create in sequence, look at the children, delete.
pub(super) struct BareNode {
    client: Client,
    parent: String,
    made: bool,
}

impl BareNode {
    pub(super) fn new(client: &Client, name: &str) -> BareNode {
        BareNode {
            client: client.clone(),
            parent: format!("/{name}:bare"),
            made: false,
        }
    }
}

impl Cycle for BareNode {
    async fn once(&mut self) -> Result<(), Failure> {
        let all = Acls::anyone_all();
        if !self.made {
            let container = CreateMode::Container.with_acls(all);
            match self.client.create(&self.parent, b"", &container).await {
                Ok(_) | Err(Error::NodeExists) => self.made = true,
                Err(error) => return Err(failure(error)),
            }
        }
        let mark = rand::random::<u128>();
        let front = format!("{}/_c_{mark:032x}-lock-", self.parent);
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
            return Err(spoilt("somebody else has a lock of this run"));
        }
        let path = format!("{front}{sequence}");
        self.client.delete(&path, None).await.map_err(failure)
    }
}

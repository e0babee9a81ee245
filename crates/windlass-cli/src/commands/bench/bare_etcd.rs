//! The other side on etcd: what no lock could do without, sent through the same client library.
//!
//! A key on a lease if there is none, and its deletion: no line, no wake-ups, no renewal. This is the
//! floor, and not a lock to use.

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use windlass::DEFAULT_TTL;

use super::spoilt;
use super::turns::Cycle;
use crate::failure::Failure;

/// A connection of the kind that the library uses, with one lease for all locks.
#[derive(Clone)]
pub(super) struct BareEtcd {
    channel: Channel,
    lease: i64,
}

/// One lock.
pub(super) struct BareEtcdLock {
    etcd: BareEtcd,
    key: Vec<u8>,
}

impl BareEtcd {
    /// Connects to the first host of the URL. `None` if that takes a user or a certificate, which are not
    /// spoken here.
    pub(super) async fn connect(url: &str) -> Result<Option<BareEtcd>, Failure> {
        let hosts = url
            .strip_prefix("etcd://")
            .filter(|hosts| !hosts.contains('@'));
        let Some(host) = hosts.and_then(|hosts| hosts.split([',', '/']).next()) else {
            return Ok(None);
        };
        let host = match host.contains(':') {
            true => host.to_owned(),
            false => format!("{host}:2379"),
        };
        let endpoint = Endpoint::from_shared(format!("http://{host}")).map_err(failure)?;
        let channel = endpoint
            .tcp_nodelay(true)
            .connect()
            .await
            .map_err(failure)?;
        let mut etcd = BareEtcd { channel, lease: 0 };
        let ttl = DEFAULT_TTL.as_secs() as i64 * 20; // longer than any round, as nobody renews it
        let granted: Lease = etcd
            .call("/etcdserverpb.Lease/LeaseGrant", Grant { ttl })
            .await?;
        etcd.lease = granted.id;
        Ok(Some(etcd))
    }

    pub(super) fn lock(&self, name: &str) -> BareEtcdLock {
        BareEtcdLock {
            etcd: self.clone(),
            key: format!("{name}/bare").into_bytes(),
        }
    }

    async fn call<Q, A>(&self, path: &'static str, request: Q) -> Result<A, Failure>
    where
        Q: Message + 'static,
        A: Message + Default + 'static,
    {
        let mut grpc = Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(failure)?;
        let codec = ProstCodec::<Q, A>::default();
        let path = PathAndQuery::from_static(path);
        let answer = grpc.unary(tonic::Request::new(request), path, codec).await;
        Ok(answer.map_err(failure)?.into_inner())
    }
}

impl Cycle for BareEtcdLock {
    async fn once(&mut self) -> Result<(), Failure> {
        let put = Put {
            key: self.key.clone(),
            value: b"bare".to_vec(),
            lease: self.etcd.lease,
        };
        let absent = Compare {
            target: 1, // the revision at which it was made
            key: self.key.clone(),
            create_revision: Some(0),
        };
        let txn = Txn {
            compare: vec![absent],
            success: vec![Op { put: Some(put) }],
        };
        let done: Done = self.etcd.call("/etcdserverpb.KV/Txn", txn).await?;
        let key = self.key.clone();
        let deleted: Deleted = self
            .etcd
            .call("/etcdserverpb.KV/DeleteRange", Delete { key })
            .await?;
        match done.succeeded && deleted.deleted == 1 {
            true => Ok(()),
            false => Err(spoilt("somebody else uses the bare keys")),
        }
    }
}

fn failure(e: impl std::error::Error) -> Failure {
    Failure::internal(format!("the bare client failed: {e}"))
}

#[derive(Clone, PartialEq, Message)]
struct Grant {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Lease {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Put {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Op {
    #[prost(message, optional, tag = "2")]
    put: Option<Put>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    /// Optional, so that a zero is written: it is one of several that could be compared with.
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Txn {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<Op>,
}

#[derive(Clone, PartialEq, Message)]
struct Done {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Deleted {
    #[prost(int64, tag = "2")]
    deleted: i64,
}

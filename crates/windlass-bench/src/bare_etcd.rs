//! Bare operations on etcd: the minimum that any lock must send, through the same client library.
//!
//! Each cycle creates a key on a lease if it is absent, and deletes it. There is no wait queue, notification or
//! renewal: this is a lower bound, not a lock to use.

use prost::Message;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;
use windlass::Lease;
use windlass_term::Failure;

use crate::interleave::Cycle;
use crate::invalid_run;

/// A connection like that of the library, with one lease for all locks.
#[derive(Clone)]
pub(crate) struct BareEtcd {
    channel: Channel,
    lease: i64,
}

/// One lock.
pub(crate) struct BareEtcdLock {
    etcd: BareEtcd,
    key: Vec<u8>,
}

impl BareEtcd {
    /// Connects to the first host of the URL. `None` if that needs a user or a certificate, which this client does
    /// not support.
    pub(crate) async fn connect(url: &str) -> Result<Option<BareEtcd>, Failure> {
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
        let ttl = Lease::DEFAULT_TTL.as_secs() as i64 * 20; // longer than any round, because it is not renewed
        let granted: LeaseGrantResponse = etcd
            .call("/etcdserverpb.Lease/LeaseGrant", LeaseGrantRequest { ttl })
            .await?;
        etcd.lease = granted.id;
        Ok(Some(etcd))
    }

    pub(crate) fn lock(&self, name: &str) -> BareEtcdLock {
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
        let put = PutRequest {
            key: self.key.clone(),
            value: b"bare".to_vec(),
            lease: self.etcd.lease,
        };
        let absent = Compare {
            target: 1, // CREATE
            key: self.key.clone(),
            create_revision: Some(0),
        };
        let txn = TxnRequest {
            compare: vec![absent],
            success: vec![RequestOp { put: Some(put) }],
        };
        let done: TxnResponse = self.etcd.call("/etcdserverpb.KV/Txn", txn).await?;
        let key = self.key.clone();
        let deleted: DeleteRangeResponse = self
            .etcd
            .call("/etcdserverpb.KV/DeleteRange", DeleteRangeRequest { key })
            .await?;
        match done.succeeded && deleted.deleted == 1 {
            true => Ok(()),
            false => Err(invalid_run("another client uses the keys of this run")),
        }
    }
}

fn failure(e: impl std::error::Error) -> Failure {
    Failure::internal(format!("the plain etcd client failed: {e}"))
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantRequest {
    #[prost(int64, tag = "1")]
    ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
struct LeaseGrantResponse {
    #[prost(int64, tag = "2")]
    id: i64,
}

#[derive(Clone, PartialEq, Message)]
struct PutRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    value: Vec<u8>,
    #[prost(int64, tag = "3")]
    lease: i64,
}

#[derive(Clone, PartialEq, Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    put: Option<PutRequest>,
}

#[derive(Clone, PartialEq, Message)]
struct Compare {
    #[prost(int32, tag = "2")]
    target: i32,
    #[prost(bytes = "vec", tag = "3")]
    key: Vec<u8>,
    /// Optional, so that a zero is encoded: the field selects what the key is compared with.
    #[prost(int64, optional, tag = "5")]
    create_revision: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "1")]
    compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

#[derive(Clone, PartialEq, Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeRequest {
    #[prost(bytes = "vec", tag = "1")]
    key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct DeleteRangeResponse {
    #[prost(int64, tag = "2")]
    deleted: i64,
}

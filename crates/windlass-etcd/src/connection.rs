//! The connection to the cluster: to one member at a time, and to another one when that fails.
//!
//! Calls are not spread over the members: a client that did so would keep sending some of them to a member
//! that is partitioned from the others. A request is never sent twice from here, except after a login whose
//! token the server refused; callers decide on retries.

use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_core::Stream;
use prost::Message;
use tokio::sync::{Mutex as AsyncMutex, mpsc, watch};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::address::EtcdAddress;
use super::connector::{EtcdConnector, STATUS};
use super::errors::{LostReply, from_status, is_member_failure, is_stale_token, unreachable};
use super::proto::{
    EtcdResponse, RangeRequest, RangeResponse, StatusRequest, StatusResponse, TxnResponse,
};
use super::txn::{Txn, TxnReply};
use windlass_core::connections::{connected, connection_failed};
use windlass_core::error::{ErrorKind, Result};

const TXN: &str = "/etcdserverpb.KV/Txn";
const RANGE: &str = "/etcdserverpb.KV/Range";

/// The largest reply that etcd can send.
const MAX_REPLY_BYTES: usize = 64 * 1024 * 1024;
/// A call whose caller has given up is dropped after this time, in case the server never replies.
const MAX_CALL: Duration = Duration::from_secs(60);

/// The connection of one client to the cluster.
pub(super) struct EtcdConnection {
    connector: EtcdConnector,
    state: Mutex<ConnectionState>,
    connecting: AsyncMutex<()>,
    /// The number of the connection in use. Streams over an older one must be reopened.
    generation: watch::Sender<u64>,
}

struct ConnectionState {
    /// The index of the host in use, or to try next.
    host: usize,
    member: Option<MemberConnection>,
}

impl EtcdConnection {
    pub(super) fn new(address: &EtcdAddress, call_timeout: Duration) -> Result<EtcdConnection> {
        let connector = EtcdConnector::new(address, call_timeout)?;
        Ok(EtcdConnection {
            // Clients with the same list of hosts start with different ones.
            state: Mutex::new(ConnectionState {
                host: rand::random_range(0..connector.hosts.len()),
                member: None,
            }),
            connector,
            connecting: AsyncMutex::new(()),
            generation: watch::Sender::new(0),
        })
    }

    /// The connection to the member in use; connects if there is none.
    pub(super) async fn member(&self) -> Result<MemberConnection> {
        if let Some(member) = &self.state().member {
            return Ok(member.clone());
        }
        let _one_at_a_time = self.connecting.lock().await;
        if let Some(member) = &self.state().member {
            return Ok(member.clone());
        }
        let mut failures = Vec::new();
        for _ in 0..self.hosts().len() {
            let host = self.state().host;
            match self.connector.connect(host).await {
                Ok(mut member) => {
                    member.generation = *self.generation.borrow() + 1;
                    connected("etcd", member.generation > 1);
                    self.state().member = Some(member.clone());
                    self.generation.send_replace(member.generation);
                    return Ok(member);
                }
                Err(e) => {
                    connection_failed("etcd");
                    if e.kind() == ErrorKind::AccessDenied {
                        return Err(e);
                    }
                    failures.push(format!("{}: {}", self.hosts()[host], e.reason()));
                }
            }
            self.state().host = self.host_after(host);
        }
        Err(unreachable(failures.join("; ")))
    }

    /// Commits a transaction.
    pub(super) async fn txn(&self, txn: Txn) -> Result<TxnReply> {
        let reply: TxnResponse = self.call(TXN, txn.request, txn.lost_reply).await?;
        Ok(TxnReply::new(reply))
    }

    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse> {
        self.call(RANGE, request, LostReply::Harmless).await
    }

    /// Sends a request and waits for the reply.
    pub(super) async fn call<R: EtcdResponse>(
        &self,
        path: &'static str,
        request: impl Message + Clone + 'static,
        lost_reply: LostReply,
    ) -> Result<R> {
        let mut member = self.member().await?;
        let mut may_log_in_again = self.connector.has_login();
        loop {
            let status = match member.send(path, request.clone(), lost_reply).await {
                Ok(reply) => return Ok(reply),
                Err(status) => status,
            };
            if may_log_in_again && is_stale_token(&status) {
                // Refused before it was applied: log in again, on a new connection.
                may_log_in_again = false;
                self.disconnect(member.generation, NextHost::Same);
                member = self.member().await?;
                continue;
            }
            if is_member_failure(&status) {
                self.disconnect(member.generation, NextHost::Another);
            }
            return Err(from_status(status, lost_reply));
        }
    }

    /// Opens a bidirectional stream, over which the requests from the channel are sent.
    pub(super) async fn stream<Q: Message + 'static, R: EtcdResponse>(
        &self,
        path: &'static str,
        requests: mpsc::UnboundedReceiver<Q>,
    ) -> Result<(Streaming<R>, MemberConnection)> {
        let member = self.member().await?;
        let generation = member.generation;
        let mut generations = self.generations();
        let opened = tokio::select! {
            opened = member.open_stream(path, requests) => opened,
            _ = generations.wait_for(|now| *now > generation) => {
                return Err(unreachable("the connection was closed"));
            }
        };
        match opened {
            Ok(stream) => Ok((stream, member)),
            Err(status) => {
                self.stream_ended(generation, &status);
                Err(from_status(status, LostReply::Harmless))
            }
        }
    }

    /// A stream over that connection has ended.
    pub(super) fn stream_ended(&self, generation: u64, status: &Status) {
        if is_member_failure(status) {
            self.disconnect(generation, NextHost::Another);
        } else if is_stale_token(status) {
            self.disconnect(generation, NextHost::Same);
        }
    }

    /// Whether that connection was closed, and the next one comes with a new login.
    pub(super) fn was_replaced_with_new_login(&self, generation: u64) -> bool {
        self.connector.has_login() && *self.generation.borrow() > generation
    }

    /// A reply is overdue: uses another member from now on.
    pub(super) fn switch_member(&self) {
        let generation = self.state().member.as_ref().map(|m| m.generation);
        if let Some(generation) = generation {
            self.disconnect(generation, NextHost::Another);
        }
    }

    /// Changes when streams must be reopened.
    pub(super) fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    pub(super) fn hosts(&self) -> &[String] {
        &self.connector.hosts
    }

    /// The status of one of the hosts, over a connection of its own.
    pub(super) async fn status_of(&self, host: usize) -> Result<StatusResponse> {
        let member = self.connector.connect(host).await?;
        let status = member.send(STATUS, StatusRequest {}, LostReply::Harmless);
        status
            .await
            .map_err(|status| from_status(status, LostReply::Harmless))
    }

    fn disconnect(&self, generation: u64, next: NextHost) {
        let mut state = self.state();
        let is_in_use = |member: &MemberConnection| member.generation == generation;
        if state.member.as_ref().is_some_and(is_in_use) {
            state.member = None;
            if matches!(next, NextHost::Another) {
                state.host = self.host_after(state.host);
            }
            drop(state);
            self.generation.send_modify(|generation| *generation += 1);
        }
    }

    fn host_after(&self, host: usize) -> usize {
        (host + 1) % self.hosts().len()
    }

    fn state(&self) -> MutexGuard<'_, ConnectionState> {
        // Each change is a single assignment: a panic leaves the state consistent.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum NextHost {
    Same,
    Another,
}

/// An open connection to one member.
#[derive(Clone)]
pub(super) struct MemberConnection {
    pub(super) generation: u64,
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    call_timeout: Duration,
    /// The highest raft term in this member's own replies. Terms from other members prove nothing about it.
    term: Arc<AtomicU64>,
}

impl MemberConnection {
    pub(super) fn new(
        channel: Channel,
        token: Option<MetadataValue<Ascii>>,
        call_timeout: Duration,
    ) -> MemberConnection {
        MemberConnection {
            generation: 0,
            channel,
            token,
            call_timeout,
            term: Arc::default(),
        }
    }

    pub(super) fn term(&self) -> u64 {
        self.term.load(Ordering::SeqCst)
    }

    /// Takes the raft term from a reply of this member.
    pub(super) fn observe_term(&self, reply: &impl EtcdResponse) {
        if let Some(header) = reply.header() {
            self.term.fetch_max(header.raft_term, Ordering::SeqCst);
        }
    }

    pub(super) async fn send<R: EtcdResponse>(
        &self,
        path: &'static str,
        request: impl Message + 'static,
        lost_reply: LostReply,
    ) -> Result<R, Status> {
        let mut request = self.with_metadata(request);
        // etcd before 3.5.5 panics, and the whole server ends, if a read-only transaction is cancelled while
        // it runs. So it runs to its end, whether or not a caller still waits.
        let must_complete = path == TXN && lost_reply == LostReply::Harmless;
        if !must_complete {
            // The server then skips requests whose caller has given up.
            request.set_timeout(self.call_timeout);
        }
        let mut grpc = self.grpc().await?;
        let path = PathAndQuery::from_static(path);
        let call = async move {
            grpc.unary(request, path, ProstCodec::<_, R>::default())
                .await
        };
        let reply = match must_complete {
            true => run_to_completion(call, self.call_timeout, MAX_CALL).await,
            false => call.await,
        };
        let reply: R = reply?.into_inner();
        self.observe_term(&reply);
        Ok(reply)
    }

    async fn open_stream<Q: Message + 'static, R: EtcdResponse>(
        &self,
        path: &'static str,
        requests: mpsc::UnboundedReceiver<Q>,
    ) -> Result<Streaming<R>, Status> {
        let mut grpc = self.grpc().await?;
        let path = PathAndQuery::from_static(path);
        let request = self.with_metadata(RequestStream(requests));
        let replies = grpc.streaming(request, path, ProstCodec::<Q, R>::default());
        Ok(replies.await?.into_inner())
    }

    async fn grpc(&self) -> Result<Grpc<Channel>, Status> {
        let mut grpc = Grpc::new(self.channel.clone()).max_decoding_message_size(MAX_REPLY_BYTES);
        grpc.ready()
            .await
            .map_err(|e| Status::from_error(e.into()))?;
        Ok(grpc)
    }

    fn with_metadata<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A member that is partitioned from the others then returns an error instead of blocking.
        let yes = MetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", yes);
        if let Some(token) = &self.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }
}

/// Waits for a reply no longer than `limit`; the call itself continues in the background for up to `longest`.
async fn run_to_completion<T: Send + 'static>(
    call: impl Future<Output = Result<T, Status>> + Send + 'static,
    limit: Duration,
    longest: Duration,
) -> Result<T, Status> {
    let call = tokio::spawn(tokio::time::timeout(longest, call));
    match tokio::time::timeout(limit, call).await {
        Ok(Ok(Ok(reply))) => reply,
        Ok(Ok(Err(_))) | Err(_) => Err(Status::deadline_exceeded(format!(
            "no reply within {limit:?}"
        ))),
        Ok(Err(_)) => Err(Status::unavailable("shut down")),
    }
}

/// The requests of a stream, as they arrive in a channel.
struct RequestStream<T>(mpsc::UnboundedReceiver<T>);

impl<T> Stream for RequestStream<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.0.poll_recv(cx)
    }
}

impl fmt::Debug for EtcdConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdConnection")
            .field("hosts", &self.hosts())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn uncancellable_call_keeps_the_callers_deadline_and_ends_by_itself() {
        let never = |guard: oneshot::Sender<()>| async move {
            let _guard = guard;
            std::future::pending::<()>().await;
            Ok::<(), Status>(())
        };
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
        let (guard, mut ended) = oneshot::channel();
        let reply = run_to_completion(never(guard), short, long).await;
        assert_eq!(reply.unwrap_err().code(), Code::DeadlineExceeded);
        // The call continues: cancelling it could end the server.
        assert_eq!(ended.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        let (guard, ended) = oneshot::channel();
        let reply = run_to_completion(never(guard), short, 2 * short).await;
        assert_eq!(reply.unwrap_err().code(), Code::DeadlineExceeded);
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert!(ended.is_ok(), "the call never ends");
    }
}

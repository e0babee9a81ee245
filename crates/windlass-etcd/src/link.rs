//! The connection to one member of the cluster, and to another one when that fails.
//!
//! One member at a time: whoever spread its calls over all of them would meet a member that is cut off
//! with some of them all the time. A call is never sent twice by itself: whether it may be is decided above.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_core::Stream;
use prost::Message;
use tokio::sync::{Mutex as AsyncMutex, watch};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tonic_prost::ProstCodec;

use super::address::{Address, Login};
use super::endpoint::endpoint;
use super::translate::{
    is_about_the_member, is_denied, is_stale_login, refused, translate, unreachable,
};
use super::txn::TXN;
use super::wire::{
    Answer, AuthenticateRequest, AuthenticateResponse, StatusRequest, StatusResponse,
};
use windlass_core::error::{Error, ErrorKind, Result};

/// Answers may be as long as etcd can send them.
const LONGEST_ANSWER: usize = 64 * 1024 * 1024;
/// No call is kept open longer, even if nobody waits for it: a server answers sooner, if only that it
/// cannot. Until then, a call for each that was given up may be under way.
const LONGEST_CALL: Duration = Duration::from_secs(60);

pub(super) struct Link {
    hosts: Vec<String>,
    endpoints: Vec<Endpoint>,
    login: Option<Login>,
    pub(super) call_timeout: Duration,
    wire: Mutex<Wire>,
    dialling: AsyncMutex<()>,
    /// Which connection is in use: streams over an older one are to be opened anew.
    generation: watch::Sender<u64>,
}

struct Wire {
    /// Which of the hosts is to be tried next, or is in use.
    host: usize,
    open: Option<Open>,
}

/// An open connection.
#[derive(Clone)]
pub(super) struct Open {
    pub(super) generation: u64,
    channel: Channel,
    token: Option<MetadataValue<Ascii>>,
    /// The highest term that this member has told of: what another one says means nothing for it.
    term: Arc<AtomicU64>,
}

impl Open {
    pub(super) fn term(&self) -> u64 {
        self.term.load(Ordering::SeqCst)
    }

    /// Takes the term from an answer of this member.
    pub(super) fn learn(&self, answer: &impl Answer) {
        if let Some(header) = answer.header() {
            self.term.fetch_max(header.raft_term, Ordering::SeqCst);
        }
    }
}

impl Link {
    pub(super) fn new(address: &Address, call_timeout: Duration) -> Result<Link> {
        let endpoints = address
            .hosts
            .iter()
            .map(|host| endpoint(address, host, call_timeout))
            .collect::<Result<Vec<Endpoint>>>()?;
        Ok(Link {
            // Clients that name the same hosts begin with different ones.
            wire: Mutex::new(Wire {
                host: rand::random_range(0..endpoints.len()),
                open: None,
            }),
            hosts: address.hosts.clone(),
            endpoints,
            login: address.login.clone(),
            call_timeout,
            dialling: AsyncMutex::new(()),
            generation: watch::Sender::new(0),
        })
    }

    /// The connection, which is made if there is none.
    pub(super) async fn open(&self) -> Result<Open> {
        if let Some(open) = &self.wire().open {
            return Ok(open.clone());
        }
        let _one_at_a_time = self.dialling.lock().await;
        if let Some(open) = &self.wire().open {
            return Ok(open.clone());
        }
        let mut failures = Vec::new();
        for _ in 0..self.endpoints.len() {
            let host = self.wire().host;
            match self.dial(host).await {
                Ok(dialled) => {
                    let generation = *self.generation.borrow() + 1;
                    let open = Open {
                        generation,
                        ..dialled
                    };
                    self.wire().open = Some(open.clone());
                    self.generation.send_replace(generation);
                    return Ok(open);
                }
                Err(e) if e.kind() == ErrorKind::AccessDenied => return Err(e),
                Err(e) => failures.push(format!("{}: {}", self.hosts[host], whole(&e))),
            }
            let mut wire = self.wire();
            wire.host = (host + 1) % self.endpoints.len();
        }
        Err(unreachable(failures.join("; ")))
    }

    /// Connects, logs in, and makes sure that it is an etcd that answers.
    async fn dial(&self, host: usize) -> Result<Open> {
        let share = self.call_timeout / self.endpoints.len().max(1) as u32;
        let limit = share.max(Duration::from_millis(100));
        let dialled = tokio::time::timeout(limit, async {
            let channel = self.endpoints[host]
                .connect()
                .await
                .map_err(|e| Error::new(ErrorKind::Unreachable, "connect", causes(&e)))?;
            let token = match &self.login {
                Some(login) => Some(self.authenticate(&channel, login).await?),
                None => None,
            };
            let mut open = Open {
                generation: 0,
                channel,
                token,
                term: Arc::default(),
            };
            // Whatever it may not tell us, it is an etcd.
            match self
                .send(&mut open, STATUS, StatusRequest {}, Changes::Nothing)
                .await
            {
                Ok(StatusResponse { leader: 0, .. }) => Err(Error::new(
                    ErrorKind::Unreachable,
                    "connect",
                    "this member knows no leader",
                )),
                Err(e) if is_denied(&e) => Ok(()),
                Ok(_) => Ok(()),
                Err(e) => Err(refused(&e).unwrap_or_else(|| {
                    let told = format!("{} ({})", e.message(), causes(&e));
                    Error::new(ErrorKind::Unreachable, "connect", told)
                })),
            }?;
            Ok(open)
        });
        dialled.await.unwrap_or_else(|_| {
            let message = format!("no answer within {limit:?}");
            Err(Error::new(ErrorKind::Unreachable, "connect", message))
        })
    }

    async fn authenticate(&self, channel: &Channel, login: &Login) -> Result<MetadataValue<Ascii>> {
        let mut open = Open {
            generation: 0,
            channel: channel.clone(),
            token: None,
            term: Arc::default(),
        };
        let request = AuthenticateRequest {
            name: login.user.clone(),
            password: login.password.clone(),
        };
        let answer: AuthenticateResponse = match self
            .send(&mut open, AUTHENTICATE, request, Changes::Nothing)
            .await
        {
            Ok(answer) => answer,
            Err(e) => {
                let told = || Error::new(ErrorKind::Unreachable, "connect", causes(&e));
                return Err(refused(&e).unwrap_or_else(told));
            }
        };
        answer.token.parse().map_err(|_| {
            Error::new(
                ErrorKind::Store,
                "connect",
                "the server's token makes no sense",
            )
        })
    }

    /// Sends a request and waits for the answer. What may change something says so with `changes`: when
    /// no answer comes, it may have happened.
    pub(super) async fn call<A: Answer>(
        &self,
        path: &'static str,
        request: impl Message + Clone + 'static,
        changes: Changes,
    ) -> Result<A> {
        let mut open = self.open().await?;
        let mut again = self.login.is_some();
        loop {
            let status = match self.send(&mut open, path, request.clone(), changes).await {
                Ok(answer) => return Ok(answer),
                Err(status) => status,
            };
            if again && is_stale_login(&status) {
                // Refused before it was looked at: log in again, on a new connection.
                again = false;
                self.drop_connection(open.generation, NextHost::Same);
                open = self.open().await?;
                continue;
            }
            if is_about_the_member(&status) {
                self.drop_connection(open.generation, NextHost::Another);
            }
            return Err(translate(status, changes));
        }
    }

    async fn send<A: Answer>(
        &self,
        open: &mut Open,
        path: &'static str,
        request: impl Message + 'static,
        changes: Changes,
    ) -> Result<A, Status> {
        let mut request = self.dress(open, request);
        // A transaction that only reads, and is cancelled while it does, ends the whole server: etcd before
        // 3.5.5 panics. So it is seen through, whoever waits for it.
        let see_through = path == TXN && matches!(changes, Changes::Nothing);
        if !see_through {
            // So that the server does not begin with what nobody waits for any more.
            request.set_timeout(self.call_timeout);
        }
        let mut grpc = Grpc::new(open.channel.clone()).max_decoding_message_size(LONGEST_ANSWER);
        grpc.ready()
            .await
            .map_err(|e| Status::from_error(e.into()))?;
        let path = PathAndQuery::from_static(path);
        let asked = async move {
            grpc.unary(request, path, ProstCodec::<_, A>::default())
                .await
        };
        let answer = match see_through {
            true => seen_through(asked, self.call_timeout, LONGEST_CALL).await,
            false => asked.await,
        };
        let answer: A = answer?.into_inner();
        open.learn(&answer);
        Ok(answer)
    }

    /// Opens a stream both ways.
    pub(super) async fn stream<Q: Message + 'static, A: Answer>(
        &self,
        path: &'static str,
        requests: impl Stream<Item = Q> + Send + 'static,
    ) -> Result<(Streaming<A>, Open)> {
        let open = self.open().await?;
        let generation = open.generation;
        let opened = async {
            let mut grpc =
                Grpc::new(open.channel.clone()).max_decoding_message_size(LONGEST_ANSWER);
            grpc.ready()
                .await
                .map_err(|e| Status::from_error(e.into()))?;
            let path = PathAndQuery::from_static(path);
            let request = self.dress(&open, requests);
            let answers = grpc
                .streaming(request, path, ProstCodec::<Q, A>::default())
                .await?;
            Ok(answers.into_inner())
        };
        let mut generations = self.generations();
        let opened = tokio::select! {
            opened = opened => opened,
            // Given up in the meantime: whoever waits for this one would wait for nothing.
            _ = generations.wait_for(|now| *now > generation) => {
                return Err(unreachable("the connection was given up".to_owned()));
            }
        };
        opened
            .map(|stream| (stream, open.clone()))
            .map_err(|status: Status| {
                self.stream_ended(generation, &status);
                translate(status, Changes::Nothing)
            })
    }

    /// A stream over that connection has ended.
    pub(super) fn stream_ended(&self, generation: u64, status: &Status) {
        if is_about_the_member(status) {
            self.drop_connection(generation, NextHost::Another);
        } else if is_stale_login(status) {
            self.drop_connection(generation, NextHost::Same);
        }
    }

    /// Whether that connection was given up, and there is a login to be renewed with the next one.
    pub(super) fn must_log_in_again(&self, generation: u64) -> bool {
        self.login.is_some() && *self.generation.borrow() > generation
    }

    /// An answer is overdue: try another member, and do not wait for this one.
    pub(super) fn give_up(&self) {
        let generation = self.wire().open.as_ref().map(|open| open.generation);
        if let Some(generation) = generation {
            self.drop_connection(generation, NextHost::Another);
        }
    }

    /// Changes when streams are to be opened anew.
    pub(super) fn generations(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    pub(super) fn hosts(&self) -> &[String] {
        &self.hosts
    }

    /// Asks one of the hosts, whichever is in use.
    pub(super) async fn status_of(&self, host: usize) -> Result<StatusResponse> {
        let mut open = self.dial(host).await?;
        let status = self
            .send(&mut open, STATUS, StatusRequest {}, Changes::Nothing)
            .await;
        status.map_err(|status| translate(status, Changes::Nothing))
    }

    fn drop_connection(&self, generation: u64, next: NextHost) {
        let mut wire = self.wire();
        if wire
            .open
            .as_ref()
            .is_some_and(|open| open.generation == generation)
        {
            wire.open = None;
            if matches!(next, NextHost::Another) {
                wire.host = (wire.host + 1) % self.endpoints.len();
            }
            drop(wire);
            // Streams learn that their connection is not to be used any more.
            self.generation.send_modify(|generation| *generation += 1);
        }
    }

    /// Adds what every request carries.
    fn dress<T>(&self, open: &Open, message: T) -> Request<T> {
        let mut request = Request::new(message);
        // A member that is cut off from the others says so, instead of letting us wait.
        let yes = MetadataValue::from_static("true");
        request.metadata_mut().insert("hasleader", yes);
        if let Some(token) = &open.token {
            request.metadata_mut().insert("token", token.clone());
        }
        request
    }

    fn wire(&self) -> MutexGuard<'_, Wire> {
        // Each change is a single assignment: a panic leaves nothing half done.
        self.wire.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const STATUS: &str = "/etcdserverpb.Maintenance/Status";
const AUTHENTICATE: &str = "/etcdserverpb.Auth/Authenticate";

/// Whether a request changes anything when it is carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Changes {
    Nothing,
    Something,
}

enum NextHost {
    Same,
    Another,
}

/// Waits for an answer no longer than `limit`; the call itself goes on in the background for `longest`.
async fn seen_through<A: Send + 'static>(
    asked: impl Future<Output = Result<A, Status>> + Send + 'static,
    limit: Duration,
    longest: Duration,
) -> Result<A, Status> {
    let asked = tokio::spawn(tokio::time::timeout(longest, asked));
    match tokio::time::timeout(limit, asked).await {
        Ok(Ok(Ok(answer))) => answer,
        Ok(Ok(Err(_))) | Err(_) => Err(Status::deadline_exceeded(format!(
            "no answer within {limit:?}"
        ))),
        Ok(Err(_)) => Err(Status::unavailable("shut down")),
    }
}

/// What an error says, with all that it says of its causes.
fn causes(e: &(dyn std::error::Error + 'static)) -> String {
    let mut told = vec![e.to_string()];
    let mut cause = e.source();
    while let Some(e) = cause {
        let next = e.to_string();
        if told.last() != Some(&next) {
            told.push(next);
        }
        cause = e.source();
    }
    told.join(": ")
}

/// An error's message, without what it was about.
fn whole(e: &Error) -> String {
    let told = e.to_string();
    match told.strip_prefix("cannot connect: ") {
        Some(rest) => rest.to_owned(),
        None => told,
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    #[tokio::test]
    async fn a_call_that_is_seen_through_keeps_its_callers_deadline_and_ends_itself() {
        let never = |tell: tokio::sync::oneshot::Sender<()>| async move {
            let _tell = tell;
            std::future::pending::<()>().await;
            Ok::<(), Status>(())
        };
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(3600));
        let (tell, mut ended) = tokio::sync::oneshot::channel();
        let answer = seen_through(never(tell), short, long).await.unwrap_err();
        assert_eq!(answer.code(), Code::DeadlineExceeded);
        // It goes on: to cancel it could end the server.
        let still_open = tokio::sync::oneshot::error::TryRecvError::Empty;
        assert_eq!(ended.try_recv(), Err(still_open));
        let (tell, ended) = tokio::sync::oneshot::channel();
        let answer = seen_through(never(tell), short, 2 * short).await;
        assert_eq!(answer.unwrap_err().code(), Code::DeadlineExceeded);
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        assert!(ended.is_ok(), "for ever");
    }
}

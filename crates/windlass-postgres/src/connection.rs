//! Lanes: the connections for decisions, and what goes over each of them in which order.
//!
//! All statements about one name go over one lane, in the order in which they were requested: a
//! release that undoes a request must not overtake it. A lane collects decisions about claims while
//! a batch is under way, and sends them in one statement. Statements are unnamed, so that a pooler
//! may run each transaction on another connection to the server.

use std::any::Any;
use std::fmt;
use std::future::poll_fn;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Client, Row};

use super::batch::{ClaimDecision, DecidedClaim, decide_batch};
use super::connector::{Connector, OpenConnection};
use super::errors::{LostReply, from_reply, is_definite, is_read_only, no_reply};
use super::state::{Answer, StateJob, StateKey, States, columns, read_states};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;

/// Statements under way on one connection: the next one arrives while the server works.
const IN_FLIGHT: u32 = 2;
/// Decisions in one statement.
const LARGEST_BATCH: usize = 256;
/// How often one client asks for expired rows to be removed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(15);
/// Rows of each table that one sweep removes.
const SWEEP_ROWS: i64 = 1000;

/// A parameter of a statement.
pub(super) type Param = (Box<dyn ToSql + Sync + Send>, Type);

/// A parameter of type `text`.
pub(super) fn text(value: &str) -> Param {
    (Box::new(value.to_owned()), Type::TEXT)
}

/// A parameter of type `bigint`.
pub(super) fn number(value: i64) -> Param {
    (Box::new(value), Type::INT8)
}

/// A duration in microseconds.
pub(super) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros())
        .unwrap_or(i64::MAX / 4)
        .min(i64::MAX / 4)
}

/// One statement.
struct Call {
    sql: String,
    params: Vec<Param>,
    lost_reply: LostReply,
    answer: oneshot::Sender<Result<Vec<Row>>>,
    /// Dropped when the statement is over.
    _until_done: Option<Box<dyn Any + Send>>,
}

/// A decision about a claim, and who waits for it.
struct ClaimJob {
    decision: ClaimDecision,
    answer: oneshot::Sender<Result<DecidedClaim>>,
}

/// Work that needs the connection for itself. Returns whether the connection is still usable.
type Exclusive = Box<dyn FnOnce(Result<(Arc<Client>, Arc<str>)>) -> BoxFuture<bool> + Send>;
type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

enum Job {
    Claim(ClaimJob),
    Call(Call),
    State(StateJob),
    /// A transaction of several round trips.
    Exclusive(Exclusive),
    /// Nothing may overtake this until the sender is dropped.
    Wait(oneshot::Receiver<()>),
}

/// All lanes of one client.
#[derive(Clone)]
pub(super) struct Lanes {
    lanes: Arc<[Lane]>,
    schema: Arc<str>,
    /// Held while jobs of several lanes are ordered.
    order: Arc<Mutex<()>>,
}

struct Lane {
    jobs: mpsc::UnboundedSender<Job>,
    state: Arc<LaneState>,
}

struct LaneState {
    connector: Connector,
    schema: Arc<str>,
    current: Mutex<Option<Arc<OpenConnection>>>,
    slots: Arc<Semaphore>,
    /// When a statement that has no reply is given up.
    hard_limit: Duration,
    started: Instant,
    /// Milliseconds since `started`; shared by all lanes.
    last_sweep: Arc<AtomicU64>,
}

impl Lanes {
    /// Starts the lanes. `first` is a connection that is open already.
    pub(super) fn start(
        connector: &Connector,
        schema: &str,
        count: usize,
        call_timeout: Duration,
        first: OpenConnection,
    ) -> Lanes {
        let schema: Arc<str> = schema.into();
        let last_sweep = Arc::new(AtomicU64::new(0));
        let mut first = Some(Arc::new(first));
        let lanes = (0..count).map(|_| {
            let (jobs, inbox) = mpsc::unbounded_channel();
            let state = Arc::new(LaneState {
                connector: connector.clone(),
                schema: Arc::clone(&schema),
                current: Mutex::new(first.take()),
                slots: Arc::new(Semaphore::new(IN_FLIGHT as usize)),
                hard_limit: (call_timeout * 2).max(Duration::from_secs(10)),
                started: Instant::now(),
                last_sweep: Arc::clone(&last_sweep),
            });
            tokio::spawn(work(Arc::clone(&state), inbox, jobs.downgrade()));
            Lane { jobs, state }
        });
        Lanes {
            lanes: lanes.collect(),
            schema,
            order: Arc::default(),
        }
    }

    /// A function of the schema, for a statement.
    pub(super) fn function(&self, name: &str) -> String {
        format!("\"{}\".{name}", self.schema)
    }

    pub(super) fn schema(&self) -> &str {
        &self.schema
    }

    fn index(&self, name: &str) -> usize {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        hasher.finish() as usize % self.lanes.len()
    }

    /// Takes a decision about a claim. It is collected when this is called, not when the answer is
    /// awaited.
    pub(super) fn decide(
        &self,
        decision: ClaimDecision,
    ) -> impl Future<Output = Result<DecidedClaim>> + Send + 'static + use<> {
        let (answer, reply) = oneshot::channel();
        let lane = &self.lanes[self.index(&decision.name)];
        let _ = lane.jobs.send(Job::Claim(ClaimJob { decision, answer }));
        async move { reply.await.map_err(|_| shut_down())? }
    }

    /// Runs one statement about `name`.
    pub(super) fn call(
        &self,
        name: &str,
        lost_reply: LostReply,
        sql: String,
        params: Vec<Param>,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send + 'static + use<> {
        self.send_call(self.index(name), lost_reply, sql, params, None)
    }

    fn send_call(
        &self,
        lane: usize,
        lost_reply: LostReply,
        sql: String,
        params: Vec<Param>,
        until_done: Option<Box<dyn Any + Send>>,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send + 'static + use<> {
        let (answer, reply) = oneshot::channel();
        let _ = self.lanes[lane].jobs.send(Job::Call(Call {
            sql,
            params,
            lost_reply,
            answer,
            _until_done: until_done,
        }));
        async move { reply.await.map_err(|_| shut_down())? }
    }

    /// Runs one statement about several names: what is requested later about any of them comes
    /// after it.
    pub(super) fn call_about_all(
        &self,
        names: &[Name],
        sql: String,
        params: Vec<Param>,
    ) -> impl Future<Output = Result<Vec<Row>>> + Send + 'static + use<> {
        let mut lanes: Vec<usize> = names.iter().map(|name| self.index(name)).collect();
        lanes.sort_unstable();
        lanes.dedup();
        // One after the other in all lanes, or two of these could wait for each other.
        let _order = self.order.lock().unwrap_or_else(PoisonError::into_inner);
        let mut senders = Vec::new();
        for &lane in lanes.iter().skip(1) {
            let (sender, receiver) = oneshot::channel::<()>();
            senders.push(sender);
            let _ = self.lanes[lane].jobs.send(Job::Wait(receiver));
        }
        let first = lanes.first().copied().unwrap_or(0);
        let until_done: Box<dyn Any + Send> = Box::new(senders);
        self.send_call(
            first,
            LostReply::OutcomeUnknown,
            sql,
            params,
            Some(until_done),
        )
    }

    /// Takes a decision about states in this process, within a transaction.
    pub(super) fn decide_states<T, D>(
        &self,
        keys: Vec<StateKey>,
        decision: D,
    ) -> impl Future<Output = Result<T>> + Send + 'static + use<T, D>
    where
        T: Send + 'static,
        D: FnOnce(&mut States) -> Result<T> + Send + 'static,
    {
        let (answer, reply) = oneshot::channel();
        // Only one of the two closures is called.
        let answer = Arc::new(Mutex::new(Some(answer)));
        let take = |slot: &Mutex<Option<oneshot::Sender<Result<T>>>>| {
            slot.lock().unwrap_or_else(PoisonError::into_inner).take()
        };
        let refused = Arc::clone(&answer);
        let lane = self.index(keys.first().map_or("", |key| &key.name));
        let _ = self.lanes[lane].jobs.send(Job::State(StateJob {
            keys,
            decide: Box::new(move |states| {
                let decided = decision(states);
                let deliver: Answer = Box::new(move |failed: Option<&Error>| {
                    let decided = match failed {
                        Some(e) => Err(e.duplicate()),
                        None => decided,
                    };
                    if let Some(answer) = take(&answer) {
                        let _ = answer.send(decided);
                    }
                });
                deliver
            }),
            refuse: Box::new(move |e| {
                if let Some(answer) = take(&refused) {
                    let _ = answer.send(Err(e.duplicate()));
                }
            }),
        }));
        async move { reply.await.map_err(|_| shut_down())? }
    }

    /// Reads a state, and changes nothing.
    pub(super) fn read_state(
        &self,
        key: StateKey,
    ) -> impl Future<Output = Result<States>> + Send + 'static + use<> {
        let sql = format!("SELECT * FROM {}($1,$2)", self.function("states_read"));
        let keys = [key];
        let (kinds, names) = columns(keys.iter());
        let names: Vec<String> = names.into_iter().map(str::to_owned).collect();
        let params: Vec<Param> = vec![
            (Box::new(kinds), Type::TEXT_ARRAY),
            (Box::new(names), Type::TEXT_ARRAY),
        ];
        let reply = self.call(&keys[0].name, LostReply::Harmless, sql, params);
        async move { read_states(&keys, &reply.await?) }
    }

    /// Runs a transaction of several round trips about `name`, with the connection for itself. `work`
    /// begins and commits it; if it fails, it is rolled back.
    pub(super) fn transact<T: Send + 'static, F>(
        &self,
        name: &str,
        work: F,
    ) -> impl Future<Output = Result<T>> + Send + 'static + use<T, F>
    where
        F: FnOnce(Arc<Client>, Arc<str>) -> BoxFuture<Result<T>> + Send + 'static,
    {
        let (answer, reply) = oneshot::channel();
        let exclusive: Exclusive = Box::new(move |connected| {
            Box::pin(async move {
                let (client, schema) = match connected {
                    Ok(connected) => connected,
                    Err(e) => {
                        let _ = answer.send(Err(e));
                        return true;
                    }
                };
                let done = work(Arc::clone(&client), schema).await;
                let usable = done.is_ok() || client.batch_execute("ROLLBACK").await.is_ok();
                let _ = answer.send(done);
                usable
            })
        });
        let _ = self.lanes[self.index(name)]
            .jobs
            .send(Job::Exclusive(exclusive));
        async move { reply.await.map_err(|_| shut_down())? }
    }

    /// Statements to come use new connections, because replies on the present ones are overdue.
    pub(super) fn replace_busy_connections(&self) {
        for lane in self.lanes.iter() {
            if lane.state.slots.available_permits() < IN_FLIGHT as usize {
                lane.state.current().take();
            }
        }
    }
}

impl LaneState {
    fn current(&self) -> MutexGuard<'_, Option<Arc<OpenConnection>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn connection(&self) -> Result<Arc<OpenConnection>> {
        let lost = {
            let mut current = self.current();
            match &*current {
                Some(connection) if !connection.client.is_closed() => {
                    return Ok(Arc::clone(connection));
                }
                _ => current.take().is_some(),
            }
        };
        let connection = Arc::new(self.connector.connect(lost).await?);
        *self.current() = Some(Arc::clone(&connection));
        Ok(connection)
    }

    /// Forgets a connection, if it is the present one.
    fn forget(&self, connection: &Arc<OpenConnection>) {
        let mut current = self.current();
        if current
            .as_ref()
            .is_some_and(|it| Arc::ptr_eq(it, connection))
        {
            current.take();
        }
    }

    /// Waits for a reply, up to the hard limit.
    async fn reply<T>(
        &self,
        connection: &Arc<OpenConnection>,
        lost_reply: LostReply,
        statement: impl Future<Output = Result<T, tokio_postgres::Error>>,
    ) -> Result<T, (Error, bool)> {
        match tokio::time::timeout(self.hard_limit, statement).await {
            Ok(Ok(rows)) => Ok(rows),
            Ok(Err(e)) => {
                if connection.client.is_closed() || is_read_only(&e) {
                    self.forget(connection);
                }
                let definite = is_definite(&e);
                Err((from_reply(e, lost_reply), definite))
            }
            Err(_) => {
                self.forget(connection);
                connection.abort();
                let reason = format!("no reply within {:?}", self.hard_limit);
                Err((no_reply(reason, lost_reply), false))
            }
        }
    }

    async fn run_call(&self, connection: &Arc<OpenConnection>, call: Call) {
        if call.answer.is_closed() {
            return;
        }
        let params: Vec<(&(dyn ToSql + Sync), Type)> = call
            .params
            .iter()
            .map(|(value, kind)| (value.as_ref() as &(dyn ToSql + Sync), kind.clone()))
            .collect();
        let statement = connection.client.query_typed(&call.sql, &params);
        let answer = self.reply(connection, call.lost_reply, statement).await;
        let _ = call.answer.send(answer.map_err(|(e, _)| e));
    }

    async fn run_batch(&self, connection: &Arc<OpenConnection>, mut jobs: Vec<ClaimJob>) {
        // A caller that was cancelled before its request left needs none.
        jobs.retain(|job| !job.answer.is_closed());
        if jobs.is_empty() {
            return;
        }
        // The server locks names in this order. The sort is stable: decisions about one name stay in
        // the order in which they were requested.
        jobs.sort_by(|a, b| a.decision.key().cmp(&b.decision.key()));
        let answer = self.send_batch(connection, &jobs).await;
        let (error, definite) = match answer {
            Ok(decided) => {
                for (job, decided) in jobs.into_iter().zip(decided) {
                    let _ = job.answer.send(Ok(decided));
                }
                return;
            }
            Err(failed) => failed,
        };
        if definite && jobs.len() > 1 && !error.is_retryable() {
            // Nothing was done. One decision must not fail because of another.
            for job in jobs {
                let one = std::slice::from_ref(&job);
                let answer = self.send_batch(connection, one).await;
                let answer = answer.map(|mut decided| decided.remove(0));
                let _ = job.answer.send(answer.map_err(|(e, _)| e));
            }
            return;
        }
        for job in jobs {
            let _ = job.answer.send(Err(error.duplicate()));
        }
    }

    async fn send_batch(
        &self,
        connection: &Arc<OpenConnection>,
        jobs: &[ClaimJob],
    ) -> Result<Vec<DecidedClaim>, (Error, bool)> {
        let decisions = jobs.iter().map(|job| &job.decision);
        let statement = decide_batch(&connection.client, &self.schema, decisions);
        let rows = self
            .reply(connection, LostReply::OutcomeUnknown, statement)
            .await?;
        DecidedClaim::in_order(&rows, jobs.len()).map_err(|e| (e, false))
    }

    /// Runs a transaction of several round trips, up to the hard limit.
    async fn run_exclusive(
        &self,
        connection: &Arc<OpenConnection>,
        work: impl Future<Output = bool>,
    ) {
        let usable = tokio::time::timeout(self.hard_limit, work)
            .await
            .unwrap_or(false);
        if !usable || connection.client.is_closed() {
            self.forget(connection);
            connection.abort();
        }
    }

    /// Whether it is this client's turn to remove expired rows.
    fn is_sweep_due(&self) -> bool {
        let now = self.started.elapsed().as_millis() as u64;
        let last = self.last_sweep.load(Ordering::Relaxed);
        now >= last + SWEEP_INTERVAL.as_millis() as u64
            && self
                .last_sweep
                .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

fn shut_down() -> Error {
    no_reply("the client was shut down", LostReply::OutcomeUnknown)
}

async fn work(
    state: Arc<LaneState>,
    mut inbox: mpsc::UnboundedReceiver<Job>,
    jobs: mpsc::WeakUnboundedSender<Job>,
) {
    let mut next = None;
    loop {
        let job = match next.take() {
            Some(job) => job,
            None => match inbox.recv().await {
                Some(job) => job,
                None => return,
            },
        };
        if let Job::Wait(done) = job {
            let _ = done.await;
            continue;
        }
        // A transaction needs the connection for itself.
        let slots = match job {
            Job::State(_) | Job::Exclusive(_) => IN_FLIGHT,
            _ => 1,
        };
        let slot = Arc::clone(&state.slots)
            .acquire_many_owned(slots)
            .await
            .expect("the semaphore is never closed");
        let connection = match state.connection().await {
            Ok(connection) => connection,
            Err(e) => {
                // What arrived meanwhile would fail the same way, one attempt later each.
                fail(job, &e).await;
                while let Ok(job) = inbox.try_recv() {
                    fail(job, &e).await;
                }
                continue;
            }
        };
        match job {
            Job::Wait(_) => {}
            Job::Exclusive(work) => {
                let state = Arc::clone(&state);
                let client = Arc::clone(&connection.client);
                let work = work(Ok((client, Arc::clone(&state.schema))));
                begin(
                    slot,
                    async move { state.run_exclusive(&connection, work).await },
                )
                .await;
            }
            Job::State(first) => {
                tokio::task::yield_now().await;
                let mut batch = vec![first];
                while batch.len() < LARGEST_BATCH {
                    match inbox.try_recv() {
                        Ok(Job::State(job)) => batch.push(job),
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                let state_of_batch = Arc::clone(&state);
                begin(slot, async move {
                    let state = state_of_batch;
                    let work = super::state::decide(&connection.client, &state.schema, batch);
                    state.run_exclusive(&connection, work).await;
                })
                .await;
                sweep_if_due(&state, &jobs);
            }
            Job::Call(call) => {
                let state = Arc::clone(&state);
                begin(slot, async move { state.run_call(&connection, call).await }).await;
            }
            Job::Claim(first) => {
                // Callers that are ready to decide go first, and join this batch.
                tokio::task::yield_now().await;
                let mut batch = vec![first];
                while batch.len() < LARGEST_BATCH {
                    match inbox.try_recv() {
                        Ok(Job::Claim(job)) => batch.push(job),
                        Ok(other) => {
                            next = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                let state_of_batch = Arc::clone(&state);
                begin(slot, async move {
                    state_of_batch.run_batch(&connection, batch).await;
                })
                .await;
                sweep_if_due(&state, &jobs);
            }
        }
    }
}

fn sweep_if_due(state: &LaneState, jobs: &mpsc::WeakUnboundedSender<Job>) {
    if state.is_sweep_due()
        && let Some(jobs) = jobs.upgrade()
    {
        let _ = jobs.send(Job::Call(sweep(&state.schema)));
    }
}

fn sweep(schema: &str) -> Call {
    let (answer, reply) = oneshot::channel();
    tokio::spawn(async move {
        if let Ok(Err(e)) = reply.await {
            tracing::debug!(error = %e, "expired rows were not removed");
        }
    });
    Call {
        sql: format!("SELECT \"{schema}\".sweep($1)"),
        params: vec![number(SWEEP_ROWS)],
        lost_reply: LostReply::Harmless,
        answer,
        _until_done: None,
    }
}

async fn fail(job: Job, e: &Error) {
    match job {
        Job::Claim(job) => drop(job.answer.send(Err(e.duplicate()))),
        Job::Call(call) => drop(call.answer.send(Err(e.duplicate()))),
        Job::State(job) => (job.refuse)(e),
        Job::Exclusive(work) => drop(work(Err(e.duplicate())).await),
        Job::Wait(_) => {}
    }
}

/// Begins a statement, and leaves the rest of it to a task. The first poll puts it on the wire; only
/// then may the next one go.
async fn begin(slot: OwnedSemaphorePermit, statement: impl Future<Output = ()> + Send + 'static) {
    // Unconstrained: a spent budget must not stop the first poll short of the wire.
    let mut statement: Pin<Box<dyn Future<Output = ()> + Send>> =
        Box::pin(tokio::task::unconstrained(statement));
    let done = poll_fn(|cx| Poll::Ready(statement.as_mut().poll(cx).is_ready())).await;
    if !done {
        tokio::spawn(async move {
            statement.await;
            drop(slot);
        });
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Lanes({}, {})", self.schema, self.lanes.len())
    }
}

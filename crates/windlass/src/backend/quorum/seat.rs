//! Nodes of a quorum in this process, which keep values as the rules say, and do what a test tells them: what
//! on real servers only a rare order of events brings about.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use super::node::Node;
use super::{Accept, Address, Confirmed, Kept, Promise, Shared, Standing, Voter, Writer};
use crate::backend::memory::{Memory, World};
use crate::backend::rules::register::Register;
use crate::backend::{
    Acquired, AcquiredAll, Ask, Backend, Channel, Holder, Kind, Pending, Released, Renewal,
    Renewed, WakeAddress, WakeUps,
};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Clock, Fence, Moment, Owner};
use crate::name::Name;

/// A node. All copies are the same one.
#[derive(Clone)]
pub(super) struct Seat {
    desk: Arc<Mutex<Desk>>,
    /// For its news.
    world: Arc<World>,
    clock: Clock,
    connection: Arc<AtomicU64>,
}

/// What a node has and does.
pub(super) struct Desk {
    /// The server that is reached under its name.
    pub(super) run: String,
    pub(super) counter: u64,
    /// So many questions about values fail from now on.
    pub(super) fails: u32,
    /// How long each message takes to arrive.
    pub(super) travel: Duration,
    /// How often somebody drew a number for a value.
    pub(super) draws: u32,
    values: HashMap<Channel, Value>,
}

struct Value {
    rules: Register<(Arc<[u8]>, Moment)>,
    /// Who is about to write, and since when.
    turn: Option<(Writer, Moment)>,
}

impl Default for Value {
    fn default() -> Value {
        let (promised, accepted) = (None, None);
        Value {
            rules: Register { promised, accepted },
            turn: None,
        }
    }
}

impl Seat {
    pub(super) fn new(run: &str, clock: &Clock) -> Seat {
        let desk = Desk {
            run: run.to_owned(),
            counter: 0,
            fails: 0,
            travel: Duration::ZERO,
            draws: 0,
            values: HashMap::new(),
        };
        Seat {
            desk: Arc::new(Mutex::new(desk)),
            world: World::private(clock.clone()),
            clock: clock.clone(),
            connection: Arc::new(AtomicU64::new(1)),
        }
    }

    pub(super) fn desk(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap()
    }

    /// The connection broke, and there is another.
    pub(super) fn connects_anew(&self) {
        self.connection.fetch_add(1, Ordering::SeqCst);
    }

    /// Draws a number that is no lower than that, as somebody else does who says no more.
    pub(super) fn draw(&self, of: &Channel, proposal: u64) -> u64 {
        let mut desk = self.desk();
        let Desk {
            counter, values, ..
        } = &mut *desk;
        let value = values.entry(of.clone()).or_default();
        value.turn = None;
        value.rules.promise(counter, proposal).0
    }

    /// Keeps a value under that number, as it does when somebody else has drawn it and says so.
    pub(super) fn keep(&self, of: &Channel, number: u64, value: &[u8], keep: Duration) {
        let drawn = self.draw(of, number);
        assert_eq!(drawn, number, "it has given a higher one");
        let accept = Accept {
            number,
            value: value.into(),
            keep,
            news: false,
            floor: number,
        };
        let now = self.clock.now();
        assert!(self.desk().accept(of, &accept, now));
    }

    /// The number under which it keeps a value.
    pub(super) fn ballot(&self, of: &Channel) -> Option<u64> {
        let desk = self.desk();
        let (ballot, _) = desk.values.get(of)?.rules.accepted.as_ref()?;
        Some(*ballot)
    }

    /// What becomes of a question about a value: it travels, is answered at once where it arrives, and the answer
    /// travels.
    fn ask<T: Send + 'static>(
        &self,
        answer: impl FnOnce(&mut Desk, Moment) -> T + Send + 'static,
    ) -> Pending<'static, T> {
        let seat = self.clone();
        Box::pin(async move {
            let travel = seat.desk().travel;
            seat.clock.sleep(travel).await;
            let answer = {
                let mut desk = seat.desk();
                if desk.fails > 0 {
                    desk.fails -= 1;
                    let message = "it was told not to answer";
                    return Err(Error::new(ErrorKind::Unreachable, "call", message));
                }
                answer(&mut desk, seat.clock.now())
            };
            seat.clock.sleep(travel).await;
            Ok(answer)
        })
    }
}

impl Desk {
    /// As scripts/vote/register.lua does.
    fn promise(&mut self, of: Channel, number: u64, by: Writer, now: Moment) -> Option<Promise> {
        let value = self.values.entry(of).or_default();
        if let Some((other, since)) = value.turn
            && other.who != by.who
            && now.since(since) < other.turn
        {
            return None;
        }
        value.turn = Some((by, now));
        self.draws += 1;
        let (number, accepted) = value.rules.promise(&mut self.counter, number);
        let kept = accepted.and_then(|accepted| kept(accepted, now));
        Some(Promise { number, kept })
    }

    fn accept(&mut self, of: &Channel, accept: &Accept, now: Moment) -> bool {
        let value = self.values.entry(of.clone()).or_default();
        let until = now + accept.keep;
        let done = value
            .rules
            .accept(accept.number, (Arc::clone(&accept.value), until));
        if done {
            value.turn = None;
            self.counter = self.counter.max(accept.floor);
        }
        done
    }
}

fn kept((ballot, (value, until)): (u64, (Arc<[u8]>, Moment)), now: Moment) -> Option<Kept> {
    let left = until.since(now);
    (!left.is_zero()).then_some(Kept {
        ballot,
        value,
        left,
        this_run: true,
    })
}

/// A client of these nodes, each of which has a vote.
pub(super) async fn client(seats: &[Seat], wakeups: Weak<dyn WakeUps>) -> Arc<Shared> {
    let hosts: Vec<String> = (0..seats.len())
        .map(|node| format!("node-{node}"))
        .collect();
    let address = Address::parse(&format!("redlock://{}", hosts.join(","))).unwrap();
    let member = |(host, seat): (String, &Seat)| Node::new(host, Arc::new(seat.clone()));
    let nodes = hosts.into_iter().zip(seats).map(member).collect();
    let clock = seats[0].clock.clone();
    let shared = Shared::new(&address, nodes, Vec::new(), clock, wakeups);
    shared.meet().await.unwrap();
    shared
}

impl Voter for Seat {
    fn store(&self) -> Arc<dyn Backend> {
        Arc::new(Memory(Arc::clone(&self.world)))
    }

    fn connection(&self) -> u64 {
        self.connection.load(Ordering::SeqCst)
    }

    fn is_connected(&self) -> bool {
        true
    }

    fn standing(&self) -> Pending<'_, Standing> {
        let desk = self.desk();
        let standing = Standing {
            run: desk.run.clone(),
            up: Duration::from_secs(3600),
            durable: true,
            joined: true,
            counter: Some(desk.counter),
        };
        Box::pin(std::future::ready(Ok(standing)))
    }

    fn promise(
        &self,
        of: Channel,
        proposal: Fence,
        writer: Writer,
    ) -> Pending<'static, Option<Promise>> {
        self.ask(move |desk, now| desk.promise(of, proposal.get(), writer, now))
    }

    fn let_go(&self, of: Channel, who: u64) -> Pending<'static, ()> {
        self.ask(move |desk, _| {
            let value = desk.values.entry(of).or_default();
            value.turn = value.turn.filter(|(other, _)| other.who != who);
        })
    }

    fn accept(&self, of: Channel, accept: Accept) -> Pending<'static, bool> {
        let world = Arc::clone(&self.world);
        let answer = {
            let (of, accept) = (of.clone(), accept.clone());
            self.ask(move |desk, now| desk.accept(&of, &accept, now))
        };
        Box::pin(async move {
            let done = answer.await?;
            if done && accept.news {
                world.announce(&of, &[]);
            }
            Ok(done)
        })
    }

    fn kept(&self, of: Channel) -> Pending<'static, Option<Kept>> {
        self.ask(move |desk, now| {
            let accepted = desk.values.entry(of).or_default().rules.accepted.clone();
            accepted.and_then(|accepted| kept(accepted, now))
        })
    }

    fn registers(&self, _: &'static str, _: String) -> Pending<'static, Vec<String>> {
        unreachable!("nobody lists what is kept here")
    }

    fn time(&self) -> Pending<'_, i64> {
        unreachable!("nobody examines it")
    }

    fn join(&self, _: String, _: Fence) -> Pending<'_, ()> {
        unreachable!("it has joined")
    }

    fn vote(&self, _: &Ask, _: Fence) -> Pending<'static, Acquired> {
        unreachable!("it has no locks")
    }

    fn vote_together(&self, _: Vec<(Ask, Fence)>) -> Pending<'static, Vec<Result<Acquired>>> {
        unreachable!("it has no locks")
    }

    fn vote_for_all(&self, _: Vec<Ask>) -> Pending<'static, AcquiredAll> {
        unreachable!("it has no locks")
    }

    fn confirm(&self, _: &Renewal, _: Fence) -> Pending<'static, Confirmed> {
        unreachable!("it has no locks")
    }

    fn line_up_again(&self, _: &Renewal, _: Fence, _: Fence) -> Pending<'static, bool> {
        unreachable!("it has no locks")
    }

    fn renew(&self, _: Vec<Renewal>) -> Pending<'static, Vec<Result<Renewed>>> {
        unreachable!("it has no locks")
    }

    fn release(
        &self,
        _: Kind,
        _: Name,
        _: Owner,
        _: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        unreachable!("it has no locks")
    }

    fn break_lock(&self, _: Name) -> Pending<'static, Option<Holder>> {
        unreachable!("it has no locks")
    }
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seat")
    }
}

//! Refilling a token cache from the store.
//!
//! # When to refill, and how much
//!
//! By Little's law, a caller never waits if the tokens in the cache and under way cover the demand of a round trip:
//! `demand × round trip`. Below that level the next refill is sent, early enough to arrive before the last token is
//! used. It brings the demand of a round trip and of [`COVER`] more, so that steady demand costs about ten calls a
//! second, whatever its size. The demand is what callers ask for while they are not waiting; the round trip
//! is measured.
//!
//! # How long tokens live
//!
//! For one and a half times the round trip and the time that they should last: a slow store gets longer leases. A
//! bucket leases for a quarter of its fill time at most ([`Rule::longest_lease`]). If that is too short for the round
//! trip, nothing is prefetched: a token that expires on the way is charged and lost.
//!
//! # Callers that find no token
//!
//! They wait for one call together, which requests the units of all of them; up to [`IN_FLIGHT`] such calls are under
//! way. What is granted to a caller that was waiting when the request was sent needs no lease: the
//! store decided for it, as it does for a limiter without leases, and however late the reply is, the caller gets it. So a
//! leased limiter is not worse than a plain one, however slow the store is.
//!
//! # Callers that the store would deny
//!
//! A reply says when the store has units again ([`Forecast`]). Until a worthwhile number is available, callers are
//! denied here. Several processes with too much demand would still all ask at that time, and most of
//! them in vain. A process that gets less than half of what the forecast promised has competitors, and doubles its
//! pause, up to [`LONGEST_PAUSE`]; one that gets it shortens the pause, and ends it if the store has more. So more
//! than half of the calls succeed, however many processes compete.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::oneshot;

use super::demand::Demand;
use super::forecast::Forecast;
use super::grant::{GrantedUnits, amounts};
use super::token_cache::{CacheTake, TokenCache};
use super::{LeasedLimiter, lowest_limit};
use crate::lease::Moment;
use crate::limit::store_call::StoreReply;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::rules::limit::{LimitOp, Rule, Span, status};
use windlass_core::store::limit::LimitOutcome;

/// How long a refill should last, beyond the round trip.
const COVER: Duration = Duration::from_millis(100);
/// A bucket that leases for a shorter time is not worth a prefetch.
const SHORTEST_LEASE: Duration = Duration::from_millis(10);
/// Calls for one key that are under way at once: few of them if the store has not answered yet.
const IN_FLIGHT: usize = 16;
/// See [`IN_FLIGHT`].
const FIRST_IN_FLIGHT: usize = 4;
/// How many times larger a refill may be than the previous one: a short burst is not a trend.
const GROWTH: u64 = 8;
/// The longest time for which this process denies without asking the store again: other clients return units, and
/// a limiter may be reset.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// A forecast that is older is not used.
const FORECAST_LIFE: Duration = Duration::from_secs(2);
const MAX_BACKOFF: f64 = 32.0;

/// What a token cache needs to refill itself.
#[derive(Debug, Default)]
pub(super) struct Refills {
    /// Callers whose request is not sent yet.
    waiters: Vec<WaitingCheck>,
    /// Whether a task is about to send it.
    scheduled: bool,
    /// Requests under way, in the order in which they were sent.
    in_flight: VecDeque<InFlight>,
    next_number: u64,
    /// The lease whose tokens are in the cache.
    pub(super) current: Option<TokenLease>,
    /// Further leases, with their tokens.
    pub(super) queued: VecDeque<TokenLease>,
    pub(super) forecast: Option<Forecast>,
    round_trip: Duration,
    demand: Demand,
    pub(super) last_units: u64,
    /// By how much pauses are longer, because of competitors.
    backoff: f64,
}

#[derive(Debug)]
pub(super) struct WaitingCheck {
    pub(super) units: u64,
    pub(super) reply: oneshot::Sender<Result<Decision>>,
}

#[derive(Debug)]
struct InFlight {
    number: u64,
    sent: Moment,
    op: LimitOp,
    /// Units that nobody waits for.
    prefetched: u64,
    waiters: usize,
}

/// Tokens that were leased from the store.
#[derive(Debug)]
pub(super) struct TokenLease {
    pub(super) number: u64,
    /// How many are left; while the lease is the current one, the cache counts them.
    pub(super) units: u64,
    pub(super) valid_until: Moment,
    /// The store's time of the lease.
    pub(super) leased_at: u64,
    /// For how long the store leased them, in microseconds.
    pub(super) life: u64,
    /// The mark of the state that the lease was charged to.
    pub(super) mark: u64,
}

/// For how long to lease, and how long a refill then lasts; `None` if leases are too short for the round trip.
fn lease_life(rules: &[Rule], round_trip: Duration) -> Option<(Duration, Duration)> {
    let longest = rules.iter().map(Rule::longest_lease).min()?;
    let longest = Duration::from_micros(longest);
    let cover = (longest * 2 / 3).checked_sub(round_trip)?.min(COVER);
    let useful = longest >= SHORTEST_LEASE && cover >= round_trip / 4;
    useful.then(|| ((round_trip + cover) * 3 / 2, cover))
}

/// What the quotas refill in this time.
fn refilled(rules: &[Rule], time: Duration) -> u64 {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let each = |rule: &Rule| match rule {
        Rule::Bucket(b) => b.units_in(Span::whole(micros)).min(b.burst),
        Rule::Allowance { burst } => burst / 16,
        Rule::Fixed { limit, period }
        | Rule::Sliding { limit, period }
        | Rule::Log { limit, period } => {
            let part = u128::from(micros.min(*period));
            (u128::from(*limit) * part / u128::from(*period)) as u64
        }
    };
    rules.iter().map(each).min().unwrap_or(0)
}

/// Takes from the next lease, or waits for a call to the store.
pub(super) async fn take_or_wait(
    leased: &LeasedLimiter,
    cache: &Arc<TokenCache>,
    units: u64,
) -> Result<Decision> {
    let rules = leased.inner.limiter.rules()?;
    let reply = {
        let mut refills = cache.refills();
        let now = leased.inner.limiter.clock().now();
        match refills.take(cache, rules, units, now) {
            CacheTake::Taken(left) => return Ok(leased.decision(cache, now, true, left, None)),
            CacheTake::Denied(until) => {
                return Ok(leased.decision(cache, now, false, 0, Some(until)));
            }
            CacheTake::Miss => {}
        }
        refills.demand.waiting(true, now);
        let (reply, receiver) = oneshot::channel();
        refills.waiters.push(WaitingCheck { units, reply });
        refills.schedule(leased, cache);
        receiver
    };
    reply.await.unwrap_or_else(|_| {
        Err(Error::new(
            ErrorKind::OutcomeUnknown,
            "check",
            "the runtime was shut down; it may have happened",
        )
        .with_name(cache.name.as_str()))
    })
}

/// Refills the cache before its last token is used.
pub(super) fn prefetch(leased: &LeasedLimiter, cache: &Arc<TokenCache>) {
    // Without a runtime nothing can be sent; a later caller will wait.
    if tokio::runtime::Handle::try_current().is_ok() {
        cache.refills().schedule(leased, cache);
    }
}

impl Refills {
    /// Takes units of this lease or the next. A miss means that the store should be asked.
    pub(super) fn take(
        &mut self,
        cache: &TokenCache,
        rules: &[Rule],
        units: u64,
        now: Moment,
    ) -> CacheTake {
        loop {
            let more = self.use_next_lease(cache, units, now);
            match cache.take_again(units, now) {
                CacheTake::Miss if more => {}
                CacheTake::Miss => break,
                answer => return answer,
            }
        }
        let waiting: u64 = self.waiters.iter().map(|waiter| waiter.units).sum();
        let wanted = self.worthwhile(rules, waiting.saturating_add(units));
        match self.pause(rules, now, wanted) {
            until if until > now => {
                cache.deny_until(until);
                CacheTake::Denied(until)
            }
            _ => CacheTake::Miss,
        }
    }

    fn forecast(&self, now: Moment) -> Option<&Forecast> {
        let recent = |forecast: &&Forecast| now.since(forecast.sent()) < FORECAST_LIFE;
        self.forecast.as_ref().filter(recent)
    }

    /// A worthwhile number of units for a call: what is wanted and refilled in the time that a refill should last, at
    /// least `units`.
    pub(super) fn worthwhile(&self, rules: &[Rule], units: u64) -> u64 {
        let cover = match lease_life(rules, self.round_trip) {
            Some((_, cover)) => cover,
            None => {
                let longest = rules.iter().map(Rule::longest_lease).min().unwrap_or(0);
                Duration::from_micros(longest).min(COVER)
            }
        };
        let wanted = self.demand.within(cover).min(refilled(rules, cover));
        wanted.max(units).min(lowest_limit(rules))
    }

    /// Until when a call to the store is not worth it: until it has these units, or longer if there are competitors.
    pub(super) fn pause(&self, rules: &[Rule], now: Moment, units: u64) -> Moment {
        let Some(forecast) = self.forecast(now) else {
            return now;
        };
        let wait = forecast.wait(rules, units);
        let wait = wait.unwrap_or(COVER).min(LONGEST_PAUSE);
        let longer = match self.backoff > 1.0 {
            // Competitors that began at the same time do not stay together.
            true => self.backoff * rand::random_range(0.75..=1.25),
            false => 1.0,
        };
        forecast.sent() + wait.mul_f64(longer.max(1.0)).min(LONGEST_PAUSE)
    }

    /// Puts the tokens of the next lease into the cache, if the cache has not enough, and that lease has.
    fn use_next_lease(&mut self, cache: &TokenCache, units: u64, now: Moment) -> bool {
        self.queued.retain(|lease| now < lease.valid_until);
        cache.set_more(!self.queued.is_empty());
        let valid = |lease: &TokenLease| now < lease.valid_until;
        if self.current.as_ref().is_some_and(valid) && cache.left() >= units {
            return false;
        }
        let enough = |lease: &TokenLease| lease.units >= units;
        let Some(next) = self.queued.iter().position(enough) else {
            return false;
        };
        let Some(next) = self.queued.remove(next) else {
            return false;
        };
        let left = cache.empty();
        if let Some(mut last) = self.current.take()
            && left > 0
            && now < last.valid_until
        {
            // Too few for this caller.
            last.units = left;
            self.queued.push_back(last);
        }
        cache.fill(next.units, next.valid_until);
        self.current = Some(next);
        cache.set_more(!self.queued.is_empty());
        true
    }

    /// Starts a task that sends the next request, unless there is one, or enough are under way.
    fn schedule(&mut self, leased: &LeasedLimiter, cache: &Arc<TokenCache>) {
        let most = match self.forecast {
            Some(_) => IN_FLIGHT,
            None => FIRST_IN_FLIGHT,
        };
        if self.scheduled || self.in_flight.len() >= most {
            return;
        }
        self.scheduled = true;
        // In a task of its own: a cancelled caller must not take the reply from the others, nor leave tokens that
        // no cache holds.
        tokio::spawn(refill(leased.clone(), Arc::clone(cache)));
    }

    /// Tokens in the cache and in further leases, and those that nobody waits for and that are under way.
    fn stock(&self, cache: &TokenCache, now: Moment) -> u64 {
        let in_cache = match &self.current {
            Some(lease) if now < lease.valid_until => cache.left(),
            _ => 0,
        };
        let valid = self.queued.iter().filter(|lease| now < lease.valid_until);
        let queued: u64 = valid.map(|lease| lease.units).sum();
        let coming: u64 = self.in_flight.iter().map(|call| call.prefetched).sum();
        in_cache + queued + coming
    }

    /// The next request, and for how long it leases; `None` if it is not worth it.
    fn next_request(
        &mut self,
        cache: &TokenCache,
        rules: &[Rule],
        now: Moment,
    ) -> Option<(LimitOp, u64, Vec<WaitingCheck>)> {
        self.demand.measure(cache.take_demand(), now);
        let mut waiters = std::mem::take(&mut self.waiters);
        // The smallest first: then most callers are served.
        waiters.sort_by_key(|waiter| waiter.units);
        let waiting: u64 = waiters.iter().map(|waiter| waiter.units).sum();
        let step = waiters.last().map_or(1, |waiter| waiter.units);
        let forecast = self.forecast(now);
        let leasable = |life| match forecast {
            Some(forecast) => forecast.leasable(rules, now, life),
            None => lowest_limit(rules),
        };
        let mut request = (0, Duration::ZERO, leasable(Duration::ZERO));
        if let Some((life, cover)) = lease_life(rules, self.round_trip)
            && self.demand.per_second > 0.0
        {
            let free = leasable(life);
            let lasting = self.round_trip + cover;
            let wanted = self
                .demand
                .within(lasting)
                .min(refilled(rules, lasting))
                .saturating_sub(self.stock(cache, now))
                .min(self.last_units.max(1).saturating_mul(GROWTH))
                .min(free.saturating_sub(waiting));
            let wanted = wanted / step * step;
            // Half of what a refill brings; otherwise each would bring less than the one before.
            let enough = self.demand.within(cover).min(refilled(rules, cover)) / 2;
            if wanted > 0 && (wanted >= enough || waiting > 0) {
                request = (wanted, life, free);
            }
        }
        let (prefetched, life, free) = request;
        if waiting + prefetched == 0 {
            return None;
        }
        let amounts = amounts(&waiters, waiting + prefetched, free);
        let op = LimitOp::Lease(amounts, life.as_micros() as u64);
        Some((op, prefetched, waiters))
    }

    /// The level below which the next refill is sent.
    fn set_refill_level(&self, cache: &TokenCache, rules: &[Rule], now: Moment) {
        let level = match lease_life(rules, self.round_trip) {
            // A little early: neither demand nor round trip is constant.
            Some((_, cover)) => self
                .demand
                .within(self.round_trip * 3 / 2 + cover / 8)
                .max(1),
            None => 0,
        };
        let elsewhere = self.stock(cache, now).saturating_sub(cache.left());
        cache.refill_below(level.saturating_sub(elsewhere));
    }

    fn end_of(&mut self, number: u64, now: Moment) -> Option<InFlight> {
        let at = self
            .in_flight
            .iter()
            .position(|call| call.number == number)?;
        let call = self.in_flight.remove(at);
        let waits = |call: &InFlight| call.waiters > 0;
        if self.waiters.is_empty() && !self.in_flight.iter().any(waits) {
            self.demand.waiting(false, now);
        }
        call
    }

    /// Learns from a reply of the store. `expected` is what the forecast promised.
    fn learn(
        &mut self,
        rules: &[Rule],
        outcome: &LimitOutcome,
        sent: Moment,
        expected: Option<u64>,
    ) {
        if let Some(expected) = expected.filter(|expected| *expected > 0) {
            let change = match outcome.granted.unwrap_or(0) {
                granted if granted >= expected => 0.6,
                granted if granted < expected.div_ceil(2) => 2.0,
                _ => 1.0,
            };
            self.backoff = (self.backoff.max(1.0) * change).clamp(1.0, MAX_BACKOFF);
        }
        let left = status(rules, &outcome.states, outcome.now, 1).remaining;
        if left > self.worthwhile(rules, 1) {
            self.backoff = 1.0;
        }
        self.update_forecast(rules, outcome, sent);
    }

    /// Takes the state of a reply as the forecast, unless there is a later one.
    pub(super) fn update_forecast(&mut self, rules: &[Rule], outcome: &LimitOutcome, sent: Moment) {
        if matches!(&self.forecast, Some(forecast) if forecast.sent() > sent) {
            return;
        }
        let mut forecast = Forecast::new(outcome, sent);
        for call in self.in_flight.iter().filter(|call| call.sent > sent) {
            forecast.apply(rules, call.sent, &call.op);
        }
        self.forecast = Some(forecast);
    }
}

/// Sends one request, and gives what the store grants to the callers that wait for it, and the rest to the cache.
async fn refill(leased: LeasedLimiter, cache: Arc<TokenCache>) {
    // Callers that are about to run join this request.
    tokio::task::yield_now().await;
    let limiter = &leased.inner.limiter;
    let Ok(rules) = limiter.rules() else {
        return;
    };
    let clock = limiter.clock();
    let (number, sent, op, expected, waiters) = {
        let mut refills = cache.refills();
        refills.scheduled = false;
        let sent = clock.now();
        let Some((op, prefetched, waiters)) = refills.next_request(&cache, rules, sent) else {
            let wanted = refills.worthwhile(rules, 1);
            cache.deny_until(refills.pause(rules, sent, wanted));
            refills.set_refill_level(&cache, rules, sent);
            return;
        };
        let known = refills.forecast(sent).is_some();
        let promised = refills.forecast.as_mut();
        let promised = promised.map(|forecast| forecast.apply(rules, sent, &op));
        refills.next_number += 1;
        let number = refills.next_number;
        refills.in_flight.push_back(InFlight {
            number,
            sent,
            op: op.clone(),
            prefetched,
            waiters: waiters.len(),
        });
        (number, sent, op, promised.filter(|_| known), waiters)
    };
    leased.inner.store_calls.fetch_add(1, Ordering::Relaxed);
    let reply = limiter
        .decide_named("check", cache.name.clone(), op.clone())
        .await;
    let mut refills = cache.refills();
    let received = clock.now();
    refills.end_of(number, received);
    match reply {
        Ok(StoreReply::Decided(outcome, basis)) => {
            if basis == Basis::Store {
                // Slower at once, faster within a few calls: a lease that ends too early is lost.
                let measured = received.since(sent);
                refills.round_trip = measured.max((refills.round_trip + measured) / 2);
                refills.learn(rules, &outcome, sent, expected);
            } else {
                refills.forecast = None;
            }
            let reply = GrantedUnits {
                leased: &leased,
                cache: &cache,
                rules,
                number,
                sent,
                received,
                op: &op,
                outcome: &outcome,
                basis,
            };
            reply.distribute(&mut refills, waiters);
            refills.set_refill_level(&cache, rules, received);
        }
        Ok(assumed) => {
            for waiter in waiters {
                let _ = waiter.reply.send(limiter.decision(&assumed, waiter.units));
            }
        }
        Err(error) => {
            // Callers that came meanwhile need not wait for another failure.
            let late = std::mem::take(&mut refills.waiters);
            refills.demand.waiting(false, received);
            for waiter in waiters.into_iter().chain(late) {
                let _ = waiter.reply.send(Err(error.duplicate()));
            }
        }
    }
    if !refills.waiters.is_empty() {
        refills.schedule(&leased, &cache);
    }
}

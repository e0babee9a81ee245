//! A Redis or Valkey server as one node of a quorum.

mod lock;
#[cfg(test)]
mod proof;
mod room;
mod voter;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;

use self::lock::LockVote;
use self::room::RoomVote;
pub use self::voter::{Confirmed, Standing, Voter};
use super::batch::Batcher;
use super::connection::Connection;
use super::connector::Connector;
use super::errors::unexpected_reply;
use super::master_epoch::FenceUse;
use super::router::Router;
use super::{CAPABILITIES, Redis, bytes, client, keys, script, time_left};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::redact::redact;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, Backend, GrantListener, Holder, Kind, Pending, Released,
    Renewal, Renewed, WakeAddress,
};
use windlass_core::{Fence, Owner};

/// One server, and its two scripts.
#[derive(Debug)]
pub struct RedisVoter {
    redis: Redis,
    locks: Batcher<LockVote>,
    rooms: Batcher<RoomVote>,
}

impl RedisVoter {
    /// Not connected yet: whether it can be reached is for the quorum to judge.
    pub fn new(
        url: &str,
        call_timeout: Duration,
        id: u64,
        wakeups: Weak<dyn GrantListener>,
    ) -> Result<RedisVoter> {
        // What replicas of a node have does not count: the other nodes do.
        let (client, _) = client(url)?;
        let link = Connection::new(Connector::Server(client), call_timeout, id, wakeups);
        let link = Arc::new(Router::Single(link));
        Ok(RedisVoter {
            locks: Batcher::start(Arc::clone(&link)),
            rooms: Batcher::start(Arc::clone(&link)),
            redis: Redis {
                address: redact(url).into(),
                capabilities: CAPABILITIES,
                replicas: None,
                locks: Batcher::start(Arc::clone(&link)),
                rooms: Batcher::start(Arc::clone(&link)),
                limits: Batcher::start(Arc::clone(&link)),
                router: link,
            },
        })
    }

    async fn ask_standing(&self) -> Result<Standing> {
        let link = &self.redis.router;
        let text: String = link.query(&redis::cmd("INFO")).await?;
        let info: HashMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect();
        let missing = |field: &str| {
            Error::new(
                ErrorKind::Store,
                "call",
                format!("the server's INFO does not tell {field}"),
            )
        };
        if let Some(role) = info.get("role").filter(|role| **role != "master") {
            let message = format!("it is a {role}, and a quorum needs independent primaries");
            return Err(Error::new(ErrorKind::Store, "call", message));
        }
        let run = *info.get("run_id").ok_or_else(|| missing("run_id"))?;
        let up = info.get("uptime_in_seconds").and_then(|s| s.parse().ok());
        let up = Duration::from_secs(up.ok_or_else(|| missing("uptime_in_seconds"))?);
        // "everysec" may lose the last second, and with it a grant that somebody counts on.
        let durable = info.get("aof_enabled") == Some(&"1")
            && self.is_set("appendfsync", "always").await
            // Otherwise nothing is forced to disk while the file is rewritten or a snapshot taken.
            && self.is_set("no-appendfsync-on-rewrite", "no").await;
        // Known before the first vote: one that has to be sent again behind its script might come
        // after the release that undoes it.
        let scripts = [&script::VOTE_LOCK, &script::VOTE_ROOM, &script::LOCK_ALL];
        for script in scripts {
            link.load(script, &redis::Cmd::new()).await?;
        }
        let mut ask = redis::cmd("MGET");
        ask.arg(keys::FENCE).arg(keys::JOINED);
        let (counter, joined): (Option<u64>, Option<String>) = link.query(&ask).await?;
        Ok(Standing {
            run: run.to_owned(),
            up,
            durable,
            joined: joined.as_deref() == Some(run),
            counter,
        })
    }

    /// Whether a setting of the server has that value. Who may not ask cannot know.
    async fn is_set(&self, setting: &str, value: &str) -> bool {
        let mut ask = redis::cmd("CONFIG");
        ask.arg("GET").arg(setting);
        let told: Result<HashMap<String, String>, _> = self.redis.router.query(&ask).await;
        told.is_ok_and(|told| told.get(setting).is_some_and(|v| v == value))
    }
}

impl Voter for RedisVoter {
    fn store(&self) -> Arc<dyn Backend> {
        Arc::new(self.redis.clone())
    }

    fn connection(&self) -> u64 {
        self.redis.router.connection_number()
    }

    fn is_connected(&self) -> bool {
        self.redis.router.is_connected()
    }

    fn standing(&self) -> Pending<'_, Standing> {
        Box::pin(self.ask_standing())
    }

    fn time(&self) -> Pending<'_, i64> {
        Box::pin(async move {
            let told: (i64, i64) = self.redis.router.query(&redis::cmd("TIME")).await?;
            Ok(super::diagnose::micros(told))
        })
    }

    fn join(&self, run: String, floor: Fence) -> Pending<'_, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command.arg(script::VOTE_JOIN.digest()).arg(2);
            command.arg(keys::FENCE).arg(keys::JOINED);
            command.arg(run).arg(floor.get());
            let link = &self.redis.router;
            link.run::<Value>(&script::VOTE_JOIN, &command).await?;
            Ok(())
        })
    }

    fn vote(&self, ask: &AcquireRequest, proposal: Fence) -> Pending<'static, Acquired> {
        let recorded = ask.record_now || ask.share.weight > 1;
        let answer: Pending<'static, Value> = match ask.kind {
            Kind::Lock => {
                let vote = LockVote::acquire(ask, self.redis.router.channel(), proposal);
                Box::pin(self.locks.decide(vote))
            }
            _ => {
                let vote = RoomVote::acquire(ask, self.redis.router.channel());
                Box::pin(self.rooms.decide(vote))
            }
        };
        Box::pin(async move { acquired(answer.await?, recorded) })
    }

    fn vote_together(
        &self,
        asks: Vec<(AcquireRequest, Fence)>,
    ) -> Pending<'static, Vec<Result<Acquired>>> {
        let channel = self.redis.router.channel();
        let vote = |(ask, proposal): (AcquireRequest, Fence)| {
            let answer = self
                .locks
                .collect(LockVote::acquire(&ask, channel, proposal));
            (ask.record_now, answer)
        };
        let answers: Vec<_> = asks.into_iter().map(vote).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(answers.len());
            for (recorded, answer) in answers {
                let outcome = answer.await.and_then(|answer| acquired(answer, recorded));
                outcomes.push(outcome);
            }
            Ok(outcomes)
        })
    }

    fn vote_for_all(&self, asks: Vec<AcquireRequest>) -> Pending<'static, AcquiredAll> {
        let redis = self.redis.clone();
        // No counter is raised first (see [`LockVote::draws`]): that would take an answer before it is sent.
        let ask = async move { redis.acquire_all_locks(asks, FenceUse::None).await };
        // Unconstrained: a spent budget must not make the first poll stop short of the wire.
        Box::pin(tokio::task::unconstrained(ask))
    }

    fn confirm(&self, claim: &Renewal, proposal: Fence) -> Pending<'static, Confirmed> {
        let channel = self.redis.router.channel();
        let answer: Pending<'static, Value> = match claim.kind {
            Kind::Lock => {
                let vote = LockVote::confirm(claim, channel, proposal);
                Box::pin(self.locks.decide(vote))
            }
            _ => {
                let vote = RoomVote::confirm(claim, channel, proposal);
                Box::pin(self.rooms.decide(vote))
            }
        };
        Box::pin(async move {
            let answer = answer.await?;
            match &answer {
                Value::Int(0) => Ok(Confirmed::Gone),
                Value::Array(parts) => match parts.as_slice() {
                    [Value::Int(8), Value::Int(number)] => {
                        Ok(Confirmed::Held(Fence::new(*number as u64)))
                    }
                    [Value::Int(1), Value::Int(left), holder] => Ok(Confirmed::Waiting {
                        held_for: time_left(*left),
                        holder: String::from_utf8_lossy(bytes(holder).unwrap_or_default()).into(),
                    }),
                    _ => Err(unexpected_reply(&answer)),
                },
                _ => Err(unexpected_reply(&answer)),
            }
        })
    }

    fn line_up_again(
        &self,
        claim: &Renewal,
        number: Fence,
        proposal: Fence,
    ) -> Pending<'static, bool> {
        let channel = self.redis.router.channel();
        let answer: Pending<'static, Value> = match claim.kind {
            Kind::Lock => {
                let vote = LockVote::line_up_again(claim, channel, number, proposal);
                Box::pin(self.locks.decide(vote))
            }
            _ => {
                let vote = RoomVote::line_up_again(claim, channel, number, proposal);
                Box::pin(self.rooms.decide(vote))
            }
        };
        Box::pin(async move { Ok(answer.await? == Value::Int(1)) })
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'static, Vec<Result<Renewed>>> {
        let channel = self.redis.router.channel();
        let ask = |claim: Renewal| -> (Fence, Pending<'static, Value>) {
            let answer: Pending<'static, Value> = match claim.kind {
                Kind::Lock => Box::pin(self.locks.collect(LockVote::renew(&claim, channel))),
                _ => Box::pin(self.rooms.collect(RoomVote::renew(&claim, channel))),
            };
            (claim.fence, answer)
        };
        // All asked for before the first is awaited, so that they travel together.
        let answers: Vec<_> = claims.into_iter().map(ask).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(answers.len());
            for (fence, answer) in answers {
                outcomes.push(answer.await.and_then(|answer| renewed(&answer, fence)));
            }
            Ok(outcomes)
        })
    }

    fn release(
        &self,
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
    ) -> Pending<'static, Released> {
        let channel = self.redis.router.channel();
        let answer: Pending<'static, Value> = match kind {
            Kind::Lock => {
                let vote = LockVote::release(name, owner, claim, channel);
                Box::pin(self.locks.decide(vote))
            }
            _ => {
                let vote = RoomVote::release(kind, name, owner, claim, channel);
                Box::pin(self.rooms.decide(vote))
            }
        };
        Box::pin(async move { super::lock::released(answer.await?) })
    }

    fn break_lock(&self, name: Name) -> Pending<'static, Option<Holder>> {
        let answer = self.locks.decide(LockVote::break_lock(name));
        Box::pin(async move {
            let answer = answer.await?;
            match &answer {
                Value::Array(parts) => match parts.as_slice() {
                    [Value::Int(1), rest @ ..] => {
                        super::lock::holder(rest).ok_or_else(|| unexpected_reply(&answer))
                    }
                    _ => Err(unexpected_reply(&answer)),
                },
                _ => Err(unexpected_reply(&answer)),
            }
        })
    }
}

fn renewed(answer: &Value, fence: Fence) -> Result<Renewed> {
    match answer {
        Value::Int(1) => Ok(Renewed::Held { fence }),
        Value::Int(0) => Ok(Renewed::Gone),
        Value::Array(parts) => match parts.as_slice() {
            // The number that this node gave; the fence is what a majority gave.
            [Value::Int(7), Value::Int(_)] => Ok(Renewed::Held { fence }),
            [Value::Int(1), Value::Int(left)] => Ok(Renewed::Waiting {
                held_for: time_left(*left),
            }),
            _ => Err(unexpected_reply(answer)),
        },
        _ => Err(unexpected_reply(answer)),
    }
}

/// Both scripts answer alike, but for who is in the way.
fn acquired(answer: Value, recorded: bool) -> Result<Acquired> {
    let strange = || unexpected_reply(&answer);
    match &answer {
        Value::Int(number) if *number > 0 => Ok(Acquired::Granted {
            fence: Fence::new(*number as u64),
            recorded,
        }),
        Value::Array(parts) => match parts.as_slice() {
            [Value::Int(1), Value::Int(place), Value::Int(left)] => Ok(Acquired::Queued {
                ticket: Fence::new(*place as u64),
                held_for: time_left(*left),
            }),
            [
                Value::Int(2),
                owner,
                Value::Int(left),
                record,
                Value::Int(now),
            ] => {
                let owner = bytes(owner).ok_or_else(strange)?;
                let holder = super::record::holder(owner, *left, bytes(record), *now);
                Ok(Acquired::Busy(holder))
            }
            [Value::Int(what), Value::Int(number)] => {
                super::room::refusal(*what, *number as u32).ok_or_else(strange)
            }
            _ => Err(strange()),
        },
        _ => Err(strange()),
    }
}

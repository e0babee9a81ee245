//! A Redis or Valkey server as one node of a quorum.

mod node_client;

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::Value;

pub use self::node_client::{Confirmed, NodeClient, NodeStatus};
use super::address::{GrantOptions, StoreOptions, single_server};
use super::batch::Batcher;
use super::claim_command::{ClaimBatchers, ClaimCommand, ClaimReply, ReleasedClaim, is_recorded};
use super::claims::RedisClaims;
use super::connection::Connection;
use super::connector::Connector;
use super::errors::unexpected_reply;
use super::master_epoch::FenceUse;
use super::router::Router;
use super::{CAPABILITIES, Redis, script};
use windlass_core::error::{Error, ErrorKind, Result};
use windlass_core::name::Name;
use windlass_core::redact::redact;
use windlass_core::store::{
    AcquireRequest, Acquired, AcquiredAll, Backend, GrantListener, Holder, Kind, Pending, Released,
    Renewal, Renewed, WakeAddress,
};
use windlass_core::{Fence, Owner};

/// The connection to one server of a quorum.
#[derive(Debug)]
pub struct RedisNodeClient {
    redis: Redis,
    batchers: ClaimBatchers,
}

impl RedisNodeClient {
    /// Does not connect: the quorum decides what a node that cannot be reached means.
    pub fn new(
        url: &str,
        call_timeout: Duration,
        id: u64,
        listener: Weak<dyn GrantListener>,
    ) -> Result<RedisNodeClient> {
        // A node's replicas do not count: the other nodes do.
        let (client, StoreOptions { keys, .. }) = single_server(url)?;
        let connector = Connector::Server(client);
        let connection = Connection::new(connector, keys, call_timeout, id, listener);
        let router = Arc::new(Router::Single(connection));
        Ok(RedisNodeClient {
            batchers: ClaimBatchers::start_on_quorum_node(&router),
            redis: Redis {
                address: redact(url).into(),
                capabilities: CAPABILITIES,
                grants: GrantOptions::default(),
                claims: RedisClaims::new(Arc::clone(&router)),
                limits: Batcher::start(Arc::clone(&router), &script::LIMIT),
                topics: Arc::default(),
                router,
            },
        })
    }

    fn channel(&self) -> &Arc<str> {
        self.redis.router.wake_channel()
    }

    async fn read_status(&self) -> Result<NodeStatus> {
        let router = &self.redis.router;
        let text: String = router.query(&redis::cmd("INFO")).await?;
        let info: HashMap<&str, &str> = text
            .lines()
            .filter_map(|line| line.trim_end().split_once(':'))
            .collect();
        let error = |message: String| Error::new(ErrorKind::Store, "call", message);
        let missing = |field: &str| error(format!("the server's INFO has no {field}"));
        if let Some(role) = info.get("role").filter(|role| **role != "master") {
            let message = format!("it is a {role}, and a quorum needs independent primaries");
            return Err(error(message));
        }
        let run = *info.get("run_id").ok_or_else(|| missing("run_id"))?;
        let up = info.get("uptime_in_seconds").and_then(|s| s.parse().ok());
        let up = Duration::from_secs(up.ok_or_else(|| missing("uptime_in_seconds"))?);
        // "everysec" may lose the last second, and with it a grant that a client counts on.
        let durable = info.get("aof_enabled") == Some(&"1")
            && self.is_set("appendfsync", "always").await
            // Otherwise nothing is forced to disk while the file is rewritten or a snapshot taken.
            && self.is_set("no-appendfsync-on-rewrite", "no").await;
        // Loaded before the first request: one that has to be sent again behind its script might
        // arrive after the release that undoes it.
        let scripts = [
            &script::QUORUM_NODE_LOCK,
            &script::QUORUM_NODE_POOL,
            &script::LOCK_ALL,
        ];
        for script in scripts {
            router.load(script, &redis::Cmd::new()).await?;
        }
        let mut read = redis::cmd("MGET");
        read.arg(router.keys().fence()).arg(router.keys().joined());
        let (counter, joined): (Option<u64>, Option<String>) = router.query(&read).await?;
        Ok(NodeStatus {
            run: run.to_owned(),
            up,
            durable,
            joined: joined.as_deref() == Some(run),
            counter,
        })
    }

    /// Whether a setting of the server is known to have that value: a user may lack the permission
    /// to read it.
    async fn is_set(&self, setting: &str, value: &str) -> bool {
        let mut read = redis::cmd("CONFIG");
        read.arg("GET").arg(setting);
        let found: Result<HashMap<String, String>, _> = self.redis.router.query(&read).await;
        found.is_ok_and(|found| found.get(setting).is_some_and(|v| v == value))
    }
}

impl NodeClient for RedisNodeClient {
    fn store(&self) -> Arc<dyn Backend> {
        Arc::new(self.redis.clone())
    }

    fn connection(&self) -> u64 {
        self.redis.router.connection_number()
    }

    fn is_connected(&self) -> bool {
        self.redis.router.is_connected()
    }

    fn status(&self) -> Pending<'_, NodeStatus> {
        Box::pin(self.read_status())
    }

    fn time(&self) -> Pending<'_, i64> {
        Box::pin(async move {
            let time: (i64, i64) = self.redis.router.query(&redis::cmd("TIME")).await?;
            Ok(super::diagnose::micros(time))
        })
    }

    fn join(&self, run: String, floor: Fence) -> Pending<'_, ()> {
        Box::pin(async move {
            let script = &script::QUORUM_NODE_JOIN;
            let mut command = redis::cmd("EVALSHA");
            command.arg(script.digest()).arg(2);
            let keys = self.redis.router.keys();
            command.arg(keys.fence()).arg(keys.joined());
            command.arg(run).arg(floor.get());
            self.redis.router.run::<Value>(script, &command).await?;
            Ok(())
        })
    }

    fn acquire(&self, request: &AcquireRequest, proposal: Fence) -> Pending<'static, Acquired> {
        let channel = self.channel();
        Box::pin(
            self.batchers
                .acquire(request.clone(), channel, Some(proposal)),
        )
    }

    fn acquire_each(
        &self,
        requests: Vec<(AcquireRequest, Fence)>,
    ) -> Pending<'static, Vec<Result<Acquired>>> {
        let acquire = |(request, proposal): (AcquireRequest, Fence)| {
            let recorded = is_recorded(&request);
            let command = ClaimCommand::acquire(request, self.channel(), Some(proposal));
            (recorded, self.batchers.collect(command))
        };
        let replies: Vec<_> = requests.into_iter().map(acquire).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(replies.len());
            for (recorded, reply) in replies {
                outcomes.push(reply.await.and_then(|reply| reply.acquired(recorded)));
            }
            Ok(outcomes)
        })
    }

    fn acquire_all(&self, requests: Vec<AcquireRequest>) -> Pending<'static, AcquiredAll> {
        let claims = self.redis.claims.clone();
        // No counter is checked first: that would take a reply before the request is sent.
        let call = async move { claims.acquire_all_locks(requests, FenceUse::None).await };
        // Unconstrained: a spent budget must not stop the first poll short of the wire.
        Box::pin(tokio::task::unconstrained(call))
    }

    fn confirm(&self, claim: &Renewal, proposal: Fence) -> Pending<'static, Confirmed> {
        let command = ClaimCommand::confirm(claim.clone(), self.channel(), proposal);
        let reply = self.batchers.decide(command);
        Box::pin(async move {
            match reply.await? {
                ClaimReply::Held(number) => Ok(Confirmed::Held(number)),
                ClaimReply::Waiting {
                    recheck_after,
                    holder,
                } => Ok(Confirmed::Waiting {
                    recheck_after,
                    holder: holder.unwrap_or_default(),
                }),
                ClaimReply::Number(0) => Ok(Confirmed::Gone),
                other => Err(unexpected_reply(&other)),
            }
        })
    }

    fn requeue(&self, claim: &Renewal, number: Fence, proposal: Fence) -> Pending<'static, bool> {
        let mut claim = claim.clone();
        claim.fence = number;
        let command = ClaimCommand::requeue(claim, self.channel(), proposal);
        let reply = self.batchers.decide(command);
        Box::pin(async move { reply.await?.done() })
    }

    fn renew(&self, claims: Vec<Renewal>) -> Pending<'static, Vec<Result<Renewed>>> {
        let renew = |claim: Renewal| {
            let fence = claim.fence;
            let command = ClaimCommand::renew(claim, self.channel());
            (fence, self.batchers.collect(command))
        };
        // All join a batch before the first reply is awaited, so that they share one call.
        let replies: Vec<_> = claims.into_iter().map(renew).collect();
        Box::pin(async move {
            let mut outcomes = Vec::with_capacity(replies.len());
            for (fence, reply) in replies {
                let renewed = reply.await.and_then(|reply| reply.renewed(fence));
                outcomes.push(renewed.map(|renewed| match renewed {
                    // The node has a number of its own; the fence is what a majority gave.
                    Renewed::Held { .. } => Renewed::Held { fence },
                    other => other,
                }));
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
        let claim = ReleasedClaim::new(claim, self.channel());
        let command = ClaimCommand::release(kind, name, owner, claim);
        let reply = self.batchers.decide(command);
        Box::pin(async move { reply.await?.released() })
    }

    fn break_lock(&self, name: Name) -> Pending<'static, Option<Holder>> {
        let reply = self.batchers.decide(ClaimCommand::break_lock(name));
        Box::pin(async move { reply.await?.former_holder() })
    }
}

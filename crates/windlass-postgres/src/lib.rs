//! The `postgres://` store: tables and functions in a schema of a PostgreSQL database.
//!
//! Every decision about a claim is a PL/pgSQL function (`sql/`), which locks the row of the name,
//! decides as the [rules](windlass_core::rules) do, and notifies waiters when the transaction
//! commits. Limiters, counters, records of `once`, permissions and Bloom filters are decided by the
//! rules in this process, within a transaction that locks their rows (`state`, `transaction`).
//! Nothing depends on a session: a pooler may run each transaction on another connection.
//!
//! `connection` sends statements in order, and batches decisions; `wake_up` listens.

mod address;
mod batch;
mod bloom;
mod claims;
mod connection;
mod connector;
mod counter;
mod diagnose;
#[cfg(test)]
mod equivalence;
mod errors;
mod gate;
mod inventory;
mod latch;
mod limit;
mod notifications;
mod once;
mod permissions;
mod schema;
mod seen;
mod state;
mod topic;
mod transaction;
mod wake_up;

use std::sync::{Arc, Weak};
use std::time::Duration;

use self::address::PostgresAddress;
use self::claims::PostgresClaims;
use self::connection::Lanes;
use self::connector::Connector;
use self::gate::PostgresGates;
use self::inventory::PostgresInventory;
use self::latch::PostgresLatches;
use self::notifications::PostgresNotifications;
use self::wake_up::WakeUps;
use windlass_core::FenceStrength;
use windlass_core::error::{Error, Result};
use windlass_core::redact::redact;
use windlass_core::store::{
    Backend, Capabilities, ClaimStore, Finding, GateStore, GrantListener, InventoryStore,
    LatchStore, NotificationStore, Pending,
};

/// The schema of Windlass's tables, unless `?schema=` names another one.
pub const DEFAULT_SCHEMA: &str = address::DEFAULT_SCHEMA;

/// The SQL that creates the tables and functions in this schema, for operators who run migrations
/// themselves. With a version, the SQL that brings a schema of that version up to date.
///
/// # Errors
///
/// If the name of the schema is invalid, or there is no such version.
pub fn migrations(schema: &str, from: Option<u32>) -> Result<String> {
    address::check_schema(schema)?;
    let from = from.unwrap_or(0);
    if from > schema::VERSION.unsigned_abs() {
        let message = format!(
            "there is no version {from}: the newest is {}",
            schema::VERSION
        );
        return Err(Error::invalid("print migrations", message));
    }
    Ok(schema::migrations(schema, from.cast_signed()))
}

/// The `postgres://` backend of one coordinator.
#[derive(Debug)]
pub struct Postgres {
    address: String,
    lanes: Lanes,
    wake_ups: Arc<WakeUps>,
    limit: Duration,
    client: u64,
}

impl Postgres {
    /// Connects to the server that the URL names. Creates the schema, or brings it up to date.
    ///
    /// # Errors
    ///
    /// If the server cannot be reached or rejects the credentials, or if the schema is missing and
    /// the role may not create it, or it is that of a newer version.
    pub async fn open(
        url: &str,
        call_timeout: Duration,
        client: u64,
        grants: Weak<dyn GrantListener>,
    ) -> Result<Arc<dyn Backend>> {
        let shown = redact(url);
        let failed =
            |e: Error| -> Error { e.with_operation("connect").with_backend(shown.to_string()) };
        let address = PostgresAddress::parse(url).map_err(failed)?;
        let connector = Connector::new(address.config.clone(), call_timeout);
        let first = connector.connect(false).await.map_err(failed)?;
        // Creating the schema takes longer than a decision.
        let ensured = schema::ensure(&first.client, &address.schema);
        let ensured = tokio::time::timeout(call_timeout * 4, ensured).await;
        let late = |_| {
            Err(errors::unreachable(
                "the schema could not be checked in time",
            ))
        };
        ensured.unwrap_or_else(late).map_err(failed)?;
        let listen = address.listen.unwrap_or_else(|| address.config.clone());
        let listener = Connector::new(listen, call_timeout);
        let lanes = Lanes::start(
            &connector,
            &address.schema,
            address.connections,
            call_timeout,
            first,
        );
        let wake_ups = WakeUps::new(listener, lanes.clone(), client, grants);
        Ok(Arc::new(Postgres {
            lanes,
            wake_ups: Arc::new(wake_ups),
            address: shown,
            limit: call_timeout,
            client,
        }))
    }
}

impl Postgres {
    fn subscriptions(&self) -> PostgresNotifications {
        PostgresNotifications {
            wake_ups: Arc::clone(&self.wake_ups),
            schema: self.lanes.schema().into(),
            limit: self.limit,
        }
    }
}

impl Backend for Postgres {
    fn address(&self) -> &str {
        &self.address
    }

    fn capabilities(&self) -> Capabilities {
        CAPABILITIES
    }

    fn claims(&self) -> Arc<dyn ClaimStore> {
        Arc::new(PostgresClaims {
            lanes: self.lanes.clone(),
            wake_ups: Arc::clone(&self.wake_ups),
        })
    }

    fn gates(&self) -> Arc<dyn GateStore> {
        Arc::new(PostgresGates {
            lanes: self.lanes.clone(),
        })
    }

    fn latches(&self) -> Arc<dyn LatchStore> {
        Arc::new(PostgresLatches {
            lanes: self.lanes.clone(),
        })
    }

    fn notifications(&self) -> Arc<dyn NotificationStore> {
        Arc::new(self.subscriptions())
    }

    fn inventory(&self) -> Arc<dyn InventoryStore> {
        Arc::new(PostgresInventory {
            lanes: self.lanes.clone(),
        })
    }

    fn counters(&self) -> Arc<dyn windlass_core::store::counter::CounterStore> {
        Arc::new(counter::PostgresCounters {
            lanes: self.lanes.clone(),
        })
    }

    fn limits(&self) -> Arc<dyn windlass_core::store::limit::LimitStore> {
        Arc::new(limit::PostgresLimits {
            lanes: self.lanes.clone(),
        })
    }

    fn blooms(&self) -> Arc<dyn windlass_core::store::BloomStore> {
        Arc::new(bloom::PostgresBlooms {
            lanes: self.lanes.clone(),
        })
    }

    fn permissions(&self) -> Arc<dyn windlass_core::store::PermissionStore> {
        Arc::new(permissions::PostgresPermissions {
            lanes: self.lanes.clone(),
        })
    }

    fn seen(&self) -> Arc<dyn windlass_core::store::SeenStore> {
        Arc::new(seen::PostgresSeen {
            lanes: self.lanes.clone(),
        })
    }

    fn onces(&self) -> Arc<dyn windlass_core::store::OnceStore> {
        Arc::new(once::PostgresOnces {
            lanes: self.lanes.clone(),
        })
    }

    fn topics(&self) -> Arc<dyn windlass_core::store::TopicStore> {
        Arc::new(topic::PostgresTopics {
            lanes: self.lanes.clone(),
            notifications: self.subscriptions(),
            client: self.client,
        })
    }

    fn diagnose(&self) -> Pending<'_, Vec<Finding>> {
        Box::pin(diagnose::diagnose(&self.lanes, &self.wake_ups))
    }
}

const CAPABILITIES: Capabilities = Capabilities::new(
    "postgres",
    FenceStrength::SingleNode,
    "all that reach the server",
    "locks survive restarts; a promoted standby may lack the last grants unless replication is \
     synchronous, but fences keep growing",
);

//! [`connect()`] and [`Options`]: how a program connects to a store.

use std::time::Duration;

use tokio::runtime::Handle;

use crate::coordinator::Coordinator;
use crate::lease::{Clock, Drift, Keeper};
use crate::store_url;
use crate::telemetry::{MetricOptions, Telemetry};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::store::Replicas;

/// Connects to the store that `url` names, with the default options.
///
/// | URL | where the state is |
/// |---|---|
/// | `memory:` | this process, for this connection alone; `memory:NAME` is shared within the process |
/// | `file:PATH` | a SQLite file, for the processes of one machine |
/// | `redis://HOST:PORT/DB` | one Redis or Valkey server; `rediss://` for TLS, `redis+unix://` for a socket |
/// | `redis+sentinel://HOST,HOST/SERVICE` | the master that sentinels name; `rediss+sentinel://` for TLS |
/// | `redis+cluster://HOST,HOST` | a Redis Cluster; `rediss+cluster://` for TLS |
/// | `redlock://HOST,HOST,HOST` | a majority of independent Redis servers; coordination only |
/// | `etcd://HOST:PORT,HOST:PORT` | an etcd cluster; coordination only; `etcds://` for TLS |
/// | `zookeeper://HOST:PORT,HOST:PORT/CHROOT` | a ZooKeeper ensemble; coordination only; `zookeeper+tls://` for TLS |
///
/// ```
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// let w = windlass::connect("memory:").await?;
/// let guard = w.lock("invoice/42").acquire().await?;
/// # drop(guard); Ok(()) }
/// ```
///
/// # Errors
///
/// If the URL is invalid, the store's feature is not compiled in, the store cannot be reached, or there is no tokio
/// runtime.
pub async fn connect(url: &str) -> Result<Coordinator> {
    Options::new().connect(url).await
}

/// Options of a connection.
#[derive(Clone, Debug)]
#[must_use = "options do nothing until connect is called"]
pub struct Options {
    pub(crate) namespace: Option<String>,
    pub(crate) call_timeout: Duration,
    pub(crate) replicas: Option<Replicas>,
    pub(crate) drift: Option<f64>,
    pub(crate) clock: Clock,
    pub(crate) metrics: MetricOptions,
}

impl Options {
    /// The limit on one round trip, unless another [call timeout](Options::call_timeout) is set.
    pub const DEFAULT_CALL_TIMEOUT: Duration = Duration::from_secs(2);

    /// The default options.
    pub fn new() -> Options {
        Options {
            namespace: None,
            call_timeout: Options::DEFAULT_CALL_TIMEOUT,
            replicas: None,
            drift: None,
            clock: Clock::system(),
            metrics: MetricOptions::default(),
        }
    }

    /// A prefix for all names, so that several programs can share a store: `NS:name`.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Options {
        self.namespace = Some(namespace.into());
        self
    }

    /// Prefixes the namespace with another one: `OUTER:NS:name`.
    pub fn within(mut self, outer: &str) -> Options {
        self.namespace = Some(match self.namespace {
            Some(namespace) => format!("{outer}:{namespace}"),
            None => outer.to_owned(),
        });
        self
    }

    /// Every grant counts only when `count` replicas have acknowledged it within `timeout`; otherwise it
    /// is released, and acquiring fails.
    ///
    /// For `redis://`, `redis+sentinel://` and `redis+cluster://`; acquiring fails on any other store. This narrows
    /// the window in which a failover can lose a grant, and does not close it: see [`Replicas`]. Overrides the URL
    /// (`?replicas=1&replicas_timeout=100ms`).
    pub fn replicas(mut self, count: u32, timeout: Duration) -> Options {
        self.replicas = Some(Replicas {
            count,
            timeout,
            on_disk: false,
        });
        self
    }

    /// As [`replicas`](Options::replicas), and the grant must be on the disks of the master and of `count` replicas.
    ///
    /// For Redis 7.2 or later, or Valkey, with an append-only file.
    pub fn replicas_on_disk(mut self, count: u32, timeout: Duration) -> Options {
        self.replicas = Some(Replicas {
            count,
            timeout,
            on_disk: true,
        });
        self
    }

    /// The limit on one round trip; 2 s by default. When it is reached, the outcome is unknown: what may have been
    /// granted is released.
    pub fn call_timeout(mut self, limit: Duration) -> Options {
        self.call_timeout = limit;
        self
    }

    /// The clock drift to allow for, as a fraction of the TTL: more than 0 and less than 0.5; 0.01 by default.
    ///
    /// A claim counts as lost that fraction of its TTL, and 2 ms, before its TTL ends. Overrides the URL
    /// (`redlock://…?drift=0.02`).
    pub fn drift(mut self, factor: f64) -> Options {
        self.drift = Some(factor);
        self
    }

    /// Uses another clock, for tests on `memory:`.
    pub fn clock(mut self, clock: Clock) -> Options {
        self.clock = clock;
        self
    }

    /// Whether this connection records metrics; true by default. An exporter must be installed before connecting.
    #[cfg(feature = "metrics")]
    pub fn metrics(mut self, on: bool) -> Options {
        self.metrics.off = !on;
        self
    }

    /// Gives metrics of locks and other leases a label `name`: what `label` returns for the name, without the
    /// namespace. By default there is none.
    ///
    /// Each label is a series of its own, in this process and in the monitoring system, so their number is bounded:
    /// once a connection has used `max` labels, all further ones become `other`. Return a prefix, not a name with an
    /// identifier in it. Keys of limiters and of idempotent executions are never labels.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// let options = windlass::Options::new()
    ///     .metric_name_label(20, |name| name.split('/').next().unwrap_or_default());
    /// let w = options.connect("memory:").await?;
    /// let guard = w.lock("invoice/42").acquire().await?; // name="invoice"
    /// # drop(guard); Ok(()) }
    /// ```
    #[cfg(feature = "metrics")]
    pub fn metric_name_label(
        mut self,
        max: usize,
        label: impl Fn(&str) -> &str + Send + Sync + 'static,
    ) -> Options {
        let label = std::sync::Arc::new(label);
        self.metrics.names = Some(crate::telemetry::NameLabels { max, label });
        self
    }

    /// Connects to the store that `url` names.
    ///
    /// # Errors
    ///
    /// See [`connect`](crate::connect).
    pub async fn connect(self, url: &str) -> Result<Coordinator> {
        if let Some(namespace) = &self.namespace {
            Name::new("use the namespace", None, namespace)?;
        }
        let drift = self.drift.map(Drift::new).transpose()?;
        let runtime = Handle::try_current().map_err(|_| {
            Error::invalid("connect", "there is no tokio runtime here").with_hint(
                "call it in a function with #[tokio::main], or in tokio's Runtime::block_on",
            )
        })?;
        let keeper = Keeper::start(self.clock, self.call_timeout, runtime);
        let backend = store_url::open(url, &keeper, drift).await?;
        keeper.store_opened(
            drift.or_else(|| backend.drift()).unwrap_or_default(),
            Telemetry::new(backend.capabilities().kind, &self.metrics),
            backend.wake_up_policy(),
        );
        Ok(Coordinator::new(
            backend,
            keeper,
            self.namespace,
            self.replicas,
        ))
    }
}

impl Default for Options {
    fn default() -> Options {
        Options::new()
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;
    use windlass_core::error::ErrorKind;

    #[test]
    fn missing_runtime_is_an_error() {
        let mut cx = Context::from_waker(Waker::noop());
        let Poll::Ready(Err(error)) = pin!(connect("memory:")).poll(&mut cx) else {
            panic!("connected without a runtime");
        };
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("no tokio runtime"), "{error}");
    }
}

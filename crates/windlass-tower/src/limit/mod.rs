//! [`LimitLayer`]: a rate limit shared by all instances of a service.

mod charge;
mod plan;
mod policy;
mod stage;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{Response, StatusCode};
use tower_layer::Layer;
use windlass::{Coordinator, OnStoreError};

use self::charge::ByStatus;
use self::plan::{LimiterOptions, Plan, Plans};
use crate::key::{Everyone, LayerKey, OnMissingKey, RequestKey};
use crate::maybe_ready::MaybeReady;
use crate::protected::Protected;
use crate::rejection::{Rejection, Respond};

pub use self::charge::Charge;
pub use self::policy::{Policies, Policy};

/// Limits the rate of requests, over all instances that share the store.
///
/// ```
/// use std::time::Duration;
/// use windlass::{OnStoreError, Quota};
/// use windlass_tower::{ClientIp, Header, LimitLayer, Path, Policy};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
/// # let w = windlass::connect("memory:").await?;
/// let by_address = LimitLayer::new(&w, "api", Quota::per_second(20).burst(40)).key(ClientIp::new());
///
/// let by_account = LimitLayer::new(&w, "accounts", [
///     Policy::new("burst", Quota::per_second(10)),
///     Policy::new("daily", Quota::per_day(5_000)),
/// ])
/// .key((Header::named("x-api-key"), Path))
/// .on_store_error(OnStoreError::Local);
/// # Ok(()) }
/// ```
///
/// # What the client sees
///
/// Every response has the headers `RateLimit-Policy` (`"burst";q=100;w=60`) and `RateLimit` (`"burst";r=50;t=30`) of
/// draft-ietf-httpapi-ratelimit-headers. Of several policies, `RateLimit` shows the one with the fewest units left. A
/// denied request gets 429, `Retry-After` in whole seconds, rounded up, and a problem document. A request that can
/// never be allowed, because its cost exceeds the limit, gets 429 without `Retry-After`.
///
/// # What the handler sees
///
/// The request extension [`Decision`](windlass::Decision). It may charge more with the response extension [`Charge`].
///
/// # Without a key, without the store
///
/// Requests [without a key](OnMissingKey) share one by default. If the store cannot be reached, the request gets 503
/// unless [`on_store_error`](LimitLayer::on_store_error) says otherwise.
///
/// # Cancel safety
///
/// If the call is dropped before the decision, the cost may or may not have been taken.
#[derive(Clone)]
#[must_use = "a layer does nothing until a service is wrapped in it"]
pub struct LimitLayer {
    config: Arc<Config>,
}

#[derive(Clone)]
struct Config {
    options: LimiterOptions,
    plan: Arc<Plan>,
    policies_fn: Option<PoliciesFn>,
    plans: Arc<Plans>,
    key: LayerKey,
    cost: Option<CostFn>,
    charge_status: Option<ByStatus>,
    bytes_per_unit: Option<u64>,
    shadow_denied: Arc<AtomicU64>,
    headers: bool,
    x_headers: bool,
    respond: Option<Respond>,
}

type PoliciesFn = Arc<dyn Fn(&Parts) -> MaybeReady<Option<Policies>> + Send + Sync>;
type CostFn = Arc<dyn Fn(&Parts) -> u64 + Send + Sync>;

impl LimitLayer {
    /// Limits under the name of a limiter: instances and layers with the same name share it.
    ///
    /// All requests share one key until a [key](LimitLayer::key) is set.
    ///
    /// # Panics
    ///
    /// If there is no policy, or a quota or the name is invalid: every request would get 503. Check what comes from a
    /// configuration with [`Limiter::validate`](windlass::Limiter::validate) before.
    pub fn new(w: &Coordinator, name: &str, policies: impl Into<Policies>) -> LimitLayer {
        let options = LimiterOptions {
            coordinator: w.clone(),
            name: name.to_owned(),
            leased: false,
            shadow: false,
            on_store_error: None,
            call_timeout: None,
        };
        let plan = Plan::new(&options, policies.into());
        if let Err(error) = plan.limiter.validate() {
            panic!("the limit {name:?} cannot be used: {error}");
        }
        LimitLayer {
            config: Arc::new(Config {
                plan: Arc::new(plan),
                options,
                policies_fn: None,
                plans: Arc::default(),
                key: LayerKey::new(Everyone, OnMissingKey::Share),
                cost: None,
                charge_status: None,
                bytes_per_unit: None,
                shadow_denied: Arc::default(),
                headers: true,
                x_headers: false,
                respond: None,
            }),
        }
    }

    fn with(mut self, change: impl FnOnce(&mut Config)) -> LimitLayer {
        change(Arc::make_mut(&mut self.config));
        self
    }

    fn with_options(self, change: impl FnOnce(&mut LimiterOptions)) -> LimitLayer {
        self.with(|config| {
            change(&mut config.options);
            let policies = config.plan.policies.clone();
            config.plan = Arc::new(Plan::new(&config.options, policies));
            config.plans = Arc::default();
        })
    }

    /// What the key of a request is made of.
    pub fn key(self, key: impl RequestKey) -> LimitLayer {
        self.with(|config| config.key.set(key))
    }

    /// What happens with a request that has no key; they share one by default.
    pub fn on_missing_key(self, policy: OnMissingKey) -> LimitLayer {
        self.with(|config| config.key.on_missing = policy)
    }

    /// Chooses the policies by the request, such as by the plan of a customer; `None` for those that the layer was
    /// made with. The future must not borrow from the request.
    ///
    /// A key keeps what it has used when its policies change.
    pub fn policies_fn<F, Fut>(self, policies: F) -> LimitLayer
    where
        F: Fn(&Parts) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Option<Policies>> + Send + 'static,
    {
        let policies = move |parts: &Parts| MaybeReady::later(policies(parts));
        self.with(|config| config.policies_fn = Some(Arc::new(policies)))
    }

    /// Decides in this process, from tokens that are prefetched from the store: see
    /// [`LeasedLimiter`](windlass::LeasedLimiter).
    pub fn leased(self) -> LimitLayer {
        self.with_options(|options| options.leased = true)
    }

    /// What a request costs before it is handled; 1 by default. Only this cost bounds what runs at once.
    ///
    /// A cost of 0 takes nothing, and lets the request through while a unit is left: for limits that are charged after
    /// the response. All requests that arrive before the first of them is charged are let through, so a client that
    /// sends them in parallel gets beyond the limit. Where that matters, as for guesses of a password, take the cost
    /// before.
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> LimitLayer {
        self.with(|config| config.cost = Some(Arc::new(cost)))
    }

    /// What a request is charged after its response, by the status, beside its [cost](LimitLayer::cost): to make
    /// failures dearer, for example.
    ///
    /// A request that is interrupted (the client disconnects, the handler panics, a timeout drops it, the inner service
    /// fails) is charged as status 499, so the function should not be 0 for it where going away must not pay.
    ///
    /// The status of a gRPC error without a body counts as the HTTP status that it corresponds to. One in the trailers,
    /// after a body, is not seen: such a response has status 200.
    ///
    /// The charge is sent in the background: requests that run meanwhile were let through without it. A token bucket
    /// goes into debt for what it does not have, by at most 16 times the limit. A window, and a bucket that is not
    /// refilled, are emptied. Several policies are charged together, each by as much as the one that has the least to
    /// give: beside a window, a bucket has no debt. See [`Limiter::charge`](windlass::Limiter::charge).
    pub fn charge_status(
        self,
        units: impl Fn(StatusCode) -> u64 + Send + Sync + 'static,
    ) -> LimitLayer {
        self.with(|config| config.charge_status = Some(Arc::new(units)))
    }

    /// Charges one unit for each `bytes_per_unit` bytes of the response body, begun ones included, when the body ends
    /// or is dropped.
    ///
    /// # Panics
    ///
    /// If `bytes_per_unit` is 0.
    pub fn charge_bytes(self, bytes_per_unit: u64) -> LimitLayer {
        assert!(bytes_per_unit > 0, "a unit has at least one byte");
        self.with(|config| config.bytes_per_unit = Some(bytes_per_unit))
    }

    /// Decides and counts, but lets every request through, without headers, and without the extension
    /// [`Decision`](windlass::Decision): to try a limit out beside the limits that are enforced. Refusals are logged, and
    /// counted in [`shadow_denied`](LimitLayer::shadow_denied); in the metrics, the decisions are `shadow_allowed` and
    /// `shadow_denied`.
    ///
    /// If the store cannot be reached, requests do not wait for it, as with [`OnStoreError::Allow`], unless
    /// [`on_store_error`](LimitLayer::on_store_error) says otherwise.
    pub fn shadow(self) -> LimitLayer {
        self.with_options(|options| options.shadow = true)
    }

    /// How many requests a layer in [shadow](LimitLayer::shadow) mode would have denied, by all its clones.
    pub fn shadow_denied(&self) -> u64 {
        self.config.shadow_denied.load(Ordering::Relaxed)
    }

    /// What to decide when the store cannot be reached; by default the request gets 503.
    pub fn on_store_error(self, fallback: OnStoreError) -> LimitLayer {
        self.with_options(|options| options.on_store_error = Some(fallback))
    }

    /// The limit on one round trip to the store: see [`Limiter::call_timeout`](windlass::Limiter::call_timeout).
    pub fn call_timeout(self, limit: Duration) -> LimitLayer {
        self.with_options(|options| options.call_timeout = Some(limit))
    }

    /// Also sends `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (in seconds from now).
    pub fn x_ratelimit_headers(self) -> LimitLayer {
        self.with(|config| config.x_headers = true)
    }

    /// Sends no `RateLimit` and `RateLimit-Policy`.
    pub fn without_headers(self) -> LimitLayer {
        self.with(|config| config.headers = false)
    }

    /// Makes the response to a refused request. `Retry-After` and the headers of the limit are added to it.
    pub fn reject_with(
        self,
        respond: impl Fn(&Rejection) -> Response<Bytes> + Send + Sync + 'static,
    ) -> LimitLayer {
        self.with(|config| config.respond = Some(Arc::new(respond)))
    }
}

impl<S> Layer<S> for LimitLayer {
    type Service = Protected<LimitLayer, S>;

    fn layer(&self, inner: S) -> Self::Service {
        Protected::new(self.clone(), inner)
    }
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer")
            .field("name", &self.config.options.name)
            .field("policies", &self.config.plan.policies)
            .finish_non_exhaustive()
    }
}

//! [`LimitLayer`]: a rate limit shared by all instances of a service.

mod charge;
mod plan;
mod policy;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response, StatusCode};
use tower_layer::Layer;
use windlass::{Basis, Coordinator, Decision, OnStoreError, Quota};

use self::charge::{ByStatus, ChargeBytes, INTERRUPTED};
use self::plan::{LimiterOptions, Plan, Plans};
use crate::BoxError;
use crate::body::Body;
use crate::key::{Everyone, LayerKey, OnMissingKey, RequestKey};
use crate::maybe_ready::MaybeReady;
use crate::protected::{Entered, Protected, Stage, sealed};
use crate::rejection::{Protocol, Rejection, RejectionKind, Respond, whole_seconds};

pub use self::charge::Charge;
pub use self::policy::{Policies, Policy};

const TOO_DEAR: &str = "the request costs more than the limit allows at once";
static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

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
/// The request extension [`Decision`]. It may charge more with the response extension [`Charge`].
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
    shadow: bool,
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
    pub fn new(w: &Coordinator, name: &str, policies: impl Into<Policies>) -> LimitLayer {
        let options = LimiterOptions {
            coordinator: w.clone(),
            name: name.to_owned(),
            leased: false,
            on_store_error: None,
            call_timeout: None,
        };
        LimitLayer {
            config: Arc::new(Config {
                plan: Arc::new(Plan::new(&options, policies.into())),
                options,
                policies_fn: None,
                plans: Arc::default(),
                key: LayerKey::new(Everyone, OnMissingKey::Share),
                cost: None,
                charge_status: None,
                bytes_per_unit: None,
                shadow: false,
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

    /// What requests are told apart by.
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
    /// The charge is sent in the background: requests that run meanwhile were let through without it. A token bucket
    /// goes into debt for what it does not have, by at most 16 times the limit for each request. A window, and a bucket
    /// that is not refilled, are emptied.
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

    /// Decides and counts, but lets every request through, without headers, and without the extension [`Decision`]: to
    /// try a limit out beside the limits that are enforced. Refusals are logged, and counted in
    /// [`shadow_denied`](LimitLayer::shadow_denied).
    pub fn shadow(self) -> LimitLayer {
        self.with(|config| config.shadow = true)
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

impl Config {
    fn plan(&self, policies: Option<Policies>) -> Arc<Plan> {
        match policies {
            Some(policies) => self.plans.get(&self.options, policies),
            None => Arc::clone(&self.plan),
        }
    }

    /// Refuses a request before the limiter decides; in shadow mode, counts it and lets it through.
    fn refuse<B>(&self, parts: Parts, body: B, rejection: &Rejection) -> Entered<B, LimitHeld> {
        if self.shadow {
            self.count_denied(&rejection.detail);
            return exempt(parts, body);
        }
        let protocol = Protocol::of(&parts.method, &parts.headers);
        Entered::Answer(rejection.response(self.respond.as_ref(), protocol))
    }

    fn count_denied(&self, reason: &str) {
        self.shadow_denied.fetch_add(1, Ordering::Relaxed);
        let limiter = &self.options.name;
        tracing::info!(limiter, reason, "a limit in shadow mode would refuse");
    }

    /// The cost, unless no quota can ever allow it.
    fn checked_cost(&self, parts: &Parts) -> Result<u64, Rejection> {
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        match cost <= Quota::MAX_UNITS {
            true => Ok(cost),
            false => Err(Rejection::new(RejectionKind::Limited, TOO_DEAR)),
        }
    }

    /// What a request with this status is charged.
    fn charge_for(&self, status: u16) -> u64 {
        let status = StatusCode::from_u16(status).expect("a status has three digits");
        self.charge_status.as_ref().map_or(0, |units| units(status))
    }

    fn conclude<B>(
        &self,
        request: (Parts, B),
        plan: Arc<Plan>,
        key: String,
        decision: windlass::Result<Decision>,
    ) -> Entered<B, LimitHeld> {
        let (mut parts, body) = request;
        let decision = match decision {
            Ok(decision) => Some(decision),
            Err(error) if self.shadow => {
                tracing::warn!(%error, "a limit in shadow mode could not be decided");
                None
            }
            Err(error) => return self.refuse(parts, body, &Rejection::store_error(&error)),
        };
        if let Some(decision) = decision {
            if !decision.is_allowed() && self.shadow {
                self.count_denied("too many requests");
            } else if !decision.is_allowed() {
                return self.deny(&parts, &plan, &decision);
            }
            // The handler acts on the limits that are enforced.
            if !self.shadow {
                parts.extensions.insert(decision);
            }
        }
        let held = LimitHeld(Some(Counted {
            plan,
            key,
            decision,
            if_interrupted: self.charge_for(INTERRUPTED),
        }));
        Entered::Serve(Request::from_parts(parts, body), held)
    }

    fn deny<B>(&self, parts: &Parts, plan: &Plan, decision: &Decision) -> Entered<B, LimitHeld> {
        let mut rejection = if decision.basis() == Basis::Assumed {
            // Not the client's fault.
            Rejection::new(
                RejectionKind::StoreUnavailable,
                "the limit cannot be checked now",
            )
        } else {
            let detail = match decision.is_never() {
                true => TOO_DEAR,
                false => "too many requests",
            };
            Rejection::new(RejectionKind::Limited, detail)
        };
        // A leased limiter does not know which of several it was.
        if decision.basis() != Basis::Leased || plan.policies.iter().count() == 1 {
            let violated = plan.policies.get(decision.quota_index());
            let names = violated.iter().map(|policy| policy.name().to_owned());
            rejection.violated_policies = names.collect();
        }
        rejection.retry_after = decision.retry_after();
        rejection.decision = Some(*decision);
        let protocol = Protocol::of(&parts.method, &parts.headers);
        let mut response = rejection.response(self.respond.as_ref(), protocol);
        self.add_headers(response.headers_mut(), plan, decision);
        Entered::Answer(response)
    }

    /// Appends, because another limit may have sent its own: the fields are lists.
    fn add_headers(&self, headers: &mut HeaderMap, plan: &Plan, decision: &Decision) {
        // What was assumed without the store is not the state of the limit.
        if self.shadow || decision.basis() == Basis::Assumed {
            return;
        }
        if self.headers {
            if let Some(policies) = &plan.header {
                headers.append(&RATE_LIMIT_POLICY, policies.clone());
            }
            if let Some(state) = plan.policies.state_header(decision) {
                headers.append(&RATE_LIMIT, state);
            }
        }
        if self.x_headers {
            headers.insert(&X_LIMIT, HeaderValue::from(decision.limit()));
            headers.insert(&X_REMAINING, HeaderValue::from(decision.remaining()));
            let retry = decision.retry_after().filter(|_| !decision.is_allowed());
            let reset = retry
                .map(whole_seconds)
                .or_else(|| plan.policies.reset_after(decision));
            if let Some(reset) = reset {
                headers.insert(&X_RESET, HeaderValue::from(reset));
            }
        }
    }
}

/// A request that was counted; `None` if it is exempt. Dropping it is an interruption, which is charged.
#[derive(Debug)]
pub struct LimitHeld(Option<Counted>);

#[derive(Debug)]
struct Counted {
    plan: Arc<Plan>,
    key: String,
    decision: Option<Decision>,
    /// What is charged if the request gets no response.
    if_interrupted: u64,
}

impl Drop for LimitHeld {
    fn drop(&mut self) {
        if let Some(counted) = self.0.take() {
            charge::in_background(&counted.plan, &counted.key, counted.if_interrupted);
        }
    }
}

impl sealed::Sealed for LimitLayer {}

impl<B: Send + 'static> Stage<B> for LimitLayer {
    type InnerBody = B;
    type Held = LimitHeld;

    fn enter(&self, request: Request<B>) -> MaybeReady<Entered<B, LimitHeld>> {
        let config = &self.config;
        let (parts, body) = request.into_parts();
        let key = match config.key.of(&parts) {
            MaybeReady::Ready(Some(key)) if config.policies_fn.is_none() => {
                return self.enter_at_once(parts, body, key);
            }
            key => key,
        };
        let policies = config.policies_fn.as_ref().map(|policies| policies(&parts));
        let config = Arc::clone(config);
        MaybeReady::later(async move {
            let key = match config.key.resolve(key.await) {
                Ok(Some(key)) => key,
                Ok(None) => return exempt(parts, body),
                Err(rejection) => return config.refuse(parts, body, &rejection),
            };
            let policies = match policies {
                Some(policies) => policies.await,
                None => None,
            };
            let plan = config.plan(policies);
            let cost = match config.checked_cost(&parts) {
                Ok(cost) => cost,
                Err(rejection) => return config.refuse(parts, body, &rejection),
            };
            let decision = plan.check(&key, cost).await;
            config.conclude((parts, body), plan, key, decision)
        })
    }

    fn leave<R>(&self, mut held: LimitHeld, response: Response<R>) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let mut response = response.map(Body::inner);
        let Some(counted) = held.0.take() else {
            return MaybeReady::ready(response);
        };
        let config = &self.config;
        if let Some(decision) = &counted.decision {
            config.add_headers(response.headers_mut(), &counted.plan, decision);
        }
        let by_status = config.charge_for(response.status().as_u16());
        // The innermost limit that is enforced takes the charge.
        let by_handler = match config.shadow {
            true => response.extensions().get().copied(),
            false => response.extensions_mut().remove(),
        };
        let by_handler = by_handler.map_or(0, |Charge(units)| units);
        let units = by_status.saturating_add(by_handler);
        charge::in_background(&counted.plan, &counted.key, units);
        if let Some(bytes_per_unit) = config.bytes_per_unit {
            let charge = ChargeBytes {
                plan: counted.plan,
                key: counted.key,
                bytes_per_unit,
                sent: 0,
            };
            response = response.map(|body| body.at_end(Box::new(charge)));
        }
        MaybeReady::ready(response)
    }
}

impl LimitLayer {
    /// Decides without a future, where that is possible.
    fn enter_at_once<B: Send + 'static>(
        &self,
        parts: Parts,
        body: B,
        key: Option<String>,
    ) -> MaybeReady<Entered<B, LimitHeld>> {
        let config = &self.config;
        let key = match config.key.resolve(key) {
            Ok(Some(key)) => key,
            Ok(None) => return MaybeReady::ready(exempt(parts, body)),
            Err(rejection) => return MaybeReady::ready(config.refuse(parts, body, &rejection)),
        };
        let plan = Arc::clone(&config.plan);
        let cost = match config.checked_cost(&parts) {
            Ok(cost) => cost,
            Err(rejection) => return MaybeReady::ready(config.refuse(parts, body, &rejection)),
        };
        if let Some(decision) = plan.check_now(&key, cost) {
            return MaybeReady::ready(config.conclude((parts, body), plan, key, decision));
        }
        let config = Arc::clone(config);
        MaybeReady::later(async move {
            let decision = plan.check(&key, cost).await;
            config.conclude((parts, body), plan, key, decision)
        })
    }
}

fn exempt<B>(parts: Parts, body: B) -> Entered<B, LimitHeld> {
    Entered::Serve(Request::from_parts(parts, body), LimitHeld(None))
}

impl fmt::Debug for LimitLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitLayer")
            .field("name", &self.config.options.name)
            .field("policies", &self.config.plan.policies)
            .finish_non_exhaustive()
    }
}

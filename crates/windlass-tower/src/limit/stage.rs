//! What a [`LimitLayer`] does with a request and its response: decides, refuses, adds headers, charges.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use windlass::{Basis, Decision, Quota};

use super::charge::{self, Charge, ChargeBytes, INTERRUPTED};
use super::plan::Plan;
use super::{Config, LimitLayer};
use crate::BoxError;
use crate::body::{Body, Whole};
use crate::grpc_status;
use crate::maybe_ready::{Later, MaybeReady};
use crate::protected::{Entered, Stage, StartedCall, sealed};
use crate::rejection::{Protocol, Rejection, RejectionKind, whole_seconds};

const TOO_DEAR: &str = "the request costs more than the limit allows at once";
static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");
static X_LIMIT: HeaderName = HeaderName::from_static("x-ratelimit-limit");
static X_REMAINING: HeaderName = HeaderName::from_static("x-ratelimit-remaining");
static X_RESET: HeaderName = HeaderName::from_static("x-ratelimit-reset");

/// The request is let through, or gets this response.
type Verdict = Result<LimitHeld, Box<Response<Whole>>>;

/// What the store has to decide.
struct Undecided {
    key: String,
    cost: u64,
}

/// A request that was counted; `None` if it is exempt. Dropping it is an interruption, which is charged.
#[derive(Debug)]
pub struct LimitHeld(Option<Counted>);

#[derive(Debug)]
struct Counted {
    /// The plan of the request, if it is not that of the layer, which all threads would count references to.
    chosen: Option<Arc<Plan>>,
    key: String,
    decision: Option<Decision>,
    /// What is charged if the request gets no response.
    if_interrupted: Option<(Arc<Plan>, u64)>,
}

impl Drop for LimitHeld {
    fn drop(&mut self) {
        if let Some(counted) = self.0.take()
            && let Some((plan, units)) = counted.if_interrupted
        {
            charge::in_background(&plan, &counted.key, units);
        }
    }
}

impl sealed::Sealed for LimitLayer {}

impl<B: Send + 'static> Stage<B> for LimitLayer {
    type InnerBody = B;
    type Held = LimitHeld;

    #[inline]
    fn enter<F>(
        &self,
        request: Request<B>,
        call: impl FnOnce(Request<B>) -> F,
    ) -> StartedCall<F, B, LimitHeld> {
        let (mut parts, body) = request.into_parts();
        let key = match self.config.key.of(&parts) {
            MaybeReady::Ready(Some(key)) if self.config.policies_fn.is_none() => {
                return match self.config.decide_now(&mut parts, key) {
                    Ok(Ok(held)) => {
                        StartedCall::Serving(call(Request::from_parts(parts, body)), held)
                    }
                    Ok(Err(response)) => StartedCall::Answered(response),
                    Err(undecided) => {
                        StartedCall::Entering(self.enter_later(parts, body, undecided))
                    }
                };
            }
            key => key,
        };
        StartedCall::Entering(self.choose_later(parts, body, key))
    }

    #[inline]
    fn leave<R>(&self, mut held: LimitHeld, response: Response<R>) -> MaybeReady<Response<Body<R>>>
    where
        R: http_body::Body<Data = Bytes> + Send + 'static,
        R::Error: Into<BoxError>,
    {
        let mut response = response;
        let Some(counted) = held.0.take() else {
            return MaybeReady::ready(response.map(Body::inner));
        };
        let config = &self.config;
        let plan = counted.chosen.as_ref().unwrap_or(&config.plan);
        if let Some(decision) = &counted.decision {
            config.add_headers(response.headers_mut(), plan, decision);
        }
        let by_status = config.charge_status.as_ref().map_or(0, |units| {
            let status = grpc_status::as_http(response.headers(), None);
            units(status.unwrap_or(response.status()))
        });
        // The innermost limit that is enforced takes the charge.
        let by_handler = match config.options.shadow {
            true => response.extensions().get().copied(),
            false => response.extensions_mut().remove(),
        };
        let by_handler = by_handler.map_or(0, |Charge(units)| units);
        let units = by_status.saturating_add(by_handler);
        charge::in_background(plan, &counted.key, units);
        // Headers that end the response must go on doing so: those of a gRPC error, for example.
        if let Some(bytes_per_unit) = config.bytes_per_unit
            && !http_body::Body::is_end_stream(response.body())
        {
            let charge = Box::new(ChargeBytes {
                plan: Arc::clone(plan),
                key: counted.key,
                bytes_per_unit,
                sent: 0,
            });
            return MaybeReady::ready(response.map(|body| Body::inner(body).at_end(charge)));
        }
        MaybeReady::ready(response.map(Body::inner))
    }
}

impl LimitLayer {
    /// The store decides.
    fn enter_later<B: Send + 'static>(
        &self,
        mut parts: Parts,
        body: B,
        Undecided { key, cost }: Undecided,
    ) -> Later<Entered<B, LimitHeld>> {
        let config = Arc::clone(&self.config);
        Box::pin(async move {
            let decision = config.plan.check(&key, cost).await;
            let verdict = config.conclude(&mut parts, None, key, decision);
            entered(parts, body, verdict)
        })
    }

    /// The key, or the policies, are not known yet.
    fn choose_later<B: Send + 'static>(
        &self,
        mut parts: Parts,
        body: B,
        key: MaybeReady<Option<String>>,
    ) -> Later<Entered<B, LimitHeld>> {
        let policies = self.config.policies_fn.as_ref();
        let policies = policies.map(|policies| policies(&parts));
        let config = Arc::clone(&self.config);
        Box::pin(async move {
            let (key, cost) = match config.key_and_cost(&parts, key.await) {
                Ok(key_and_cost) => key_and_cost,
                Err(verdict) => return entered(parts, body, verdict),
            };
            let policies = match policies {
                Some(policies) => policies.await,
                None => None,
            };
            let chosen = policies.map(|policies| config.plans.get(&config.options, policies));
            let plan = chosen.as_ref().unwrap_or(&config.plan);
            let decision = plan.check(&key, cost).await;
            let verdict = config.conclude(&mut parts, chosen, key, decision);
            entered(parts, body, verdict)
        })
    }
}

fn entered<B>(parts: Parts, body: B, verdict: Verdict) -> Entered<B, LimitHeld> {
    match verdict {
        Ok(held) => Entered::Serve(Request::from_parts(parts, body), held),
        Err(response) => Entered::Answer(*response),
    }
}

impl Config {
    /// Refuses a request before the limiter decides; in shadow mode, counts it and lets it through.
    fn refuse(&self, parts: &Parts, rejection: &Rejection) -> Verdict {
        if self.options.shadow {
            self.count_denied(&rejection.detail);
            return Ok(LimitHeld(None));
        }
        let protocol = Protocol::of(&parts.method, &parts.headers);
        Err(Box::new(
            rejection.response(self.respond.as_ref(), protocol),
        ))
    }

    fn count_denied(&self, reason: &str) {
        self.shadow_denied.fetch_add(1, Ordering::Relaxed);
        let limiter = &self.options.name;
        tracing::info!(limiter, reason, "a limit in shadow mode would refuse");
    }

    /// The key as it is stored, and the cost; the verdict if the request has no key, or no quota can ever allow its cost.
    fn key_and_cost(&self, parts: &Parts, key: Option<String>) -> Result<(String, u64), Verdict> {
        let key = match self.key.resolve(key) {
            Ok(Some(key)) => key,
            Ok(None) => return Err(Ok(LimitHeld(None))),
            Err(rejection) => return Err(self.refuse(parts, &rejection)),
        };
        let cost = self.cost.as_ref().map_or(1, |cost| cost(parts));
        if cost > Quota::MAX_UNITS {
            let rejection = Rejection::new(RejectionKind::Limited, TOO_DEAR);
            return Err(self.refuse(parts, &rejection));
        }
        Ok((key, cost))
    }

    /// Decides without a future, where that is possible.
    fn decide_now(&self, parts: &mut Parts, key: Option<String>) -> Result<Verdict, Undecided> {
        let (key, cost) = match self.key_and_cost(parts, key) {
            Ok(key_and_cost) => key_and_cost,
            Err(verdict) => return Ok(verdict),
        };
        match self.plan.check_now(&key, cost) {
            Some(decision) => Ok(self.conclude(parts, None, key, decision)),
            None => Err(Undecided { key, cost }),
        }
    }

    /// `chosen` is the plan of this request, if it is not that of the layer.
    fn conclude(
        &self,
        parts: &mut Parts,
        chosen: Option<Arc<Plan>>,
        key: String,
        decision: windlass::Result<Decision>,
    ) -> Verdict {
        let plan = chosen.as_ref().unwrap_or(&self.plan);
        let decision = match decision {
            Ok(decision) => Some(decision),
            Err(error) if self.options.shadow => {
                tracing::warn!(%error, "a limit in shadow mode could not be decided");
                None
            }
            Err(error) => return self.refuse(parts, &Rejection::store_error(&error)),
        };
        if let Some(decision) = decision {
            if !decision.is_allowed() && self.options.shadow {
                self.count_denied("too many requests");
            } else if !decision.is_allowed() {
                return self.deny(parts, plan, &decision);
            }
            // The handler acts on the limits that are enforced.
            if !self.options.shadow {
                parts.extensions.insert(decision);
            }
        }
        let by_status = self.charge_status.as_ref();
        let units = by_status.map_or(0, |units| units(*INTERRUPTED));
        let if_interrupted = (units > 0).then(|| (Arc::clone(plan), units));
        Ok(LimitHeld(Some(Counted {
            chosen,
            key,
            decision,
            if_interrupted,
        })))
    }

    fn deny(&self, parts: &Parts, plan: &Plan, decision: &Decision) -> Verdict {
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
        Err(Box::new(response))
    }

    /// Appends, because another limit may have sent its own: the fields are lists.
    fn add_headers(&self, headers: &mut HeaderMap, plan: &Plan, decision: &Decision) {
        // What was assumed without the store is not the state of the limit.
        if self.options.shadow || decision.basis() == Basis::Assumed {
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

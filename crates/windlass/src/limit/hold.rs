//! [`Hold`]: an estimate that is charged at once, and settled when the true cost is known.

use std::time::Duration;

use super::limiter::{Limiter, check_units};
use super::store_call::HoldReply;
use windlass_core::Owner;
use windlass_core::decision::{Basis, Decision};
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::rules::limit::{Rule, status_of_costs};
use windlass_core::store::limit::{HoldOutcome, HoldRequest, SettleOutcome, SettleRequest};

/// Units for each quota of a limiter: one number for all, or one for each, in their order.
///
/// ```
/// use windlass::Costs;
///
/// Costs::from(20);           // 20 units of every quota
/// Costs::from([1, 1_200]);   // one request and 1,200 tokens
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs(CostList);

#[derive(Clone, Debug, PartialEq, Eq)]
enum CostList {
    All(u64),
    Each(Vec<u64>),
}

impl From<u64> for Costs {
    fn from(units: u64) -> Costs {
        Costs(CostList::All(units))
    }
}

impl<const N: usize> From<[u64; N]> for Costs {
    fn from(units: [u64; N]) -> Costs {
        Costs(CostList::Each(units.to_vec()))
    }
}

impl From<&[u64]> for Costs {
    fn from(units: &[u64]) -> Costs {
        Costs(CostList::Each(units.to_vec()))
    }
}

impl From<Vec<u64>> for Costs {
    fn from(units: Vec<u64>) -> Costs {
        Costs(CostList::Each(units))
    }
}

impl Costs {
    /// One number for each rule.
    fn for_rules(self, operation: &'static str, rules: &[Rule]) -> Result<Vec<u64>> {
        let costs = match self.0 {
            CostList::All(units) => vec![units; rules.len()],
            CostList::Each(costs) if costs.len() == rules.len() => costs,
            CostList::Each(costs) => {
                let message = format!(
                    "{} costs were given for a limiter with {} quotas",
                    costs.len(),
                    rules.len()
                );
                return Err(Error::invalid(operation, message)
                    .with_hint("give one cost for all quotas, or one for each, in their order"));
            }
        };
        for &units in &costs {
            check_units(units)?;
        }
        Ok(costs)
    }
}

/// The outcome of [`Limiter::reserve_estimate`].
///
/// Exhaustive on purpose: these are the only two outcomes.
#[derive(Debug)]
#[must_use = "a denied caller must not act"]
pub enum Estimate {
    /// The estimate is charged: act, then settle.
    Held(Hold),
    /// A quota lacks units. Nothing is charged.
    Denied(Decision),
}

impl Estimate {
    /// The hold, if the estimate was charged.
    pub fn held(self) -> Option<Hold> {
        match self {
            Estimate::Held(hold) => Some(hold),
            Estimate::Denied(_) => None,
        }
    }
}

/// An estimate that is charged, until it is [settled](Hold::settle).
///
/// Dropping it, or a crash, leaves the estimate charged.
#[derive(Debug)]
#[must_use = "an estimate is charged: act, then settle"]
pub struct Hold {
    limiter: Limiter,
    name: Name,
    owner: Owner,
    decision: Decision,
}

/// The outcome of settling a hold.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Settle {
    /// The true cost is charged now.
    Settled(Settlement),
    /// The hold was settled before. Nothing changes.
    AlreadySettled,
    /// There is no such hold: its time is over, or this limiter and key never had it. The estimate stays charged.
    NotFound,
}

impl Settle {
    /// The settlement, if this call settled the hold.
    pub fn settled(self) -> Option<Settlement> {
        match self {
            Settle::Settled(settlement) => Some(settlement),
            Settle::AlreadySettled | Settle::NotFound => None,
        }
    }
}

/// What a settled hold is charged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    quotas: Vec<SettledCost>,
    remaining: u64,
}

/// What a settled hold is charged by one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettledCost {
    /// What was charged at first.
    pub estimate: u64,
    /// What is charged now: the true cost. More, if a part of the refund came too late: the window is over, or the bucket
    /// was refilled meanwhile. Less, if a token bucket would be more than 16 bursts in debt.
    pub charged: u64,
}

impl Settlement {
    /// What is charged by each quota, in their order.
    pub fn quotas(&self) -> &[SettledCost] {
        &self.quotas
    }

    /// What is charged; of several quotas, by the first.
    pub fn charged(&self) -> u64 {
        self.quotas.first().map_or(0, |quota| quota.charged)
    }

    /// The units available afterwards. Of several quotas, the fewest.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }
}

impl Limiter {
    /// The longest time for which a hold can be settled.
    pub const MAX_HOLD: Duration = Duration::from_secs(30 * 24 * 3600);

    /// Charges an estimate for `key` now, for work whose cost is known only when it is done: all quotas are charged, or
    /// none. [`Hold::settle`] then refunds the excess, or charges the rest.
    ///
    /// The hold can be settled within `ttl`, by any process that knows its [owner](Hold::owner). After that, and after a
    /// crash, the estimate stays charged.
    ///
    /// ```
    /// use std::time::Duration;
    /// use windlass::{Estimate, Quota};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> windlass::Result<()> {
    /// # let w = windlass::connect("memory:").await?;
    /// let quotas = [Quota::per_minute(60), Quota::per_minute(100_000)];
    /// let models = w.limiter("models", quotas); // requests and tokens
    /// match models.reserve_estimate("ann", [1, 4_000], Duration::from_secs(300)).await? {
    ///     Estimate::Held(hold) => {
    ///         // Call the model. It used 1,250 tokens.
    ///         hold.settle([1, 1_250]).await?;
    ///     }
    ///     Estimate::Denied(decision) => println!("retry in {:?}", decision.retry_after()),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the estimate may or may not be charged.
    pub async fn reserve_estimate(
        &self,
        key: &str,
        units: impl Into<Costs>,
        ttl: Duration,
    ) -> Result<Estimate> {
        self.reserve_estimate_as(key, units, ttl, Owner::random())
            .await
    }

    /// As [`reserve_estimate`](Limiter::reserve_estimate), with an owner chosen by the caller. An owner has one hold of a
    /// key until its TTL has passed, settled or not: a second one is an error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the estimate may or may not be charged. A repetition with the same owner does not charge
    /// it again.
    pub async fn reserve_estimate_as(
        &self,
        key: &str,
        units: impl Into<Costs>,
        ttl: Duration,
        owner: Owner,
    ) -> Result<Estimate> {
        let held = hold(self, key, units.into(), ttl, owner).await;
        match &held {
            Ok(Estimate::Held(hold)) => self.metrics.decided(&hold.decision),
            Ok(Estimate::Denied(decision)) => self.metrics.decided(decision),
            Err(_) => self.metrics.failed(),
        }
        held
    }

    /// Settles the hold of another process, by its owner: see [`Hold::settle`]. The limiter has the quotas that the hold
    /// was made with.
    pub async fn settle(
        &self,
        key: &str,
        owner: &Owner,
        actual: impl Into<Costs>,
    ) -> Result<Settle> {
        let name = self.name_of("settle", key)?;
        settle(self, name, owner.clone(), actual.into()).await
    }
}

const OPERATION: &str = "reserve";

async fn hold(
    limiter: &Limiter,
    key: &str,
    costs: Costs,
    ttl: Duration,
    owner: Owner,
) -> Result<Estimate> {
    let rules = limiter.rules()?;
    let costs = costs.for_rules(OPERATION, rules)?;
    if ttl < Duration::from_millis(1) || ttl > Limiter::MAX_HOLD {
        let message = format!("a hold cannot last {ttl:?}");
        return Err(Error::invalid(OPERATION, message)
            .with_name(key)
            .with_hint("choose a time from 1 millisecond to 30 days"));
    }
    let name = limiter.name_of(OPERATION, key)?;
    let request = HoldRequest {
        name: name.clone(),
        rules: rules.clone(),
        owner: owner.clone(),
        costs: costs.clone(),
        ttl: u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX),
    };
    let (outcome, basis) = match limiter.caller.hold(OPERATION, request).await? {
        HoldReply::Decided(outcome, basis) => (outcome, basis),
        HoldReply::Assumed {
            allowed,
            retry_after,
        } => {
            let decision = Decision::assumed(rules, allowed, retry_after);
            return Ok(estimate(limiter, name, owner, decision));
        }
    };
    let HoldOutcome::Decided(outcome) = outcome else {
        let message = format!("{:?} has a hold already", owner.as_str());
        return Err(Error::invalid(OPERATION, message)
            .with_name(key)
            .with_hint("settle it, or use another owner"));
    };
    let status = status_of_costs(rules, &outcome.states, outcome.now, &costs);
    let decision = Decision::new(outcome.granted.is_some(), status, basis);
    Ok(estimate(limiter, name, owner, decision))
}

fn estimate(limiter: &Limiter, name: Name, owner: Owner, decision: Decision) -> Estimate {
    match decision.is_allowed() {
        false => Estimate::Denied(decision),
        true => Estimate::Held(Hold {
            limiter: limiter.clone(),
            name,
            owner,
            decision,
        }),
    }
}

async fn settle(limiter: &Limiter, name: Name, owner: Owner, actual: Costs) -> Result<Settle> {
    let rules = limiter.rules()?;
    let actual = actual.for_rules("settle", rules)?;
    let request = SettleRequest {
        name: name.clone(),
        rules: rules.clone(),
        owner: owner.clone(),
        actual,
    };
    Ok(match limiter.caller.settle(request).await? {
        SettleOutcome::AlreadySettled => Settle::AlreadySettled,
        SettleOutcome::NotFound => Settle::NotFound,
        SettleOutcome::OtherQuotas => {
            let message = format!("the hold of {:?} has other quotas", owner.as_str());
            return Err(Error::invalid("settle", message)
                .with_name(limiter.key_of(&name))
                .with_hint("settle with the quotas that it was made with, in the same order"));
        }
        SettleOutcome::Settled {
            now,
            states,
            quotas,
        } => Settle::Settled(Settlement {
            remaining: status_of_costs(rules, &states, now, &[]).remaining,
            quotas: quotas
                .into_iter()
                .map(|quota| SettledCost {
                    estimate: quota.estimate,
                    charged: quota.charged,
                })
                .collect(),
        }),
    })
}

impl Hold {
    /// The identity of the hold, for [settling](Limiter::settle) it in another process.
    pub fn owner(&self) -> &Owner {
        &self.owner
    }

    /// The decision behind the hold.
    pub fn decision(&self) -> Decision {
        self.decision
    }

    /// Replaces the estimate by the true cost: refunds the excess, or charges the rest, even beyond the limit, because
    /// it was used.
    ///
    /// - A window, a log, and a bucket that is not refilled get back exactly the excess, unless the window that was
    ///   charged is over. A window that counts more than its limit allows nothing until it is over.
    /// - A token bucket gets back the excess as far as it is not refilled by then, and goes into debt for the rest, up to
    ///   16 times its burst. It gets nothing back if [prefetched](Limiter::leased) or
    ///   [reserved](Limiter::reserve) units of the key were waiting to be used meanwhile.
    /// - After a [reset](Limiter::reset), or a change of a quota, nothing is refunded.
    ///
    /// So no more is ever allowed than if the true cost had been charged in the first place.
    ///
    /// # Errors
    ///
    /// A failed call can be repeated by owner ([`Limiter::settle`]): it takes effect once. The
    /// [fallback](Limiter::on_store_error) does not apply.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the hold may or may not be settled.
    pub async fn settle(self, actual: impl Into<Costs>) -> Result<Settle> {
        let actual = actual.into();
        match self.decision.basis() {
            // Nothing was charged.
            Basis::Assumed => {
                let rules = self.limiter.rules()?;
                let quotas = actual.for_rules("settle", rules)?.into_iter();
                Ok(Settle::Settled(Settlement {
                    quotas: quotas
                        .map(|_| SettledCost {
                            estimate: 0,
                            charged: 0,
                        })
                        .collect(),
                    remaining: self.decision.remaining(),
                }))
            }
            Basis::Local => {
                let limiter = self.limiter.decided_locally();
                settle(&limiter, self.name, self.owner, actual).await
            }
            _ => settle(&self.limiter, self.name, self.owner, actual).await,
        }
    }
}

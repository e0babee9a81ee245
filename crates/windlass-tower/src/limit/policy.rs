//! [`Policies`]: the quotas of a limit, with the names that clients see.

use std::fmt::Write as _;
use std::time::Duration;

use bytes::Bytes;
use http::HeaderValue;
use windlass::{Decision, Quota};

use crate::rejection::whole_seconds;

/// A quota, and the name that clients see in `RateLimit-Policy` and `RateLimit`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policy {
    name: String,
    /// The beginning of `RateLimit`: `"burst";r=`.
    state_prefix: String,
    quota: Quota,
}

impl Policy {
    /// A quota under a name. Characters that a structured field cannot hold (all but printable ASCII) become `_`.
    pub fn new(name: &str, quota: Quota) -> Policy {
        let printable = |c: char| if matches!(c, ' '..='~') { c } else { '_' };
        let name: String = name.chars().map(printable).collect();
        Policy {
            state_prefix: format!("{};r=", quoted(&name)),
            name,
            quota,
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The quota.
    pub fn quota(&self) -> Quota {
        self.quota
    }
}

/// The policies of a limit, decided together: all are charged, or none. Converts from a [`Quota`], a [`Policy`], or
/// several of them.
///
/// A quota without a name is called `default`; several are called `quota-1`, `quota-2` and so on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Policies(Vec<Policy>);

impl Policies {
    /// The policies.
    pub fn iter(&self) -> impl Iterator<Item = &Policy> {
        self.0.iter()
    }

    pub(crate) fn get(&self, index: usize) -> Option<&Policy> {
        self.0.get(index)
    }

    /// The value of `RateLimit-Policy`: `"burst";q=100;w=60, "daily";q=5000;w=86400`.
    ///
    /// A token bucket is shown as its burst, and the time in which that is refilled: the same average rate.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let mut value = String::new();
        for Policy { name, quota, .. } in &self.0 {
            let separator = if value.is_empty() { "" } else { ", " };
            let _ = write!(value, "{separator}{};q={}", quoted(name), quota.limit());
            if let Some(window) = quota.refill_time() {
                let _ = write!(value, ";w={}", whole_seconds(window));
            }
        }
        HeaderValue::try_from(value)
            .ok()
            .filter(|value| !value.is_empty())
    }

    /// The value of `RateLimit` after a decision: `"burst";r=50;t=30`, for the policy with the fewest units left.
    pub(crate) fn state_header(&self, decision: &Decision) -> Option<HeaderValue> {
        let policy = self.0.get(decision.quota_index())?;
        let (mut remaining, mut reset) = (itoa::Buffer::new(), itoa::Buffer::new());
        let remaining = remaining.format(decision.remaining());
        let reset = self.reset_after(decision).map(|time| reset.format(time));
        // A text of just its length becomes the value without another allocation.
        let time = reset.map_or(0, |reset| ";t=".len() + reset.len());
        let mut value = String::with_capacity(policy.state_prefix.len() + remaining.len() + time);
        value.push_str(&policy.state_prefix);
        value.push_str(remaining);
        if let Some(reset) = reset {
            value.push_str(";t=");
            value.push_str(reset);
        }
        HeaderValue::from_maybe_shared(Bytes::from(value)).ok()
    }

    /// The seconds until all units of the policy with the fewest left are available again, rounded up.
    ///
    /// A decision on several quotas only knows when the last of them is whole again. A single one needs at most the
    /// time in which the units that are used are refilled.
    pub(crate) fn reset_after(&self, decision: &Decision) -> Option<u64> {
        let quota = self.0.get(decision.quota_index())?.quota;
        let reset = match (decision.reset_after(), quota.refill_time()) {
            (Some(reset), Some(window)) if self.0.len() > 1 => reset.min(window),
            (Some(reset), _) => reset,
            (None, window) => window?,
        };
        Some(ceil(reset))
    }
}

fn ceil(time: Duration) -> u64 {
    time.as_secs()
        .saturating_add(u64::from(time.subsec_nanos() > 0))
}

/// A string of a structured field (RFC 9651).
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        if matches!(c, '"' | '\\') {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted.push('"');
    quoted
}

impl From<Policy> for Policies {
    fn from(policy: Policy) -> Policies {
        Policies(vec![policy])
    }
}

impl From<Vec<Policy>> for Policies {
    fn from(policies: Vec<Policy>) -> Policies {
        Policies(policies)
    }
}

impl<const N: usize> From<[Policy; N]> for Policies {
    fn from(policies: [Policy; N]) -> Policies {
        Policies(policies.into())
    }
}

impl From<Quota> for Policies {
    fn from(quota: Quota) -> Policies {
        Policies(vec![Policy::new("default", quota)])
    }
}

impl From<Vec<Quota>> for Policies {
    fn from(quotas: Vec<Quota>) -> Policies {
        if let [quota] = quotas[..] {
            return Policies::from(quota);
        }
        let named = |(i, quota)| Policy::new(&format!("quota-{i}"), quota);
        Policies((1..).zip(quotas).map(named).collect())
    }
}

impl<const N: usize> From<[Quota; N]> for Policies {
    fn from(quotas: [Quota; N]) -> Policies {
        Policies::from(quotas.to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_are_structured_fields() {
        let policies = Policies::from([
            Policy::new("burst", Quota::per_second(20).burst(40)),
            Policy::new("per \"day\" \u{e9}", Quota::per_day(5_000).fixed_window()),
            Policy::new("once", Quota::per_second(0).burst(3)),
        ]);
        assert_eq!(
            policies.header().unwrap(),
            r#""burst";q=40;w=2, "per \"day\" _";q=5000;w=86400, "once";q=3"#
        );
        assert_eq!(Policies::from(Vec::<Quota>::new()).header(), None);
    }
}

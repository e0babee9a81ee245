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
    /// The name as a string of a structured field.
    quoted: String,
    quota: Quota,
}

impl Policy {
    /// A quota under a name. Characters that a structured field cannot hold (all but printable ASCII) become `_`.
    pub fn new(name: &str, quota: Quota) -> Policy {
        let printable = |c: char| if matches!(c, ' '..='~') { c } else { '_' };
        let name: String = name.chars().map(printable).collect();
        Policy {
            quoted: quoted(&name),
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

    /// The most units that one request can ever take.
    pub(crate) fn lowest_limit(&self) -> u64 {
        self.iter()
            .map(|policy| policy.quota.limit())
            .min()
            .unwrap_or(0)
    }

    /// The value of `RateLimit-Policy`: `"burst";q=100;w=60, "daily";q=5000;w=86400`.
    ///
    /// A token bucket is shown as its burst, and the time in which that is refilled: the same average rate.
    pub(crate) fn header(&self) -> Option<HeaderValue> {
        let mut value = String::new();
        for Policy { quoted, quota, .. } in &self.0 {
            let separator = if value.is_empty() { "" } else { ", " };
            let _ = write!(value, "{separator}{quoted};q={}", quota.limit());
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
        let mut value = Vec::with_capacity(policy.quoted.len() + 2 * (LONGEST_NUMBER + 3));
        value.extend_from_slice(policy.quoted.as_bytes());
        value.extend_from_slice(b";r=");
        put(&mut value, decision.remaining());
        if let Some(reset) = self.reset_after(decision) {
            value.extend_from_slice(b";t=");
            put(&mut value, reset);
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

/// The digits of the largest number.
const LONGEST_NUMBER: usize = 20;

/// Appends a number in decimal: a header is written for each response, and `format!` costs a multiple of this.
fn put(value: &mut Vec<u8>, mut number: u64) {
    let mut digits = [0; LONGEST_NUMBER];
    let mut first = LONGEST_NUMBER;
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    value.extend_from_slice(&digits[first..]);
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
    fn numbers_are_decimal() {
        for number in [0, 7, 10, 4_711, u64::MAX] {
            let mut value = Vec::new();
            put(&mut value, number);
            assert_eq!(value, number.to_string().as_bytes());
        }
    }

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

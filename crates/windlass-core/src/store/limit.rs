//! Rate limiters.

use std::fmt;
use std::sync::Arc;

use super::{Pending, matches};
use crate::decision::Decision;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::owner::Owner;
use crate::rules::limit::{LimitOp, Mismatch, QuotaUsage, Rule, RuleStates, SettledQuota};

/// Stores the states of rate limiters, and decides with the store's own clock.
pub trait LimitStore: Send + Sync + fmt::Debug {
    /// Decides by all rules of the limiter together: all are charged, or none.
    ///
    /// The request is sent when the future is first polled, at the latest.
    fn decide(&self, request: LimitRequest) -> Pending<'static, LimitOutcome>;

    /// Many independent decisions in as few round trips as possible. Returns one outcome for each,
    /// in order.
    fn decide_all(&self, requests: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>>;

    /// Takes units without awaiting, in a store that lives in this process; `None` in any other
    /// store, or if the name is not valid. Decides as [`decide`](LimitStore::decide) does.
    ///
    /// Returns a [`Decision`], because a check in memory is so fast that converting one costs a
    /// measurable part of it.
    fn check_in_process(
        &self,
        name: KeyName<'_>,
        rules: &[Rule],
        units: u64,
    ) -> Option<Result<Decision>> {
        let _ = (name, rules, units);
        None
    }

    /// Charges the estimate of a hold to all quotas, or to none, and keeps the hold until it is
    /// settled or its time is over. An owner has one hold of a limiter at a time.
    fn hold(&self, request: HoldRequest) -> Pending<'static, HoldOutcome> {
        let _ = request;
        Box::pin(std::future::ready(Err(no_holds())))
    }

    /// Replaces the estimate of a hold by its true cost, once.
    fn settle(&self, request: SettleRequest) -> Pending<'static, SettleOutcome> {
        let _ = request;
        Box::pin(std::future::ready(Err(no_holds())))
    }

    /// Restores the whole quota. Returns whether any of it was used.
    fn reset(&self, name: Name) -> Pending<'_, bool>;

    /// Lists limiters in use, in the order of their names. Changes nothing.
    ///
    /// There may be millions, one for each client address. So at most [`LimiterQuery::most`] are
    /// returned, and a store may stop earlier to bound its own work.
    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterPage>;
}

/// An operation on a limiter.
#[derive(Clone, Debug)]
pub struct LimitRequest {
    /// The limiter and its key: `LIMITER/KEY`.
    pub name: Name,
    /// Its quotas.
    pub rules: Arc<[Rule]>,
    /// The operation.
    pub want: LimitOp,
}

/// The outcome of a [`LimitRequest`].
#[derive(Clone, Debug, PartialEq)]
pub struct LimitOutcome {
    /// The units charged or returned; `None` if denied.
    pub granted: Option<u64>,
    /// The store's time, in microseconds since an arbitrary start.
    pub now: u64,
    /// The state after the operation, as of `now`. After a take, a store may shorten a sliding log to
    /// what its status for that cost depends on.
    pub states: RuleStates,
}

/// An estimate to charge.
#[derive(Clone, Debug)]
pub struct HoldRequest {
    /// The limiter and its key: `LIMITER/KEY`.
    pub name: Name,
    /// Its quotas.
    pub rules: Arc<[Rule]>,
    /// The identity of the hold.
    pub owner: Owner,
    /// The estimate for each quota.
    pub costs: Vec<u64>,
    /// For how long the hold can be settled, in microseconds.
    pub ttl: u64,
}

/// The outcome of a [`HoldRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum HoldOutcome {
    /// Charged or denied.
    Decided(LimitOutcome),
    /// The owner has a hold already, open or settled.
    OwnerInUse,
}

/// The true cost of a hold.
#[derive(Clone, Debug)]
pub struct SettleRequest {
    /// The limiter and its key: `LIMITER/KEY`.
    pub name: Name,
    /// The quotas that the hold was made with.
    pub rules: Arc<[Rule]>,
    /// The identity of the hold.
    pub owner: Owner,
    /// The true cost for each quota.
    pub actual: Vec<u64>,
}

/// The outcome of a [`SettleRequest`].
#[derive(Clone, Debug, PartialEq)]
pub enum SettleOutcome {
    /// Settled now.
    Settled {
        /// The store's time, in microseconds since an arbitrary start.
        now: u64,
        /// The states afterwards, as of `now`.
        states: RuleStates,
        /// What is charged to each quota.
        quotas: Vec<SettledQuota>,
    },
    /// Settled before.
    AlreadySettled,
    /// There is no such hold: its time is over, or there never was one.
    NotFound,
    /// The hold was made with other quotas; it stays open.
    OtherQuotas,
}

fn no_holds() -> Error {
    Error::new(
        ErrorKind::Unsupported,
        "hold",
        "holds are not supported by this store",
    )
    .with_hint("use memory:, file: or redis://")
}

/// Which limiters to list.
#[derive(Clone, Debug)]
pub struct LimiterQuery {
    /// The common start of the stored names: the namespace and a colon, or nothing.
    pub prefix: String,
    /// The pattern of the rest of the name, in its readable form: `*` matches any text and `?` one
    /// character.
    pub pattern: String,
    /// The most limiters to return.
    pub most: usize,
}

impl LimiterQuery {
    /// The stored name of a limiter without its namespace, if the query matches its readable form.
    pub fn wanted(&self, stored: &str) -> Option<String> {
        let stored = stored.strip_prefix(&self.prefix)?;
        let (limiter, key) = limiter_and_key(stored);
        let name = match key {
            Some(key) => format!("{limiter}/{key}"),
            None => limiter,
        };
        matches(&self.pattern, &name).then(|| stored.to_owned())
    }
}

/// The limiters found.
#[derive(Clone, Debug, Default)]
pub struct LimiterPage {
    /// Stored names without their namespace, see [`limiter_and_key`], and the usage of each quota.
    pub limiters: Vec<(String, Vec<QuotaUsage>)>,
    /// Whether there are more, or may be more.
    pub more: bool,
}

/// A limiter's name as stored before the slash and the key: its own slashes are escaped, so that no
/// key, which may come from an untrusted client, can reach another limiter.
pub fn escaped(limiter: &str) -> String {
    limiter.replace('%', "%25").replace('/', "%2F")
}

/// The limiter and the key of a stored name without its namespace.
pub fn limiter_and_key(stored: &str) -> (String, Option<&str>) {
    let (limiter, key) = match stored.split_once('/') {
        Some((limiter, key)) => (limiter, Some(key)),
        None => (stored, None),
    };
    (limiter.replace("%2F", "/").replace("%25", "%"), key)
}

/// The name `LIMITER/KEY`, or `LIMITER` if the key is empty, not yet concatenated and validated: a
/// store that has the name already needs neither.
#[derive(Clone, Copy, Debug)]
pub struct KeyName<'a> {
    limiter: &'a str,
    key: &'a str,
}

/// Names up to this length are concatenated on the stack.
const SHORT: usize = 128;

impl<'a> KeyName<'a> {
    /// `limiter` is a valid name, with its namespace; `key` is not validated yet.
    pub fn new(limiter: &'a str, key: &'a str) -> KeyName<'a> {
        KeyName { limiter, key }
    }

    /// Calls `then` with the bytes of the name.
    #[inline]
    pub fn bytes<T>(self, then: impl FnOnce(&[u8]) -> T) -> T {
        let (limiter, key) = (self.limiter.as_bytes(), self.key.as_bytes());
        if key.is_empty() {
            return then(limiter);
        }
        let (slash, length) = (limiter.len(), limiter.len() + 1 + key.len());
        if length > SHORT {
            return then(&[limiter, b"/", key].concat());
        }
        let mut text = [0; SHORT];
        text[..slash].copy_from_slice(limiter);
        text[slash] = b'/';
        text[slash + 1..length].copy_from_slice(key);
        then(&text[..length])
    }

    /// Whether this is a valid name.
    pub fn is_valid(self) -> bool {
        let length = self.limiter.len() + 1 + self.key.len();
        self.key.is_empty()
            || (length <= Name::MAX_BYTES && !self.key.chars().any(char::is_control))
    }

    /// The concatenated name, which must be [valid](KeyName::is_valid).
    pub fn to_name(self) -> Name {
        match self.key {
            "" => Name::checked(self.limiter),
            key => Name::checked(&[self.limiter, "/", key].concat()),
        }
    }
}

/// The name has a limiter of another algorithm.
pub fn mismatch(found: Mismatch) -> Error {
    let Mismatch { stored, requested } = found;
    Error::new(
        ErrorKind::WrongType,
        "call",
        format!("a {stored} limiter of this name is in use, and this one is a {requested}"),
    )
    .with_hint("choose another name, or reset the limiter first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_parts_equals_the_whole_name() {
        let long = "k".repeat(SHORT);
        for (limiter, key) in [
            ("a", ""),
            ("a", "b"),
            ("a/b", "c"),
            ("a", "ä/{c}"),
            ("a", &long),
        ] {
            let name = Name::new("check", None, limiter).unwrap();
            let whole = match key {
                "" => name,
                key => Name::new("check", None, &format!("{limiter}/{key}")).unwrap(),
            };
            let parts = KeyName::new(limiter, key);
            assert!(parts.is_valid());
            assert_eq!(parts.to_name(), whole);
            parts.bytes(|bytes| assert_eq!(bytes, whole.as_str().as_bytes()));
        }
    }

    #[test]
    fn limiters_are_found_by_their_readable_names() {
        for (limiter, key, shown) in [
            ("api", "", "api"),
            ("api", "/ann", "api/ann"),
            ("mail/ann", "", "mail/ann"),
            ("50% off", "/a%2Fb", "50% off/a%2Fb"),
            ("%2F", "/", "%2F/"),
        ] {
            let stored = format!("shop/1:{}{key}", escaped(limiter));
            let rest = stored.strip_prefix("shop/1:");
            let search = |prefix: &str, pattern: &str| {
                let (prefix, pattern) = (prefix.to_owned(), pattern.to_owned());
                let most = 1;
                LimiterQuery {
                    prefix,
                    pattern,
                    most,
                }
                .wanted(&stored)
            };
            assert_eq!(search("shop/1:", "*").as_deref(), rest);
            assert_eq!(search("shop/1:", shown).as_deref(), rest);
            assert_eq!(search("shop/1:", "other"), None);
            assert_eq!(search("shop/2:", "*"), None);
        }
    }

    #[test]
    fn invalid_keys_are_rejected() {
        let most = "k".repeat(Name::MAX_BYTES - 2);
        assert!(KeyName::new("a", &most).is_valid());
        for key in ["\n", "b\u{0}", "\u{7f}", "\u{85}", &format!("{most}k")] {
            assert!(!KeyName::new("a", key).is_valid(), "{key:?}");
        }
    }
}

//! Limiters: what a store decides about them.

use std::fmt;
use std::sync::Arc;

use super::{Pending, matches};
use crate::decision::Decision;
use crate::error::{Error, ErrorKind, Result};
use crate::name::{MAX_NAME_BYTES, Name};
use crate::rules::limit::{LimitOp, Mismatch, QuotaUsage, Rule, RuleStates};

/// Limiters: how much is allowed, and when.
pub trait LimitStore: Send + Sync + fmt::Debug {
    /// Decides by all rules together, by the store's own clock.
    ///
    /// It is asked when this is called, not when the answer is awaited.
    fn decide(&self, ask: LimitRequest) -> Pending<'static, LimitOutcome>;

    /// Many decisions, each on its own, in as few round trips as it takes. One answer for each, in
    /// order.
    fn decide_all(&self, asks: Vec<LimitRequest>) -> Pending<'_, Vec<Result<LimitOutcome>>>;

    /// Takes so many units at once, for a store that needs nobody else for it; `None` for any other, or
    /// if nothing can go by that name. Decides as `decide` does.
    ///
    /// It answers with what the caller wants in the end, because a check in memory is so short that
    /// turning one answer into another shows.
    fn check_here(
        &self,
        name: KeyName<'_>,
        rules: &[Rule],
        units: u64,
    ) -> Option<Result<Decision>> {
        let _ = (name, rules, units);
        None
    }

    /// Forgets all that was used. Says whether there was anything.
    fn reset(&self, name: Name) -> Pending<'_, bool>;

    /// The limiters of which anything is used, in the order of their names. Looks, and changes nothing.
    ///
    /// There may be millions, one for each address that ever called. So no more are given than were asked for, nor is
    /// more looked at than a store can look at in passing.
    fn list(&self, search: LimiterQuery) -> Pending<'_, LimiterEntry>;
}

/// What is asked of a limiter.
#[derive(Clone, Debug)]
pub struct LimitRequest {
    /// Which limiter, and for whom.
    pub name: Name,
    /// Its quotas.
    pub rules: Arc<[Rule]>,
    /// What for.
    pub want: LimitOp,
}

/// What a store answers.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitOutcome {
    /// The units charged, or given back; `None` if denied.
    pub granted: Option<u64>,
    /// The store's time, in microseconds since some start of its own.
    pub now: u64,
    /// The state afterwards, as of now.
    pub states: RuleStates,
}

/// Which limiters are looked for.
#[derive(Clone, Debug)]
pub struct LimiterQuery {
    /// What all names begin with: the namespace and a colon, or nothing.
    pub prefix: String,
    /// What the rest of the name is like, as people write it, where `*` stands for any text and `?` for one
    /// character.
    pub pattern: String,
    /// How many at most.
    pub most: usize,
}

impl LimiterQuery {
    /// What people call the limiter of this stored name, if it is looked for.
    pub fn wanted(&self, stored: &str) -> Option<String> {
        let name = readable(stored.strip_prefix(&self.prefix)?);
        matches(&self.pattern, &name).then_some(name)
    }
}

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct LimiterEntry {
    /// Names as people know them, and what is seen of each.
    pub limiters: Vec<(String, Vec<QuotaUsage>)>,
    /// Whether there are more, or may be.
    pub more: bool,
}

/// A limiter's name as it stands before the slash and the key: without a slash of its own, so that no
/// key, which may come from anybody, reaches another limiter.
pub fn escaped(limiter: &str) -> String {
    limiter.replace('%', "%25").replace('/', "%2F")
}

/// `LIMITER` or `LIMITER/KEY`, as people know it, of a name without its namespace.
fn readable(stored: &str) -> String {
    let (limiter, key) = stored.split_at(stored.find('/').unwrap_or(stored.len()));
    limiter.replace("%2F", "/").replace("%25", "%") + key
}

/// The name `LIMITER/KEY`, or `LIMITER` if the key is empty, before anybody has put it together or looked
/// whether the key can be used: a store that knows the name already need do neither.
#[derive(Clone, Copy, Debug)]
pub struct KeyName<'a> {
    limiter: &'a str,
    key: &'a str,
}

/// Names up to so many bytes are put together on the stack.
const SHORT: usize = 128;

impl<'a> KeyName<'a> {
    /// `limiter` is a checked name, namespace included; `key` is whatever was asked for.
    pub fn new(limiter: &'a str, key: &'a str) -> KeyName<'a> {
        KeyName { limiter, key }
    }

    /// Shows the bytes of the name.
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

    /// Whether anything can go by this name.
    pub fn is_valid(self) -> bool {
        let length = self.limiter.len() + 1 + self.key.len();
        self.key.is_empty() || (length <= MAX_NAME_BYTES && !self.key.chars().any(char::is_control))
    }

    /// The name in one, if it [can be](KeyName::is_valid) one.
    pub fn to_name(self) -> Name {
        match self.key {
            "" => Name::checked(self.limiter),
            key => Name::checked(&[self.limiter, "/", key].concat()),
        }
    }
}

/// Two algorithms cannot share a name.
pub fn mismatch(found: Mismatch) -> Error {
    let Mismatch { stored, asked } = found;
    Error::new(
        ErrorKind::WrongType,
        "call",
        format!("a {stored} limiter of this name is in use, and this one is a {asked}"),
    )
    .with_hint("choose another name, or reset the limiter first")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_parts_is_the_name_in_one() {
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
    fn limiters_are_found_by_the_names_that_people_know() {
        for (limiter, key, shown) in [
            ("api", "", "api"),
            ("api", "/ann", "api/ann"),
            ("mail/ann", "", "mail/ann"),
            ("50% off", "/a%2Fb", "50% off/a%2Fb"),
            ("%2F", "/", "%2F/"),
        ] {
            let stored = format!("shop/1:{}{key}", escaped(limiter));
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
            assert_eq!(search("shop/1:", "*").as_deref(), Some(shown));
            assert_eq!(search("shop/1:", shown).as_deref(), Some(shown));
            assert_eq!(search("shop/1:", "other"), None);
            assert_eq!(search("shop/2:", "*"), None);
        }
    }

    #[test]
    fn a_key_that_no_name_may_contain_is_refused() {
        let most = "k".repeat(MAX_NAME_BYTES - 2);
        assert!(KeyName::new("a", &most).is_valid());
        for key in ["\n", "b\u{0}", "\u{7f}", "\u{85}", &format!("{most}k")] {
            assert!(!KeyName::new("a", key).is_valid(), "{key:?}");
        }
    }
}

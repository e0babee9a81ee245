//! Limiters: what a store decides about them.

use std::fmt;
use std::sync::Arc;

use super::Pending;
use super::rules::limit::{Mismatch, Rule, States, Want};
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;

/// Limiters: how much is allowed, and when.
pub trait LimitStore: Send + Sync + fmt::Debug {
    /// Decides by all rules together, by the store's own clock.
    ///
    /// It is asked when this is called, not when the answer is awaited.
    fn decide(&self, ask: LimitAsk) -> Pending<'static, Verdict>;

    /// Many decisions, each on its own, in as few round trips as it takes. One answer for each, in
    /// order.
    fn decide_all(&self, asks: Vec<LimitAsk>) -> Pending<'_, Vec<Result<Verdict>>>;

    /// The same as `decide`, for a store that needs nobody else for it; `None` for any other.
    fn decide_here(&self, name: &str, rules: &[Rule], want: &Want) -> Option<Result<Verdict>> {
        let _ = (name, rules, want);
        None
    }

    /// Forgets all that was used. Says whether there was anything.
    fn reset(&self, name: Name) -> Pending<'_, bool>;
}

/// What is asked of a limiter.
#[derive(Clone, Debug)]
pub struct LimitAsk {
    /// Which limiter, and for whom.
    pub name: Name,
    /// Its quotas.
    pub rules: Arc<[Rule]>,
    /// What for.
    pub want: Want,
}

/// What a store answers.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The units charged, or given back; `None` if denied.
    pub granted: Option<u64>,
    /// The store's time, in microseconds since some start of its own.
    pub now: u64,
    /// The state afterwards, as of now.
    pub states: States,
}

/// Two algorithms cannot share a name.
pub(crate) fn mismatch(found: Mismatch) -> Error {
    let Mismatch { stored, asked } = found;
    Error::new(
        ErrorKind::WrongType,
        "call",
        format!("a {stored} limiter of this name is in use, and this one is a {asked}"),
    )
    .with_hint("choose another name, or reset the limiter first")
}

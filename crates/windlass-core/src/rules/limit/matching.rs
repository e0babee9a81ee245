//! Which stored state belongs to which rule.
//!
//! The quotas of a limiter may be changed, reordered, added and removed while it is in use, and
//! clients with different quotas may share a name. Usage must not be lost by that. So a state is
//! matched by the rate or period that it was computed with, not by its position:
//!
//! 1. A rule takes the first state with its own rate or period. If equal rules have taken all of
//!    those, it continues from the last of them: what they have used, it would have used.
//! 2. A rule without a state is a quota that has changed. It takes over a remaining state of its
//!    algorithm, the one in its position or else the first, which is converted.
//! 3. A rule that is still without a state is new, and starts unused. But if a state of another
//!    algorithm remains that has not ended, the rule may have replaced that one, and usage cannot
//!    be converted: this is a mismatch.
//!
//! The remaining states belong to rules that only other clients have, and are kept. Since a changed
//! rule takes over a state, there are never many more states than one client has rules.

use super::{Mismatch, Rule, RuleState, RuleStates};

/// Stored states, matched with rules.
pub(super) struct MatchedStates<'a> {
    /// For each rule its state, if it has one.
    pub(super) own: Vec<Option<&'a RuleState>>,
    /// The states of rules that only other clients have.
    pub(super) others: Vec<&'a RuleState>,
    /// Whether a rule has taken over the state of another.
    pub(super) converted: bool,
}

/// Matches states that are not in the order of these rules.
pub(super) fn match_states<'a>(
    rules: &[Rule],
    stored: &'a RuleStates,
    now: u64,
) -> Result<MatchedStates<'a>, Mismatch> {
    let mut free: Vec<Option<&RuleState>> = stored.iter().map(Some).collect();
    let mut found: Vec<Option<&RuleState>> = vec![None; rules.len()];
    for (rule, found) in rules.iter().zip(&mut found) {
        let like = |state: &&mut Option<&RuleState>| state.is_some_and(|state| rule.is_of(state));
        *found = match free.iter_mut().find(like) {
            Some(state) => state.take(),
            None => stored.iter().filter(|state| rule.is_of(state)).last(),
        };
    }
    let fits = |rule: &Rule, state: &Option<&RuleState>| {
        state.is_some_and(|state| state.algorithm() == rule.algorithm())
    };
    let mut converted = false;
    for same_position in [true, false] {
        for (i, (rule, found)) in rules.iter().zip(&mut found).enumerate() {
            if found.is_some() {
                continue;
            }
            let remaining = match same_position {
                true => free.get_mut(i).filter(|state| fits(rule, state)),
                false => free.iter_mut().find(|state| fits(rule, state)),
            };
            *found = remaining.and_then(Option::take);
            converted |= found.is_some();
        }
    }
    let others: Vec<&RuleState> = free.into_iter().flatten().collect();
    // A state that has ended does not matter.
    let live = others.iter().find(|state| state.ends(now) > now);
    for (rule, found) in rules.iter().zip(&found) {
        if let (None, Some(other)) = (found, live) {
            return Err(Mismatch {
                stored: other.algorithm(),
                requested: rule.algorithm(),
            });
        }
    }
    Ok(MatchedStates {
        own: found,
        others,
        converted,
    })
}

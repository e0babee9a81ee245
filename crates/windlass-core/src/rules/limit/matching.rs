//! Which state belongs to which rule.
//!
//! A limiter's quotas may be changed, reordered, added to and left out while it is in use, and callers with
//! different ones may share a name. What was used must not be forgotten by that. So states go by what they
//! are reckoned by, and not by their position:
//!
//! 1. A rule takes the first state that is reckoned as it reckons. If others like it have taken them all,
//!    it goes on from the last of them: what they have used, it would have used.
//! 2. A rule that finds none is a quota that has changed. It takes over a state of its algorithm that
//!    nobody took: that in its position, or else the first one. The state is reckoned anew.
//! 3. A rule that still finds none is a new one, and begins with nothing used. But if there is a state left
//!    over that has not ended, of another algorithm, then it may have replaced that one, and nothing can
//!    be carried over: this is a mismatch.
//!
//! What is left over belongs to rules that only others have, and is kept. Since a changed rule takes over
//! a state, there are never many more states than one caller has rules.

use super::{Mismatch, Rule, RuleState, RuleStates};

/// The states of these rules as they stand now, in the rules' order, and behind them what others have.
/// Says whether any was reckoned anew.
pub(super) fn bring_up(
    rules: &[Rule],
    stored: &RuleStates,
    now: u64,
) -> Result<(RuleStates, bool), Mismatch> {
    // As it mostly is: all in their places, or nothing there yet.
    let in_place = |(i, rule): (usize, &Rule)| stored.get(i).is_some_and(|s| rule.is_of(&s));
    if stored.is_empty() || rules.iter().enumerate().all(in_place) {
        let own = rules.iter().enumerate().map(|(i, rule)| {
            let state = stored.get(i);
            state.map_or_else(|| rule.fresh(now), |state| rule.bring_up(state, now))
        });
        let others = stored.iter().skip(rules.len());
        return Ok((stored.replaced(own.chain(others)), false));
    }
    let mut free: Vec<Option<RuleState>> = stored.iter().map(Some).collect();
    let mut found: Vec<Option<RuleState>> = vec![None; rules.len()];
    for (rule, found) in rules.iter().zip(&mut found) {
        let like = |state: &&mut Option<RuleState>| state.is_some_and(|state| rule.is_of(&state));
        *found = match free.iter_mut().find(like) {
            Some(state) => state.take(),
            None => stored.iter().filter(|state| rule.is_of(state)).last(),
        };
    }
    let fits = |rule: &Rule, state: &Option<RuleState>| {
        state.is_some_and(|state| state.algorithm() == rule.algorithm())
    };
    let mut converted = false;
    for in_its_place in [true, false] {
        for (i, (rule, found)) in rules.iter().zip(&mut found).enumerate() {
            if found.is_some() {
                continue;
            }
            let left = match in_its_place {
                true => free.get_mut(i).filter(|state| fits(rule, state)),
                false => free.iter_mut().find(|state| fits(rule, state)),
            };
            *found = left.and_then(Option::take);
            converted |= found.is_some();
        }
    }
    let others: Vec<RuleState> = free.into_iter().flatten().collect();
    // What has ended stands in nobody's way.
    let live = others.iter().find(|state| state.ends(now) > now);
    for (rule, found) in rules.iter().zip(&found) {
        if let (None, Some(other)) = (found, live) {
            return Err(Mismatch {
                stored: other.algorithm(),
                asked: rule.algorithm(),
            });
        }
    }
    let own = rules.iter().zip(found).map(|(rule, found)| {
        found.map_or_else(|| rule.fresh(now), |state| rule.bring_up(state, now))
    });
    Ok((stored.replaced(own.chain(others)), converted))
}

//! Holds: an estimate is charged at once, and settled when the true cost is known.
//!
//! Settling must leave every quota as if the true cost had been charged from the beginning, or with
//! less, never with more. Windows, logs and buckets that do not refill count units, so their refund is
//! exact: the units leave the window that they were charged to, and nothing is refunded to a window
//! that is over.
//!
//! A bucket is harder, because a full bucket wastes its refill. Its state is the time at which it is
//! full again (`tat`). Compare it with a second bucket that is charged the true cost in the first
//! place, and call its time `true_tat`. After the hold, `tat − true_tat` is the excess of the
//! estimate. It shrinks while the second bucket is full and the first is not yet, because only the
//! first one refills then. With `held_tat`, the time of the first bucket just after the hold, the
//! second one satisfies `true_tat ≤ max(held_tat − excess, now) + later`, where `later` is all that
//! was charged after the hold. If nothing was refunded meanwhile, `tat = held_tat + later`, so
//! `tat − min(excess, held_tat − now)` is never below `true_tat`. That is the refund.
//!
//! A refund to a later hold lowers `tat` and `true_tat` alike. But one to an earlier hold, made since,
//! lowers `tat` and not `later`: `held_tat` is then too high by it. [`Refunds`] counts what was
//! refunded, to holds of which time, so that `held_tat` can be lowered. It forgets details rather than
//! grow, and then a refund may be smaller than possible, never larger.
//!
//! Two more things postpone the use of units in a bucket. Leased units are used later than they are
//! charged, so nothing is refunded while some may be out. And a reservation that has to wait is used
//! later, too: a hold that was made before it gets no refund ([`Refunds::end_all`]).
//!
//! What the estimate lacks is charged when the hold is settled, even beyond the limit, because it was
//! used. A window then counts more than its limit; a bucket goes into debt, up to 16 times its burst.

use std::fmt;
use std::str::FromStr;

use super::rule::Rule;
use super::{MAX_PERIOD_MICROS, Mismatch, RuleOutcome, RuleState, RuleStates, Span, advance_all};

/// The largest debt of a bucket, as a multiple of its burst.
const MAX_DEBT: u64 = 16;
/// The most that is refunded to a bucket, in microseconds, before it is full for once: it stays
/// exact in Lua.
const MAX_REFUNDED: u64 = 1 << 52;
/// The most units that a window counts: far beyond any limit, so that refunds do not make up for
/// units that are not counted; and exact in Lua.
const MAX_COUNTED: u64 = 1 << 52;

/// What a store keeps of a hold until it is settled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRecord {
    /// When the estimate was charged, in microseconds of the store's clock.
    pub at: u64,
    /// The [mark](RuleStates::mark) of the states that were charged.
    pub mark: u64,
    /// What was charged to each quota.
    pub quotas: Vec<HeldQuota>,
}

/// What a hold charged to one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeldQuota {
    /// A token bucket.
    Bucket {
        /// The estimate.
        units: u64,
        /// The time in which it is refilled.
        cost: Span,
        /// The rate of the bucket.
        amount: u64,
        /// See `amount`.
        period: u64,
        /// The time of the bucket after the charge.
        tat: Span,
        /// All that was refunded to the bucket until then.
        refunded: u64,
    },
    /// A bucket that never refills.
    Allowance {
        /// The estimate.
        units: u64,
    },
    /// A window or a log, by the letter of its stored text.
    Window {
        /// `f`, `s` or `l`.
        letter: char,
        /// The estimate.
        units: u64,
        /// The length of the window.
        period: u64,
    },
}

impl HeldQuota {
    /// The estimate.
    pub fn units(&self) -> u64 {
        let (HeldQuota::Bucket { units, .. }
        | HeldQuota::Allowance { units }
        | HeldQuota::Window { units, .. }) = *self;
        units
    }

    fn of(rule: &Rule, state: &RuleState, units: u64) -> HeldQuota {
        match (rule, state) {
            (Rule::Bucket(b), RuleState::Bucket { tat, refunds, .. }) => HeldQuota::Bucket {
                units,
                cost: b.time_for(units),
                amount: b.amount,
                period: b.period,
                tat: *tat,
                refunded: refunds.as_ref().map_or(0, |refunds| refunds.total),
            },
            (Rule::Fixed { period, .. }, _) => HeldQuota::Window {
                letter: 'f',
                units,
                period: *period,
            },
            (Rule::Sliding { period, .. }, _) => HeldQuota::Window {
                letter: 's',
                units,
                period: *period,
            },
            (Rule::Log { period, .. }, _) => HeldQuota::Window {
                letter: 'l',
                units,
                period: *period,
            },
            _ => HeldQuota::Allowance { units },
        }
    }

    /// Whether it was charged to a quota of this rate or period.
    fn is_of(&self, rule: &Rule) -> bool {
        match (self, rule) {
            (HeldQuota::Bucket { amount, period, .. }, Rule::Bucket(b)) => {
                (*amount, *period) == (b.amount, b.period)
            }
            (HeldQuota::Allowance { .. }, Rule::Allowance { .. }) => true,
            (HeldQuota::Window { letter, period, .. }, rule) => match rule {
                Rule::Fixed { period: other, .. } => *letter == 'f' && period == other,
                Rule::Sliding { period: other, .. } => *letter == 's' && period == other,
                Rule::Log { period: other, .. } => *letter == 'l' && period == other,
                _ => false,
            },
            _ => false,
        }
    }
}

/// A settled hold, by one quota.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SettledQuota {
    /// What was charged at first.
    pub estimate: u64,
    /// What is charged after settling: the true cost; more, if a part of the refund came too late;
    /// less, if the quota cannot go further into debt.
    pub charged: u64,
}

/// Why a hold is not settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnsettledHold {
    /// The states are those of another algorithm.
    Mismatch(Mismatch),
    /// The hold was made with other quotas.
    OtherQuotas,
}

/// Charges each quota its own cost: all of them, or none. Returns what to keep of the hold, if it was
/// granted.
pub fn hold(
    rules: &[Rule],
    stored: &RuleStates,
    now: u64,
    costs: &[u64],
) -> Result<(RuleOutcome, Option<HoldRecord>), Mismatch> {
    let (states, converted) = advance_all(rules, stored, now)?;
    let cost = |i: usize| costs.get(i).copied().unwrap_or(0);
    let charge = |i: usize, state: &RuleState| match cost(i) {
        0 => Some(state.clone()),
        units => rules[i].charge(state, now, units, 0).map(with_holds),
    };
    let Some(mut charged) = states.try_map(rules.len(), charge) else {
        let outcome = RuleOutcome {
            granted: None,
            states,
            changed: converted,
        };
        return Ok((outcome, None));
    };
    let takes = (0..rules.len()).any(|i| cost(i) > 0);
    if takes {
        charged.set_mark(now);
    }
    let each = rules.iter().zip(charged.iter()).enumerate();
    let record = HoldRecord {
        at: now,
        mark: charged.mark(),
        quotas: each
            .map(|(i, (rule, state))| HeldQuota::of(rule, state, cost(i)))
            .collect(),
    };
    let outcome = RuleOutcome {
        granted: Some((0..rules.len()).map(cost).max().unwrap_or(0)),
        states: charged,
        changed: takes || converted,
    };
    Ok((outcome, Some(record)))
}

/// Replaces the estimate of a hold by the true costs, in each quota on its own.
pub fn settle(
    rules: &[Rule],
    stored: &RuleStates,
    now: u64,
    held: &HoldRecord,
    actual: &[u64],
) -> Result<(RuleOutcome, Vec<SettledQuota>), UnsettledHold> {
    let same = held.quotas.iter().zip(rules).all(|(q, rule)| q.is_of(rule));
    if !same || held.quotas.len() != rules.len() {
        return Err(UnsettledHold::OtherQuotas);
    }
    let (mut states, _) = advance_all(rules, stored, now).map_err(UnsettledHold::Mismatch)?;
    // Units charged to a state that was reset since are not returned to its successor; and if the
    // clock has stepped back, how much was refilled is not known.
    let refundable = held.mark != 0 && held.mark == states.mark() && held.at <= now;
    let mut changed = false;
    let mut settled = Vec::with_capacity(rules.len());
    for (i, (rule, quota)) in rules.iter().zip(&held.quotas).enumerate() {
        let (estimate, actual) = (quota.units(), actual.get(i).copied().unwrap_or(0));
        let state = states.get(i).cloned().unwrap_or_else(|| rule.fresh(now));
        let moved = if actual > estimate {
            Some(charge_rest(rule, &state, now, quota, actual))
        } else if actual < estimate && refundable {
            refund(rule, &state, now, (held.at, quota), actual)
        } else {
            None
        };
        let (state, amount) = moved.unwrap_or((state, Span::whole(0)));
        changed |= amount > Span::whole(0);
        states.set(i, state);
        settled.push(SettledQuota {
            estimate,
            charged: charged_units(rule, estimate, actual, amount),
        });
    }
    if changed {
        // What was charged beyond a bucket's burst is not the work of a clock that was ahead.
        states.set_mark(now);
    }
    let outcome = RuleOutcome {
        granted: Some(0),
        states,
        changed,
    };
    Ok((outcome, settled))
}

/// What is charged after this amount was refunded, or charged in addition: a time for a bucket, else
/// units. Fractions count as charged.
pub fn charged_units(rule: &Rule, estimate: u64, actual: u64, amount: Span) -> u64 {
    let units = match rule {
        Rule::Bucket(b) => b.units_in(amount),
        _ => amount.us,
    };
    match actual > estimate {
        true => (estimate + units).min(actual),
        false => estimate.saturating_sub(units).max(actual),
    }
}

/// The bucket counts refunds from now on.
fn with_holds(mut state: RuleState) -> RuleState {
    if let RuleState::Bucket { refunds, .. } = &mut state {
        refunds.get_or_insert_default();
    }
    state
}

/// What was refunded to the holds of a bucket, in microseconds, each refund rounded up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Refunds {
    /// All of it.
    total: u64,
    /// What was refunded to holds of a time, in the order of the times. Merged entries have the
    /// earlier time.
    recent: Vec<(u64, u64)>,
}

/// The entries of [`Refunds::recent`].
const MAX_RECENT: usize = 32;

impl Refunds {
    /// What was refunded to earlier holds since a hold was made, when `total` was this.
    fn since(&self, at: u64, total: u64) -> Option<u64> {
        let later = self.recent.iter().filter(|(time, _)| *time > at);
        let later: u64 = later.map(|(_, amount)| amount).sum();
        self.total.checked_sub(total)?.checked_sub(later)
    }

    /// Counts a refund to a hold of `at`. Entries of holds that can get no refund any more, because
    /// the whole bucket was refilled since, are dropped.
    fn add(&mut self, at: u64, amount: u64, now: u64, full: u64) {
        self.total = (self.total + amount).min(MAX_REFUNDED);
        self.recent.retain(|(time, _)| time + full > now);
        match self.recent.binary_search_by_key(&at, |(time, _)| *time) {
            Ok(i) => self.recent[i].1 += amount,
            Err(i) => self.recent.insert(i, (at, amount)),
        }
        if self.recent.len() > MAX_RECENT {
            let (_, amount) = self.recent.remove(1);
            self.recent[0].1 += amount;
        }
    }

    /// Ends the refunds of all holds that were made so far, as if all that they have charged had been
    /// refunded.
    pub(super) fn end_all(&mut self, tat: Span, now: u64) {
        self.total = (self.total + tat.ceil().saturating_sub(now)).min(MAX_REFUNDED);
    }

    pub(super) fn map_times(&self, time: impl Fn(u64) -> u64) -> Refunds {
        let recent = self.recent.iter().map(|&(at, amount)| (time(at), amount));
        Refunds {
            total: self.total,
            recent: recent.collect(),
        }
    }
}

/// The stored text: `r`, the total, then time and amount of each entry, with colons.
impl fmt::Display for Refunds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.total)?;
        for (at, amount) in &self.recent {
            write!(f, ":{at}:{amount}")?;
        }
        Ok(())
    }
}

/// Parses the text without its `r`.
impl FromStr for Refunds {
    type Err = ();

    fn from_str(text: &str) -> Result<Refunds, ()> {
        let numbers: Result<Vec<u64>, _> = text.split(':').map(str::parse).collect();
        let numbers = numbers.map_err(|_| ())?;
        let (total, recent) = numbers.split_first().ok_or(())?;
        let (recent, rest) = recent.as_chunks::<2>();
        if !rest.is_empty() {
            return Err(());
        }
        Ok(Refunds {
            total: *total,
            recent: recent.iter().map(|&[at, amount]| (at, amount)).collect(),
        })
    }
}

/// The state after the rest of the true cost is charged, and how much that is.
fn charge_rest(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    quota: &HeldQuota,
    actual: u64,
) -> (RuleState, Span) {
    let rest = actual - quota.units();
    let count = |count: u64| (count + rest).min(MAX_COUNTED).max(count);
    let mut changed = state.clone();
    let amount = match (rule, &mut changed) {
        (
            Rule::Bucket(b),
            RuleState::Bucket {
                limit,
                tat,
                refunds,
                ..
            },
        ) => {
            *limit = b.burst;
            refunds.get_or_insert_default();
            let debt = b.full.us.saturating_mul(MAX_DEBT).min(MAX_PERIOD_MICROS);
            let latest = b.full.plus(Span::whole(now + debt), b.amount);
            let wanted = b
                .time_for(actual)
                .minus(b.time_for(quota.units()), b.amount);
            let amount = wanted.min(latest.minus(*tat, b.amount));
            *tat = tat.plus(amount, b.amount);
            amount
        }
        (_, RuleState::Allowance { used: units, .. })
        | (_, RuleState::Fixed { count: units, .. })
        | (_, RuleState::Sliding { count: units, .. }) => {
            let before = *units;
            *units = count(before);
            Span::whole(*units - before)
        }
        (_, RuleState::Log { calls, .. }) => {
            let before = calls.units();
            let more = count(before) - before;
            if more > 0 {
                *calls = calls.with(now, more);
            }
            Span::whole(more)
        }
        _ => Span::whole(0),
    };
    (changed, amount)
}

/// The state after the excess of the estimate is refunded, and how much that is; `None` if nothing is.
fn refund(
    rule: &Rule,
    state: &RuleState,
    now: u64,
    (at, quota): (u64, &HeldQuota),
    actual: u64,
) -> Option<(RuleState, Span)> {
    let excess = quota.units() - actual;
    let mut changed = state.clone();
    let amount = match (rule, &mut changed, quota) {
        (
            Rule::Bucket(b),
            RuleState::Bucket {
                tat,
                leased,
                refunds,
                ..
            },
            HeldQuota::Bucket {
                tat: held_tat,
                refunded,
                ..
            },
        ) => {
            let leased_since = leased.since > 0 && leased.since + 2 * b.lease_time() > at;
            let refunds = refunds.get_or_insert_default();
            if leased_since || refunds.total >= MAX_REFUNDED {
                return None;
            }
            let meanwhile = refunds.since(at, *refunded)?;
            let left = held_tat.minus(Span::whole(now + meanwhile), b.amount);
            let wanted = b
                .time_for(quota.units())
                .minus(b.time_for(actual), b.amount);
            let amount = wanted.min(left);
            *tat = tat.minus(amount, b.amount).max(Span::whole(now));
            if amount > Span::whole(0) {
                refunds.add(at, amount.ceil(), now, b.full.ceil());
            }
            amount
        }
        (_, RuleState::Allowance { used, .. }, _) => {
            *used = used.checked_sub(excess)?;
            Span::whole(excess)
        }
        // Units of an earlier window have expired.
        (_, RuleState::Fixed { start, count, .. }, _) if at >= *start => {
            *count = count.checked_sub(excess)?;
            Span::whole(excess)
        }
        (_, RuleState::Sliding { start, count, .. }, _) if at >= *start => {
            *count = count.checked_sub(excess)?;
            Span::whole(excess)
        }
        (
            _,
            RuleState::Sliding {
                start,
                period,
                before,
                ..
            },
            _,
        ) if at + *period >= *start => {
            *before = before.checked_sub(excess)?;
            Span::whole(excess)
        }
        (_, RuleState::Log { calls, .. }, _) => {
            *calls = calls.without(at, excess)?;
            Span::whole(excess)
        }
        _ => return None,
    };
    Some((changed, amount))
}

impl HoldRecord {
    /// The same on another clock, whose time is `to` when this one's is `from`. The mark stays: it is
    /// only compared.
    pub fn moved(&self, from: u64, to: u64) -> HoldRecord {
        let moved = |time: u64| (time + to).saturating_sub(from);
        let each = |quota: &HeldQuota| match *quota {
            HeldQuota::Bucket {
                units,
                cost,
                amount,
                period,
                tat,
                refunded,
            } => HeldQuota::Bucket {
                units,
                cost,
                amount,
                period,
                tat: Span {
                    us: moved(tat.us),
                    ..tat
                },
                refunded,
            },
            other => other,
        };
        HoldRecord {
            at: moved(self.at),
            mark: self.mark,
            quotas: self.quotas.iter().map(each).collect(),
        }
    }
}

/// The stored text: the time and the mark, then for each quota its letter and numbers.
impl fmt::Display for HoldRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.at, self.mark)?;
        for quota in &self.quotas {
            match quota {
                HeldQuota::Bucket {
                    units,
                    cost,
                    amount,
                    period,
                    tat,
                    refunded,
                } => write!(
                    f,
                    ",t {units} {} {} {amount} {period} {} {} {refunded}",
                    cost.us, cost.part, tat.us, tat.part
                )?,
                HeldQuota::Allowance { units } => write!(f, ",z {units}")?,
                HeldQuota::Window {
                    letter,
                    units,
                    period,
                } => write!(f, ",{letter} {units} {period}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for HoldRecord {
    type Err = ();

    fn from_str(text: &str) -> Result<HoldRecord, ()> {
        let mut parts = text.split(',');
        let numbers = |text: &str| -> Result<Vec<u64>, ()> {
            let words = text.split(' ').map(str::parse);
            words.collect::<Result<_, _>>().map_err(|_| ())
        };
        let head = numbers(parts.next().ok_or(())?)?;
        let &[at, mark] = head.as_slice() else {
            return Err(());
        };
        let quota = |text: &str| {
            let (letter, rest) = text.split_once(' ').ok_or(())?;
            let numbers = numbers(rest)?;
            match (letter, numbers.as_slice()) {
                ("t", &[units, us, part, amount, period, tat_us, tat_part, refunded]) => {
                    Ok(HeldQuota::Bucket {
                        units,
                        cost: Span { us, part },
                        amount,
                        period,
                        tat: Span {
                            us: tat_us,
                            part: tat_part,
                        },
                        refunded,
                    })
                }
                ("z", &[units]) => Ok(HeldQuota::Allowance { units }),
                ("f" | "s" | "l", &[units, period]) => Ok(HeldQuota::Window {
                    letter: letter.chars().next().unwrap_or('f'),
                    units,
                    period,
                }),
                _ => Err(()),
            }
        };
        Ok(HoldRecord {
            at,
            mark,
            quotas: parts.map(quota).collect::<Result<_, ()>>()?,
        })
    }
}

//! Times with an exact fraction of a microsecond.

use super::rule::Bucket;

/// Microseconds and a fraction of one, whose denominator is the `amount` of the bucket it belongs
/// to.
///
/// Three units a second are 333 333⅓ µs apart. With the exact fraction, a year of them is exactly a
/// year.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span {
    /// Whole microseconds.
    pub us: u64,
    /// The numerator of the fraction.
    pub part: u64,
}

impl Span {
    /// A whole number of microseconds.
    #[inline(always)]
    pub fn whole(us: u64) -> Span {
        Span { us, part: 0 }
    }

    /// Rounded up.
    #[inline(always)]
    pub fn ceil(self) -> u64 {
        self.us + u64::from(self.part > 0)
    }

    /// The sum, for the denominator `amount`.
    #[inline(always)]
    pub fn plus(self, other: Span, amount: u64) -> Span {
        let part = self.part + other.part;
        match part >= amount {
            true => Span {
                us: self.us + other.us + 1,
                part: part - amount,
            },
            false => Span {
                us: self.us + other.us,
                part,
            },
        }
    }

    /// The difference, for the denominator `amount`; zero if it were negative.
    #[inline(always)]
    pub fn minus(self, other: Span, amount: u64) -> Span {
        if self <= other {
            return Span::whole(0);
        }
        match self.part >= other.part {
            true => Span {
                us: self.us - other.us,
                part: self.part - other.part,
            },
            false => Span {
                us: self.us - other.us - 1,
                part: self.part + amount - other.part,
            },
        }
    }
}

impl Bucket {
    /// How long this many units take to refill.
    #[inline(always)]
    pub fn time_for(&self, units: u64) -> Span {
        if units == 1 {
            return self.unit;
        }
        match units.checked_mul(self.period) {
            Some(whole) => Span {
                us: whole / self.amount,
                part: whole % self.amount,
            },
            None => {
                let (whole, amount) = (
                    u128::from(units) * u128::from(self.period),
                    u128::from(self.amount),
                );
                Span {
                    // Longer than any burst takes, so that the call is denied.
                    us: u64::try_from(whole / amount).unwrap_or(u64::MAX / 4),
                    part: (whole % amount) as u64,
                }
            }
        }
    }

    /// How many whole units refill within a time.
    #[inline(always)]
    pub fn units_in(&self, time: Span) -> u64 {
        if let Some(parts) = time
            .us
            .checked_mul(self.amount)
            .and_then(|us| us.checked_add(time.part))
        {
            return parts / self.period;
        }
        let parts = u128::from(time.us) * u128::from(self.amount) + u128::from(time.part);
        u64::try_from(parts / u128::from(self.period)).unwrap_or(u64::MAX)
    }
}

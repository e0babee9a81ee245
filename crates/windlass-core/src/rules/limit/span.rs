//! Times with an exact fraction of a microsecond.

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

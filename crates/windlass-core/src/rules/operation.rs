//! Idempotent additions: made once, however often they are requested.
//!
//! The outcome of an addition is kept under its operation id. A client with many additions, one
//! after the other, numbers them under one id, and only the last outcome is kept: the client sends
//! a number only after it has received the answer to the number before.

use super::counter::Sum;

/// The recorded outcome of an operation id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// The number of the addition; 0 if it is the only one.
    pub number: u64,
    /// The amount requested.
    pub amount: i64,
    /// The outcome.
    pub sum: Sum,
}

/// The operation was done before with this amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherAmount(pub i64);

impl Done {
    /// The outcome of this addition, if it was made before.
    pub fn answer(&self, number: u64, amount: i64) -> Option<Result<Sum, OtherAmount>> {
        if number > self.number {
            return None;
        }
        // A lower number is a delayed duplicate: its client has its answer already.
        Some(match number < self.number || amount == self.amount {
            true => Ok(self.sum),
            false => Err(OtherAmount(self.amount)),
        })
    }

    /// What to record. A single addition that was out of bounds may be tried again. A numbered one
    /// may not: the client adds its amount to the next number.
    pub fn new(number: u64, amount: i64, sum: Sum) -> Option<Done> {
        (sum.added || number > 0).then_some(Done {
            number,
            amount,
            sum,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(value: i64, added: bool) -> Sum {
        Sum { value, added }
    }

    #[test]
    fn a_single_addition_is_made_once() {
        let done = Done::new(0, 5, sum(7, true)).unwrap();
        assert_eq!(done.answer(0, 5), Some(Ok(sum(7, true))));
        assert_eq!(done.answer(0, 6), Some(Err(OtherAmount(5))));
        assert_eq!(Done::new(0, 5, sum(7, false)), None, "may be tried again");
    }

    #[test]
    fn of_numbered_additions_the_last_is_recorded() {
        let third = Done::new(3, 5, sum(7, true)).unwrap();
        assert_eq!(third.answer(4, 1), None);
        assert_eq!(third.answer(3, 5), Some(Ok(sum(7, true))));
        assert_eq!(third.answer(3, 6), Some(Err(OtherAmount(5))));
        assert_eq!(third.answer(2, 9), Some(Ok(sum(7, true))), "late");
        let refused = Done::new(4, 5, sum(7, false)).unwrap();
        assert_eq!(refused.answer(4, 5), Some(Ok(sum(7, false))));
    }
}

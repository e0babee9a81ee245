//! Additions that are made once, however often they are asked for.
//!
//! What was done under an id is remembered. Somebody who has many to make, one after the other, numbers
//! them under one id, and only the last one is remembered: an earlier number was done before, or its
//! answer would not have been heard and the next one not be sent.

use super::counter::Sum;

/// What is remembered of an id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Which of several it was; 0 if it is the only one.
    pub number: u64,
    /// How much was to be added.
    pub amount: i64,
    /// What became of it.
    pub sum: Sum,
}

/// The same was done before, with this amount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OtherAmount(pub i64);

impl Done {
    /// What became of this one, if it was done before.
    pub fn answer(&self, number: u64, amount: i64) -> Option<Result<Sum, OtherAmount>> {
        if number > self.number {
            return None;
        }
        // An earlier one that was held up on its way: nobody waits for the answer.
        Some(match number < self.number || amount == self.amount {
            true => Ok(self.sum),
            false => Err(OtherAmount(self.amount)),
        })
    }

    /// What to remember. One that was refused may be tried again; but if it was one of several, then its
    /// amount goes into the next one, and it must never be added after all.
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
    fn one_is_done_once() {
        let done = Done::new(0, 5, sum(7, true)).unwrap();
        assert_eq!(done.answer(0, 5), Some(Ok(sum(7, true))));
        assert_eq!(done.answer(0, 6), Some(Err(OtherAmount(5))));
        assert_eq!(Done::new(0, 5, sum(7, false)), None, "may be tried again");
    }

    #[test]
    fn of_several_the_last_is_remembered() {
        let third = Done::new(3, 5, sum(7, true)).unwrap();
        assert_eq!(third.answer(4, 1), None);
        assert_eq!(third.answer(3, 5), Some(Ok(sum(7, true))));
        assert_eq!(third.answer(3, 6), Some(Err(OtherAmount(5))));
        assert_eq!(third.answer(2, 9), Some(Ok(sum(7, true))), "late");
        let refused = Done::new(4, 5, sum(7, false)).unwrap();
        assert_eq!(refused.answer(4, 5), Some(Ok(sum(7, false))));
    }
}

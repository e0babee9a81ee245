//! A value that a majority agrees on, changed by whoever reads it first: how a node promises and
//! accepts, and when a value is settled.
//!
//! Whoever wants to change the value draws a number from each node, as for a fence ([`super::vote`]), and
//! hears with it what the node keeps. If a majority gave the same number, it takes the value with
//! the highest number of those it heard, changes that, and has the nodes accept the outcome under its own
//! number. A node accepts it only if it has given nobody another number since. So of two who read the same
//! value, only one changes it: the node that their majorities have in common has promised to the
//! later one, which has read what the earlier one wrote, or the earlier one is refused.
//!
//! This is the Synod protocol of Lamport's "Paxos made simple", with a value that each round computes from
//! the one before. It needs no clock. It needs that nodes remember what they accepted: one that may have
//! forgotten is not heard until it has accepted something again, or anything that it can have forgotten
//! has ended. That it forgets a promise does no harm: it accepts nothing without one, one that it
//! finds on its disk from before is void, and the counter that numbers come from only rises.

use super::vote::{agreed, draw};

/// What one node keeps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Register<V> {
    /// The number that it gave last, and accepts a value under.
    pub promised: Option<u64>,
    /// What it accepted last, and under which number.
    pub accepted: Option<(u64, V)>,
}

impl<V: Clone> Register<V> {
    /// Draws a number, which is the only one under which a value is accepted from now on.
    pub fn promise(&mut self, counter: &mut u64, proposal: u64) -> (u64, Option<(u64, V)>) {
        let number = draw(counter, proposal);
        self.promised = Some(number);
        (number, self.accepted.clone())
    }

    /// Accepts a value, if that number was promised last.
    pub fn accept(&mut self, number: u64, value: V) -> bool {
        if self.promised != Some(number) {
            return false;
        }
        self.accepted = Some((number, value));
        true
    }
}

/// The number under which a value can be written, if enough of those who remember have given it.
pub fn ballot(numbers: &[u64], majority: usize) -> Option<u64> {
    agreed(numbers, majority)
}

/// The latest of the values that a majority keeps, and whether so many have accepted it that nobody can
/// miss it any more. One that is not settled has to be written again before anybody may count on it.
pub fn latest<V>(kept: &[Option<(u64, V)>], majority: usize) -> Option<(&V, bool)> {
    let kept = || kept.iter().flatten();
    let (highest, value) = kept().max_by_key(|(number, _)| *number)?;
    let same = kept().filter(|(number, _)| number == highest).count();
    Some((value, same >= majority))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_number_that_was_promised_last_is_good() {
        let (mut node, mut counter) = (Register::default(), 10);
        assert!(!node.accept(10, 'a'), "nothing was promised");
        assert_eq!(node.promise(&mut counter, 12), (12, None));
        assert_eq!(node.promise(&mut counter, 12), (13, None));
        assert!(!node.accept(12, 'a'), "another has asked since");
        assert!(node.accept(13, 'b'));
        assert_eq!(node.promise(&mut counter, 20), (20, Some((13, 'b'))));
        assert!(!node.accept(13, 'c'));
    }

    #[test]
    fn the_highest_number_counts_and_a_majority_settles_it() {
        assert_eq!(latest::<char>(&[None, None], 2), None);
        assert_eq!(latest(&[Some((3, 'a')), None], 2), Some((&'a', false)));
        let mixed = [Some((3, 'a')), Some((4, 'b')), Some((3, 'a'))];
        assert_eq!(latest(&mixed, 2), Some((&'b', false)));
        let same = [Some((4, 'b')), None, Some((4, 'b'))];
        assert_eq!(latest(&same, 2), Some((&'b', true)));
    }
}

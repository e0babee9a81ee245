//! Fences over a change of masters.
//!
//! Replication is asynchronous, and so is what reaches the disk: a master that takes over, or one that
//! starts anew, may have forgotten the last numbers that were given out. Each start of a reign has a
//! replication id of its own. Before the first grant over a connection, whoever asks for it makes sure
//! that the counter was raised for that reign: `scripts/reign.lua` does so once. So no fence of a new
//! reign is as low as one of an old reign, whatever got lost, and no clock is needed for it as long as
//! fewer than [`MARGIN`] grants got lost.
//!
//! What gets lost may include the raise, with all grants that followed it. Sentinels and clusters number
//! their masters, each higher than the one before ([`MasterEpoch::epoch`]): the counter is raised for each number
//! since the one that it was raised for last, and so two masters that begin from the same copy do not begin
//! at the same fence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redis::Cmd;

use super::script;
use super::slots::SLOTS;

/// More grants than a replica can have missed while it was connected: 256 MB of them (the usual limit of
/// what a master keeps for a slow replica), at less than a hundred bytes each, are under 4 million. As
/// microseconds, which a counter starts from, they are 4 seconds.
const MARGIN: u64 = 1 << 22;

/// What each number is worth: grants that got lost, and up to three starts that got lost with them.
const STEP: u64 = 4 * MARGIN;

/// A server that is the master, from when it became so, or started as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MasterEpoch {
    /// Another one for each.
    pub(super) id: Arc<str>,
    /// By which decision it is the master, where those are counted: a master that was appointed later has
    /// a higher one.
    pub(super) epoch: Option<u64>,
    /// Whether the server is a node of a cluster. Its epoch changes with the slots that it is given, without
    /// another reign: so it is asked for when a counter is raised, and `epoch` is what it is at least.
    pub(super) is_node: bool,
}

impl MasterEpoch {
    /// What raises a counter for this reign, unless that was done.
    pub(super) fn raise(&self, fences: &str, mark: &str) -> Cmd {
        let mut raise = redis::cmd("EVAL");
        raise.arg(script::MASTER_EPOCH.source()).arg(2);
        raise.arg(fences).arg(mark).arg(&*self.id).arg(MARGIN);
        match self.epoch {
            Some(epoch) => raise.arg(epoch),
            None => raise.arg(""),
        };
        raise.arg(STEP).arg(u8::from(self.is_node));
        raise
    }

    /// The same on a node that a slot is on its way to, which has no epoch for it yet: it begins from the copy of
    /// one that was appointed by this decision.
    pub(super) fn taking_over_from(&self, epoch: Option<u64>) -> MasterEpoch {
        MasterEpoch {
            epoch: self.epoch.max(epoch),
            ..self.clone()
        }
    }
}

/// Whether a command takes numbers from the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FenceUse {
    None,
    /// Not usually, and it must be tried even on a server that refuses to raise the counter: one that takes
    /// no writes refuses to draw from it, too. (One that has no memory left raises it all the same.)
    Possible,
    Certain,
}

/// For which counters that was made sure, over one connection.
#[derive(Debug)]
pub(super) struct CheckedSlots {
    slots: Box<[AtomicU64]>,
    /// How often something was taken back: what was being made sure of at that time is not.
    generation: AtomicU64,
}

impl CheckedSlots {
    pub(super) fn new() -> CheckedSlots {
        let words = usize::from(SLOTS) / 64;
        CheckedSlots {
            slots: (0..words).map(|_| AtomicU64::new(0)).collect(),
            generation: AtomicU64::new(0),
        }
    }

    pub(super) fn has(&self, slot: u16) -> bool {
        let (word, bit) = place(slot);
        self.slots[word].load(Ordering::Acquire) & bit != 0
    }

    /// To be asked for before it is made sure.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// It was made sure, unless something was taken back since.
    pub(super) fn set(&self, slot: u16, since: u64) {
        let (word, bit) = place(slot);
        self.slots[word].fetch_or(bit, Ordering::SeqCst);
        // Looked at afterwards: whoever takes it back later finds it, whoever did before is seen here.
        if self.generation() != since {
            self.slots[word].fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// It is elsewhere, or has come from there.
    pub(super) fn clear(&self, slot: u16) {
        let (word, bit) = place(slot);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.slots[word].fetch_and(!bit, Ordering::SeqCst);
    }

    /// Any of them may have been elsewhere, and come back.
    pub(super) fn clear_all(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let words = self.slots.iter();
        words.for_each(|word| word.store(0, Ordering::SeqCst));
    }
}

fn place(slot: u16) -> (usize, u64) {
    (usize::from(slot / 64), 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use windlass_testkit::RedisServer;

    use super::*;

    #[test]
    fn what_was_taken_back_while_it_was_made_sure_is_not_sure() {
        let assured = CheckedSlots::new();
        let since = assured.generation();
        assured.set(7, since);
        assert!(assured.has(7) && !assured.has(8));
        assured.clear(8);
        assert!(assured.has(7));
        // The answer to a raise of before arrives late.
        for take_back in [|a: &CheckedSlots| a.clear(7), CheckedSlots::clear_all] {
            let since = assured.generation();
            take_back(&assured);
            assured.set(7, since);
            assert!(!assured.has(7));
        }
        assured.set(7, assured.generation());
        assert!(assured.has(7));
    }

    /// What a copy of the data has: the counter, and whose it was.
    type Copy = (String, String);

    /// A server on which every reign begins from the copy that it is said to have.
    struct Throne(RedisServer);

    impl Throne {
        fn command(&self, words: &[&str]) -> String {
            self.0.command(words).unwrap()
        }

        /// Begins a reign. The copy as it is then.
        fn begin(&self, (counter, mark): &Copy, id: u64, epoch: Option<u64>) -> Copy {
            self.command(&["SET", "f", counter]);
            self.command(&["SET", "m", mark]);
            let id = Arc::from(format!("{id:040x}"));
            let raise = MasterEpoch {
                id,
                epoch,
                is_node: false,
            }
            .raise("f", "m");
            let words = raise.args_iter().map(|word| match word {
                redis::Arg::Simple(word) => std::str::from_utf8(word).unwrap(),
                _ => unreachable!("all words are plain"),
            });
            self.command(&words.collect::<Vec<_>>());
            self.copy()
        }

        fn copy(&self) -> Copy {
            (self.command(&["GET", "f"]), self.command(&["GET", "m"]))
        }
    }

    fn fence(copy: &Copy) -> u64 {
        copy.0.parse().unwrap()
    }

    /// Far ahead of any clock, which so is of no help.
    const AHEAD: &str = "4000000000000000";

    #[test]
    fn fences_grow_although_a_raise_is_lost_with_all_that_followed() {
        let throne = Throne(RedisServer::start().unwrap());
        for _ in 0..10 {
            let first = throne.begin(&(AHEAD.to_owned(), String::new()), 0, Some(3));
            let (mut epoch, mut highest) = (3, 0);
            // Every state that somebody may have a copy of, and in which reign it was.
            let mut copies = vec![(first, 0)];
            for reign in 0..20 {
                let mut grant = |copies: &mut Vec<(Copy, u64)>| {
                    let some = rand::random_range(1..9).to_string();
                    throne.command(&["INCRBY", "f", &some]);
                    let now = throne.copy();
                    highest = highest.max(fence(&now));
                    copies.push((now, reign));
                    highest
                };
                let highest = (0..3).map(|_| grant(&mut copies)).max().unwrap();
                // The same master starts again, with all or most of what it knew.
                let kept = copies.len() - 1 - rand::random_range(0..3);
                let now = throne.begin(&copies[kept].0, 1000 + reign, Some(epoch));
                assert!(fence(&now) > highest, "{now:?} after {highest}");
                let highest = grant(&mut copies);
                // Another one takes over, which may have missed up to three whole reigns.
                epoch += rand::random_range(1..4);
                copies.retain(|(_, of)| of + 2 >= reign);
                let copy = &copies[rand::random_range(0..copies.len())].0;
                let now = throne.begin(copy, reign + 1, Some(epoch));
                assert!(fence(&now) > highest, "{now:?} after {highest}");
                copies.push((now, reign + 1));
            }
        }
    }

    #[test]
    fn a_counter_is_raised_once_for_each_reign() {
        let throne = Throne(RedisServer::start().unwrap());
        let unused = (AHEAD.to_owned(), String::new());
        let plain = throne.begin(&unused, 1, None);
        assert_eq!(fence(&plain), fence(&unused) + MARGIN);
        assert_eq!(throne.begin(&plain, 1, None), plain);
        // Who knows of numbers notes this one; who does not leaves it alone.
        let noted = throne.begin(&plain, 1, Some(5));
        assert_eq!(fence(&noted), fence(&plain));
        for epoch in [Some(5), Some(4), None] {
            assert_eq!(throne.begin(&noted, 1, epoch), noted);
        }
        let unnumbered = throne.begin(&noted, 2, None);
        assert_eq!(fence(&unnumbered), fence(&noted) + MARGIN);
        let next = throne.begin(&unnumbered, 3, Some(7));
        assert_eq!(fence(&next), fence(&unnumbered) + 2 * STEP);
        // Sentinels that were set up anew count from the beginning, and the highest number stays noted.
        let anew = throne.begin(&next, 4, Some(1));
        assert_eq!(fence(&anew), fence(&next) + MARGIN);
        assert!(anew.1.ends_with(" 7"), "{anew:?}");
        let strange = throne.begin(&anew, 5, Some(u64::MAX));
        assert_eq!(fence(&strange), fence(&anew) + 65536 * STEP);
    }

    /// Whoever gives up a place there may draw for the next one: such scripts begin with what takes no memory.
    #[test]
    fn a_full_server_raises_its_counter_too() {
        let throne = Throne(RedisServer::start().unwrap());
        let copy = throne.begin(&(AHEAD.to_owned(), String::new()), 1, Some(1));
        throne.command(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(throne.0.command(&["SET", "x", "1"]).is_err(), "it is full");
        let raise = MasterEpoch {
            id: Arc::from(format!("{:040x}", 2)),
            epoch: Some(2),
            is_node: false,
        }
        .raise("f", "m");
        let words = raise.args_iter().map(|word| match word {
            redis::Arg::Simple(word) => std::str::from_utf8(word).unwrap(),
            _ => unreachable!("all words are plain"),
        });
        throne.command(&words.collect::<Vec<_>>());
        assert_eq!(fence(&throne.copy()), fence(&copy) + STEP);
    }

    /// Nobody knows for which numbers it was raised, so it is raised for all.
    #[test]
    fn a_mark_without_a_number_counts_as_none() {
        let throne = Throne(RedisServer::start().unwrap());
        let plain = throne.begin(&(AHEAD.to_owned(), String::new()), 1, None);
        let (one, other) = (
            throne.begin(&plain, 2, Some(5)),
            throne.begin(&plain, 3, Some(6)),
        );
        assert!(fence(&other) >= fence(&one) + STEP);
    }

    #[test]
    fn slots_do_not_stand_for_each_other() {
        let assured = CheckedSlots::new();
        for slot in [0, 63, 64, SLOTS - 1] {
            assert!(!assured.has(slot));
            assured.set(slot, assured.generation());
            assert!(assured.has(slot));
        }
        assert!(!assured.has(1) && !assured.has(65));
        assured.clear_all();
        assert!(!assured.has(63) && !assured.has(SLOTS - 1));
    }
}

//! Fences across failovers: why a fencing token of a new master is always higher than those of the
//! old one.
//!
//! **The problem.** Replication and persistence are asynchronous. A replica that is promoted, or a
//! master that restarts, may lack the last grants, and with them the last values of the fence
//! counter. Counting on from there would hand out fences a second time.
//!
//! **The rule.** A fence never exceeds the server's clock in microseconds. A counter starts from the
//! clock and grows by one for each grant, and no server grants a million times a second. So the
//! clock is above every fence that was granted before, whatever was lost: the newest grants, earlier
//! raises, or the counter itself, on this server or on the master before it.
//!
//! A server gets a new replication id (`master_replid`) whenever it starts to be a master. Before the
//! first fence is taken over a connection, the client runs `scripts/master_epoch.lua`, which compares
//! that id with the one stored beside the counter. If they differ, it stores the new id and sets the
//! counter to the clock. Nothing is ever added on top of the clock: two masters that start from copies
//! of different age would add different sums.
//!
//! **What it relies on.** The clocks of two servers that become master one after the other differ by
//! less than the time between these moments, which is at least the time that a failover takes. A
//! counter that is up to [`MAX_WAIT`] ahead of the new master's clock shows that they differ: the
//! client waits until the clock has caught up.
//!
//! **A counter further ahead of the clock** (the clock was set back, or another program wrote the
//! counter) keeps counting. Then the clock says nothing about lost grants, and the raise is a number of
//! grants: more than can have been lost ([`MARGIN`]), and for Sentinel and Redis Cluster, which number
//! their failovers (`config-epoch`, [`MasterEpoch::number`]), as much for every number since the one
//! stored beside the counter. A counter that vanishes in this state starts lower.
//!
//! **What the client remembers.** [`CheckedSlots`] records, for each connection, the slots whose
//! counter has been checked, so that the script runs once per connection and slot. A reconnect
//! starts with none. In a cluster a slot can leave a node and return: the record is cleared
//! whenever that may have happened (`cluster/slot_map.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::Cmd;

use super::script;
use super::slots::SLOTS;

/// How far a counter may be ahead of the clock so that the client waits for the clock.
const MAX_WAIT: Duration = Duration::from_secs(4);

/// More grants than a replica can have missed while it was connected: 256 MB of them (the usual
/// limit of the buffer that a master keeps for a slow replica), at less than a hundred bytes each,
/// are under 4 million.
const MARGIN: u64 = 1 << 22;

/// The raise for each failover number: room for lost grants, and for up to three restarts that were
/// lost with them.
const STEP: u64 = 4 * MARGIN;

/// The period during which one server is the master: from its promotion or start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MasterEpoch {
    /// Unique for each period.
    pub(super) replication_id: Arc<str>,
    /// The number of the failover that made it the master, if failovers are numbered: a later
    /// master has a higher one.
    pub(super) number: Option<u64>,
    /// Whether the server is a node of a cluster. Its number changes with the slots it is given,
    /// while the replication id stays: the script reads the current number from the node, and
    /// `number` is a lower bound.
    pub(super) is_cluster_node: bool,
}

impl MasterEpoch {
    /// The command that raises a fence counter for this epoch, unless that has been done. `mark` is
    /// the key that stores the epoch of the last raise. The reply is 0, or the microseconds after
    /// which to try again.
    pub(super) fn raise(&self, fences: &str, mark: &str) -> Cmd {
        let mut raise = redis::cmd("EVAL");
        raise.arg(script::MASTER_EPOCH.source()).arg(2);
        raise.arg(fences).arg(mark).arg(&*self.replication_id);
        match self.number {
            Some(number) => raise.arg(number),
            None => raise.arg(""),
        };
        raise.arg(u8::from(self.is_cluster_node));
        raise.arg(MAX_WAIT.as_micros() as u64).arg(MARGIN).arg(STEP);
        raise
    }

    /// The epoch to raise for on a node that is importing a slot. The node's own number does not
    /// count for that slot yet, and its data is the copy of a node whose number is `source`.
    pub(super) fn importing_from(&self, source: Option<u64>) -> MasterEpoch {
        MasterEpoch {
            number: self.number.max(source),
            ..self.clone()
        }
    }
}

/// Whether a command takes values from the fence counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum FenceUse {
    None,
    /// Seldom. The command is sent even if the server refuses to raise the counter: a server that
    /// takes no writes refuses the increment as well, and one that is out of memory still raises
    /// it.
    Possible,
    Certain,
}

/// The slots whose fence counter was checked over one connection.
#[derive(Debug)]
pub(super) struct CheckedSlots {
    slots: Box<[AtomicU64]>,
    /// Grows with each `clear`: a check that was under way at that time does not count.
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

    pub(super) fn contains(&self, slot: u16) -> bool {
        let (word, bit) = position(slot);
        self.slots[word].load(Ordering::Acquire) & bit != 0
    }

    /// To be read before a check starts.
    pub(super) fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    /// Records a check, unless something was cleared since it started at generation `since`.
    pub(super) fn insert(&self, slot: u16, since: u64) {
        let (word, bit) = position(slot);
        self.slots[word].fetch_or(bit, Ordering::SeqCst);
        // Compared after the bit is set: a later `clear` finds the bit, and an earlier one is seen
        // here.
        if self.generation() != since {
            self.slots[word].fetch_and(!bit, Ordering::SeqCst);
        }
    }

    /// The slot has left this server, or has come to it.
    pub(super) fn clear(&self, slot: u16) {
        let (word, bit) = position(slot);
        self.generation.fetch_add(1, Ordering::SeqCst);
        self.slots[word].fetch_and(!bit, Ordering::SeqCst);
    }

    /// Any slot may have left this server and returned.
    pub(super) fn clear_all(&self) {
        self.generation.fetch_add(1, Ordering::SeqCst);
        let words = self.slots.iter();
        words.for_each(|word| word.store(0, Ordering::SeqCst));
    }
}

fn position(slot: u16) -> (usize, u64) {
    (usize::from(slot / 64), 1 << (slot % 64))
}

#[cfg(test)]
mod tests {
    use windlass_testkit::RedisServer;

    use super::*;

    #[test]
    fn a_check_that_overlaps_a_clear_does_not_count() {
        let checked = CheckedSlots::new();
        let since = checked.generation();
        checked.insert(7, since);
        assert!(checked.contains(7) && !checked.contains(8));
        checked.clear(8);
        assert!(checked.contains(7));
        // The answer to an earlier raise arrives late.
        for clear in [|c: &CheckedSlots| c.clear(7), CheckedSlots::clear_all] {
            let since = checked.generation();
            clear(&checked);
            checked.insert(7, since);
            assert!(!checked.contains(7));
        }
        checked.insert(7, checked.generation());
        assert!(checked.contains(7));
    }

    #[test]
    fn each_slot_has_its_own_bit() {
        let checked = CheckedSlots::new();
        for slot in [0, 63, 64, SLOTS - 1] {
            assert!(!checked.contains(slot));
            checked.insert(slot, checked.generation());
            assert!(checked.contains(slot));
        }
        assert!(!checked.contains(1) && !checked.contains(65));
        checked.clear_all();
        assert!(!checked.contains(63) && !checked.contains(SLOTS - 1));
    }

    /// A copy of the data: the counter, and the mark of its last raise.
    type Copy = (String, String);

    /// A server that starts every epoch from a given copy.
    struct Master(RedisServer);

    impl Master {
        fn start() -> Master {
            Master(RedisServer::start().unwrap())
        }

        fn command(&self, words: &[&str]) -> String {
            self.0.command(words).unwrap()
        }

        /// Returns the microseconds after which to try again.
        fn raise(&self, id: u64, number: Option<u64>) -> u64 {
            let epoch = MasterEpoch {
                replication_id: Arc::from(format!("{id:040x}")),
                number,
                is_cluster_node: false,
            };
            let raise = epoch.raise("f", "m");
            let words = raise.args_iter().map(|word| match word {
                redis::Arg::Simple(word) => std::str::from_utf8(word).unwrap(),
                _ => unreachable!("all words are plain"),
            });
            self.command(&words.collect::<Vec<_>>()).parse().unwrap()
        }

        /// Grants a free lock.
        fn grant(&self) -> u64 {
            let keys = ["4", "f", "lock", "queue", "claim"];
            let request = ["1", "acquire", "owner", "1000", "", "channel 1 "];
            let script = ["EVAL", script::LOCK.source()];
            let fence = self.command(&[&script[..], &keys, &request].concat());
            self.command(&["DEL", "lock"]);
            fence.parse().unwrap()
        }

        fn clock(&self) -> u64 {
            let time = self.command(&["TIME"]);
            let mut parts = time.lines().map(|part| part.parse::<u64>().unwrap());
            parts.next().unwrap() * 1_000_000 + parts.next().unwrap()
        }

        /// Starts an epoch from a copy, and returns the copy after the raise.
        fn begin(&self, (counter, mark): &Copy, id: u64, number: Option<u64>) -> Copy {
            self.command(&["SET", "f", counter]);
            self.command(&["SET", "m", mark]);
            assert_eq!(self.raise(id, number), 0, "the clock need not catch up");
            self.copy()
        }

        fn copy(&self) -> Copy {
            (self.command(&["GET", "f"]), self.command(&["GET", "m"]))
        }
    }

    fn fence(copy: &Copy) -> u64 {
        copy.0.parse().unwrap()
    }

    /// Masters start from copies of any age, with or without a number, restart, and lose the
    /// counter, the mark or both.
    #[test]
    fn fences_grow_whatever_copy_a_master_starts_from() {
        let master = Master::start();
        let (mut highest, mut number) = (0, 1);
        let mut copies: Vec<Copy> = Vec::new();
        for epoch in 0..300 {
            match rand::random_range(0..10) {
                0 => drop(master.command(&["FLUSHALL"])),
                1 => drop(master.command(&["DEL", "f"])),
                2 => drop(master.command(&["DEL", "m"])),
                3 => {}
                _ => {
                    number += rand::random_range(0..3);
                    let numbered = rand::random_bool(0.8).then_some(number);
                    match copies.len() {
                        0 => assert_eq!(master.raise(epoch, numbered), 0),
                        some => {
                            let copy = &copies[rand::random_range(0..some)];
                            master.begin(copy, epoch, numbered);
                        }
                    }
                }
            }
            for _ in 0..3 {
                let fence = master.grant();
                assert!(fence > highest, "{fence} after {highest} in epoch {epoch}");
                highest = fence;
                assert!(fence <= master.clock(), "fences stay behind the clock");
            }
            if master.command(&["EXISTS", "m"]) == "1" {
                copies.push(master.copy());
            }
        }
    }

    /// The clock of the new master is a little slow.
    #[test]
    fn a_counter_just_ahead_of_the_clock_is_waited_for() {
        let master = Master::start();
        let ahead = (master.clock() + 300_000).to_string();
        master.command(&["SET", "f", &ahead]);
        master.command(&["SET", "m", "1 1"]);
        let mut waits = 0;
        loop {
            let wait = master.raise(2, Some(2));
            if wait == 0 {
                break;
            }
            waits += 1;
            assert!(wait <= 300_001, "{wait}");
            assert_eq!(
                master.copy(),
                (ahead.clone(), "1 1".to_owned()),
                "unchanged"
            );
            std::thread::sleep(Duration::from_micros(wait));
        }
        assert!(waits > 0 && fence(&master.copy()) > ahead.parse().unwrap());
        assert!(fence(&master.copy()) <= master.clock());
    }

    /// A counter far ahead of any clock, so that starting from the clock cannot help.
    const AHEAD: &str = "4000000000000000";

    /// A state that a replica may have a copy of.
    struct Replica {
        copy: Copy,
        epoch: u64,
        /// Restarts of masters that the copy includes.
        restarts: u64,
    }

    /// [`STEP`] allows for three lost restarts. They add up over several failovers: a replica that
    /// lacks more is not promoted here.
    #[test]
    fn fences_grow_when_a_raise_is_lost_with_everything_after_it() {
        let master = Master::start();
        for _ in 0..10 {
            let (mut number, mut highest, mut restarts, mut most_restarts) = (3, 0, 0, 0);
            let mut replicas = vec![Replica {
                copy: master.begin(&(AHEAD.to_owned(), String::new()), 0, Some(number)),
                epoch: 0,
                restarts,
            }];
            for epoch in 0..20 {
                let mut grant = |replicas: &mut Vec<Replica>, restarts| {
                    let some = rand::random_range(1..9).to_string();
                    master.command(&["INCRBY", "f", &some]);
                    let copy = master.copy();
                    highest = highest.max(fence(&copy));
                    replicas.push(Replica {
                        copy,
                        epoch,
                        restarts,
                    });
                    highest
                };
                let highest = (0..3).map(|_| grant(&mut replicas, restarts)).max();
                // The same master restarts, with all or most of its data.
                let kept = replicas.len() - 1 - rand::random_range(0..3);
                let now = master.begin(&replicas[kept].copy, 1000 + epoch, Some(number));
                assert!(Some(fence(&now)) > highest, "{now:?} after {highest:?}");
                restarts += 1;
                most_restarts = most_restarts.max(restarts);
                let highest = grant(&mut replicas, restarts);
                // A replica is promoted, which may have missed up to three whole epochs.
                number += rand::random_range(1..4);
                replicas.retain(|replica| replica.epoch + 2 >= epoch);
                let may_lead = |replica: &&Replica| replica.restarts + 3 >= most_restarts;
                let candidates: Vec<&Replica> = replicas.iter().filter(may_lead).collect();
                let promoted = candidates[rand::random_range(0..candidates.len())];
                restarts = promoted.restarts;
                let now = master.begin(&promoted.copy, epoch + 1, Some(number));
                assert!(fence(&now) > highest, "{now:?} after {highest}");
                replicas.push(Replica {
                    copy: now,
                    epoch: epoch + 1,
                    restarts,
                });
            }
        }
    }

    #[test]
    fn a_counter_is_raised_once_for_each_epoch() {
        let master = Master::start();
        let unused = (AHEAD.to_owned(), String::new());
        let plain = master.begin(&unused, 1, None);
        assert_eq!(fence(&plain), fence(&unused) + MARGIN);
        assert_eq!(master.begin(&plain, 1, None), plain);
        // A client that knows the number stores it; one that does not leaves it unchanged.
        let numbered = master.begin(&plain, 1, Some(5));
        assert_eq!(fence(&numbered), fence(&plain));
        for number in [Some(5), Some(4), None] {
            assert_eq!(master.begin(&numbered, 1, number), numbered);
        }
        let unnumbered = master.begin(&numbered, 2, None);
        assert_eq!(fence(&unnumbered), fence(&numbered) + MARGIN);
        let next = master.begin(&unnumbered, 3, Some(7));
        assert_eq!(fence(&next), fence(&unnumbered) + 2 * STEP);
        // Sentinels that were set up again count from the beginning; the highest number stays
        // stored.
        let reset = master.begin(&next, 4, Some(1));
        assert_eq!(fence(&reset), fence(&next) + MARGIN);
        assert!(reset.1.ends_with(" 7"), "{reset:?}");
        let strange = master.begin(&reset, 5, Some(u64::MAX));
        assert_eq!(fence(&strange), fence(&reset) + 65536 * STEP);
    }

    /// A release on a full server may grant to the next waiter, which takes a fence: the raise must
    /// work there too.
    #[test]
    fn a_full_server_raises_its_counter_too() {
        let master = Master::start();
        let copy = master.begin(&(AHEAD.to_owned(), String::new()), 1, Some(1));
        master.command(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(master.0.command(&["SET", "x", "1"]).is_err(), "it is full");
        master.raise(2, Some(2));
        assert_eq!(fence(&master.copy()), fence(&copy) + STEP);
    }

    /// The numbers it was raised for are unknown, so it is raised for all of them.
    #[test]
    fn a_mark_without_a_number_counts_as_zero() {
        let master = Master::start();
        let plain = master.begin(&(AHEAD.to_owned(), String::new()), 1, None);
        let (one, other) = (
            master.begin(&plain, 2, Some(5)),
            master.begin(&plain, 3, Some(6)),
        );
        assert!(fence(&other) >= fence(&one) + STEP);
    }
}

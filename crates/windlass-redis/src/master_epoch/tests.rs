//! The script that raises the fence counter, on a real server.

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
        let keys = ["3", "f", "lock", "lock:line:"];
        let request = ["1", "t", "1000", "channel", "1", "owner"];
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

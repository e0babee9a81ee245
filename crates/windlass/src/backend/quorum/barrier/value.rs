//! All of a barrier as one value, and how time passes in it.
//!
//! Nobody's clock is written down. The value says how long each claim had left when it was written, and how long it is
//! to be kept; each node that keeps it says how much of that is left, by its own clock, and so how long ago
//! it was. Of those who keep the same value, the one counts that says the least: so a node whose clock has
//! jumped ahead ends nobody's claim by itself, and none ends before its ttl has passed since its last
//! renewal was sent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Found;
use crate::backend::rules::claims as rules;
use crate::backend::rules::line::{Line, MemoryLine, Record, Room};
use crate::backend::{Kind, Occupancy, WakeAddress};
use crate::error::{Error, ErrorKind, Result};
use crate::lease::{Fence, Moment, Owner};
use crate::name::Name;

/// When the value was written, on a clock that is set by that.
const WRITTEN: Moment = Moment::from_nanos(1 << 62);
/// The form in which it is written.
const FORM: u32 = 1;

/// How a barrier is now.
#[derive(Debug)]
pub(in crate::backend::quorum) struct State {
    pub(super) line: MemoryLine,
    pub(super) now: Moment,
    /// The highest number that was given to anybody.
    pub(super) last: u64,
}

/// As the nodes keep it. Times are in microseconds, so that rounding adds up to nothing.
#[derive(Serialize, Deserialize)]
struct Written {
    form: u32,
    /// How long it is to be kept, in milliseconds: what is left of that tells how long ago it was written.
    keep: u64,
    size: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    open: Option<u64>,
    last: u64,
    held: Vec<Party>,
    line: Vec<Party>,
}

#[derive(Serialize, Deserialize)]
struct Party {
    owner: String,
    fence: u64,
    client: u64,
    claim: u64,
    weight: u32,
    ttl: u64,
    left: u64,
    age: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Party {
    fn of(record: &Record, now: Moment) -> Party {
        // Rounded up: nothing ends early.
        let left = record.expires.since(now) + Duration::from_nanos(999);
        Party {
            owner: record.owner.as_str().to_owned(),
            fence: record.fence.get(),
            client: record.wake.client,
            claim: record.wake.claim,
            weight: record.weight,
            ttl: micros(record.ttl),
            left: micros(left),
            age: micros(now.since(record.since)),
            note: record.note.as_deref().map(str::to_owned),
        }
    }

    fn record(self) -> Option<Record> {
        Some(Record {
            owner: Owner::new(&self.owner).ok()?,
            fence: Fence::new(self.fence),
            weight: self.weight,
            ttl: Duration::from_micros(self.ttl),
            expires: WRITTEN + Duration::from_micros(self.left),
            since: WRITTEN - Duration::from_micros(self.age),
            note: self.note.map(Into::into),
            wake: WakeAddress {
                client: self.client,
                claim: self.claim,
            },
        })
    }
}

impl State {
    /// What was found, as of now; a barrier that nobody is at, if nothing was.
    pub(super) fn read(found: Option<&Found>) -> Result<State> {
        let Some(found) = found else {
            return Ok(State {
                line: MemoryLine::default(),
                now: WRITTEN,
                last: 0,
            });
        };
        let written: Option<Written> = serde_json::from_slice(&found.value).ok();
        let state = written.and_then(|written| written.state(found.left));
        state.ok_or_else(|| {
            let message = "the nodes keep something under this name that is no barrier, or that a later \
                           version wrote";
            Error::new(ErrorKind::WrongType, "call", message)
        })
    }

    /// As it is to be kept for so long.
    pub(super) fn write(&self, keep: Duration) -> Vec<u8> {
        let room = self.line.room();
        let party = |record: &Record| Party::of(record, self.now);
        let written = Written {
            form: FORM,
            keep: u64::try_from(keep.as_millis()).unwrap_or(u64::MAX),
            size: room.size,
            open: room.open.map(Fence::get),
            last: self.last,
            held: self.line.held().map(party).collect(),
            line: self.line.in_line().map(party).collect(),
        };
        serde_json::to_vec(&written).expect("texts and numbers can be written")
    }

    pub(super) fn occupancy(mut self, name: &Name, most: usize) -> Occupancy {
        // Looking draws no numbers.
        let mut none = || Fence::new(0);
        let mut line = self.line.with(&mut none);
        let Ok(seen) = rules::inspect(&mut line, Kind::Barrier, name.as_str(), self.now, most);
        seen
    }

    /// The fence of a claim that is in.
    pub(super) fn holds(&self, owner: &Owner, wake: WakeAddress) -> Option<Fence> {
        let mut held = self.line.held();
        let it = held.find(|r| r.owner == *owner && r.wake == wake && r.expires > self.now)?;
        Some(it.fence)
    }

    /// Whether a claim is in line.
    pub(super) fn waits(&self, owner: &Owner, wake: WakeAddress) -> bool {
        let mut line = self.line.in_line();
        line.any(|r| r.owner == *owner && r.wake == wake && r.expires > self.now)
    }
}

impl Written {
    fn state(self, left: Duration) -> Option<State> {
        if self.form != FORM {
            return None;
        }
        let records = |parties: Vec<Party>| -> Option<Vec<Record>> {
            parties.into_iter().map(Party::record).collect()
        };
        let (held, line) = (records(self.held)?, records(self.line)?);
        let room = Room {
            size: self.size,
            used: held.iter().map(|r| u64::from(r.weight)).sum(),
            overtook: Fence::new(0),
            open: self.open.map(Fence::new),
            until: WRITTEN,
        };
        Some(State {
            line: MemoryLine::restored(room, held, line),
            now: WRITTEN + Duration::from_millis(self.keep).saturating_sub(left),
            last: self.last,
        })
    }
}

/// Whether one more may come. Those who died in line give way first, which they otherwise do in their turn.
pub(super) fn has_room(line: &mut MemoryLine, now: Moment, owner: &Owner, most: usize) -> bool {
    if line.held().count() + line.in_line().count() < most {
        return true;
    }
    let dead: Vec<Record> = line
        .in_line()
        .filter(|r| r.expires <= now)
        .cloned()
        .collect();
    let known = line.held().chain(line.in_line()).any(|r| r.owner == *owner);
    let mut none = || Fence::new(0);
    let mut numbered = line.with(&mut none);
    for record in &dead {
        let Ok(()) = numbered.remove_waiter(record);
    }
    known || !dead.is_empty()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn party(owner: usize, left: u64) -> Record {
        Record {
            owner: Owner::new(&format!("owner-{owner}")).unwrap(),
            fence: Fence::new(owner as u64),
            weight: 1,
            ttl: Duration::from_secs(60),
            expires: WRITTEN + Duration::from_secs(left),
            since: WRITTEN,
            note: None,
            wake: WakeAddress {
                client: 1,
                claim: owner as u64,
            },
        }
    }

    #[test]
    fn the_dead_in_line_give_way_when_there_are_too_many() {
        let line = || {
            let in_line = [party(3, 60), party(4, 10), party(5, 60)];
            MemoryLine::restored(Room::UNKNOWN, [party(1, 60), party(2, 60)], in_line)
        };
        let now = WRITTEN + Duration::from_secs(20);
        let newcomer = Owner::new("newcomer").unwrap();
        let count = |line: &MemoryLine| line.held().count() + line.in_line().count();
        let mut some = line();
        assert!(has_room(&mut some, now, &newcomer, 6));
        assert_eq!(count(&some), 5);
        assert!(has_room(&mut some, now, &newcomer, 5), "one is dead");
        assert_eq!(count(&some), 4);
        assert!(!has_room(&mut some, now, &newcomer, 4));
        let known = party(3, 60).owner;
        assert!(has_room(&mut some, now, &known, 4), "it is there");
        assert_eq!(count(&some), 4);
        assert!(
            !has_room(&mut line(), WRITTEN, &newcomer, 5),
            "not dead yet"
        );
    }
}

//! Everyone who has a claim to one name: those who hold, and those in queue behind them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::store::WakeAddress;
use crate::{Fence, Moment, Owner};

/// One claim, held or waiting.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRecord {
    /// Whose.
    pub owner: Owner,
    /// Drawn once, on arrival: the ticket in queue, and the fence of the grant. Where nobody
    /// overtakes, grants come in the order of places, so fences grow.
    pub fence: Fence,
    /// How much of the pool it takes.
    pub weight: u32,
    /// The life that was asked for.
    pub ttl: Duration,
    /// When the claim is dead unless renewed.
    pub expires: Moment,
    /// When it was granted (held) or made (waiting).
    pub since: Moment,
    /// Shown to others.
    pub note: Option<Arc<str>>,
    /// Whom to wake.
    pub wake: WakeAddress,
}

/// How much pool there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// In all; 0 if nobody has said it lately.
    pub size: u32,
    /// How much of it is taken, by the dead too until they are removed.
    pub used: u64,
    /// The highest fence granted ahead of somebody who waited.
    pub overtook: Fence,
    /// For a barrier: all parties have come, and not all have gone. The number is this round's alone.
    pub open: Option<Fence>,
    /// Until when the size is remembered though nobody needs it.
    pub until: Moment,
}

impl Pool {
    /// Nothing is known.
    pub const UNKNOWN: Pool = Pool {
        size: 0,
        used: 0,
        overtook: Fence::new(0),
        open: None,
        until: Moment::from_nanos(0),
    };
}

/// The storage of one queue: a map in memory, or rows of a table.
pub trait WaitQueue {
    /// What can go wrong in storage.
    type Error;

    /// What is known of the pool.
    fn pool(&mut self) -> Result<Pool, Self::Error>;
    /// Keeps what is known of the pool.
    fn set_pool(&mut self, pool: Pool) -> Result<(), Self::Error>;
    /// The holder with this owner, dead or alive.
    fn holder(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Self::Error>;
    /// The holder whose claim ends first, dead or alive.
    fn first_to_expire(&mut self) -> Result<Option<ClaimRecord>, Self::Error>;
    /// Up to `most` living holders, those first whose claims end first.
    fn holders(&mut self, now: Moment, most: usize) -> Result<Vec<ClaimRecord>, Self::Error>;
    /// How much pool dead holders take.
    fn dead_weight(&mut self, now: Moment) -> Result<u64, Self::Error>;
    /// The waiter in front.
    fn first(&mut self) -> Result<Option<ClaimRecord>, Self::Error>;
    /// The waiter with this owner.
    fn waiter(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Self::Error>;
    /// Makes `record` a holder, new or changed.
    fn set_holder(&mut self, record: ClaimRecord) -> Result<(), Self::Error>;
    /// Puts `record` in queue, new or changed.
    fn set_waiter(&mut self, record: ClaimRecord) -> Result<(), Self::Error>;
    /// The holder holds no more.
    fn remove_holder(&mut self, holder: &ClaimRecord) -> Result<(), Self::Error>;
    /// Takes a waiter out of the queue.
    fn remove_waiter(&mut self, record: &ClaimRecord) -> Result<(), Self::Error>;
    /// How many wait.
    fn waiters(&mut self) -> Result<u64, Self::Error>;
    /// A number higher than all before, for every name.
    fn next_fence(&mut self) -> Result<Fence, Self::Error>;
}

/// A queue in memory.
#[derive(Clone, Debug)]
pub struct MemoryQueue {
    pool: Pool,
    holders: Holders,
    waiting: BTreeMap<Fence, ClaimRecord>,
    places: HashMap<Owner, Fence>,
}

impl Default for MemoryQueue {
    fn default() -> MemoryQueue {
        MemoryQueue {
            pool: Pool::UNKNOWN,
            holders: Holders::One(None),
            waiting: BTreeMap::new(),
            places: HashMap::new(),
        }
    }
}

impl MemoryQueue {
    /// Whether nobody holds or waits.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiting.is_empty()
    }

    /// Whether nothing is left to remember: every claim is dead, and the size need not be known any
    /// more.
    pub fn is_dead(&self, now: Moment) -> bool {
        self.pool.until <= now
            && self.holders.all(|r| r.expires <= now)
            && self.waiting.values().all(|r| r.expires <= now)
    }

    /// Binds the queue to the counter that its fences come from.
    pub fn with<'a>(&'a mut self, fences: &'a mut dyn FnMut() -> Fence) -> Numbered<'a> {
        Numbered {
            queue: self,
            fences,
        }
    }

    /// Makes one owner's claim expire now, as if its ttl had passed.
    pub fn expire(&mut self, owner: &Owner) {
        self.end_by(owner, Moment::from_nanos(0));
    }

    /// Makes one owner's claim older, so that it ends by then.
    pub fn end_by(&mut self, owner: &Owner, end: Moment) {
        if let Some(mut holder) = self.holders.of(owner).cloned() {
            holder.expires = holder.expires.min(end);
            self.holders.set(holder);
        }
        if let Some(waiter) = self
            .places
            .get(owner)
            .and_then(|ticket| self.waiting.get_mut(ticket))
        {
            waiter.expires = waiter.expires.min(end);
        }
    }
}

/// Those who hold. Most often it is one, and then it costs no more than that.
#[derive(Clone, Debug)]
enum Holders {
    One(Option<ClaimRecord>),
    Many(Box<Many>),
}

#[derive(Clone, Debug, Default)]
struct Many {
    by_owner: HashMap<Owner, ClaimRecord>,
    by_end: BTreeSet<(Moment, Fence, Owner)>,
}

impl Many {
    fn set(&mut self, record: ClaimRecord) {
        let end = |r: &ClaimRecord| (r.expires, r.fence, r.owner.clone());
        if let Some(old) = self.by_owner.get(&record.owner) {
            self.by_end.remove(&end(old));
        }
        self.by_end.insert(end(&record));
        self.by_owner.insert(record.owner.clone(), record);
    }
}

impl Holders {
    fn is_empty(&self) -> bool {
        match self {
            Holders::One(one) => one.is_none(),
            Holders::Many(many) => many.by_owner.is_empty(),
        }
    }

    fn all(&self, mut is: impl FnMut(&ClaimRecord) -> bool) -> bool {
        match self {
            Holders::One(one) => one.iter().all(is),
            Holders::Many(many) => many.by_owner.values().all(&mut is),
        }
    }

    fn of(&self, owner: &Owner) -> Option<&ClaimRecord> {
        match self {
            Holders::One(one) => one.as_ref().filter(|r| r.owner == *owner),
            Holders::Many(many) => many.by_owner.get(owner),
        }
    }

    fn first(&self) -> Option<&ClaimRecord> {
        match self {
            Holders::One(one) => one.as_ref(),
            Holders::Many(many) => many
                .by_end
                .first()
                .map(|(_, _, owner)| &many.by_owner[owner]),
        }
    }

    /// In the order in which they end.
    fn in_order(&self) -> Box<dyn Iterator<Item = &ClaimRecord> + '_> {
        match self {
            Holders::One(one) => Box::new(one.iter()),
            Holders::Many(many) => Box::new(
                many.by_end
                    .iter()
                    .map(|(_, _, owner)| &many.by_owner[owner]),
            ),
        }
    }

    fn set(&mut self, record: ClaimRecord) {
        match self {
            Holders::One(one) if one.as_ref().is_none_or(|r| r.owner == record.owner) => {
                *one = Some(record);
            }
            Holders::One(one) => {
                let mut many = Many::default();
                one.take().into_iter().for_each(|first| many.set(first));
                many.set(record);
                *self = Holders::Many(Box::new(many));
            }
            Holders::Many(many) => many.set(record),
        }
    }

    fn remove(&mut self, owner: &Owner) {
        match self {
            Holders::One(one) => *one = None,
            Holders::Many(many) => {
                if let Some(old) = many.by_owner.remove(owner) {
                    many.by_end.remove(&(old.expires, old.fence, old.owner));
                }
                if many.by_owner.is_empty() {
                    *self = Holders::One(None);
                }
            }
        }
    }
}

/// A [`MemoryQueue`] with a source of fences.
#[expect(missing_debug_implementations, reason = "borrows a closure")]
pub struct Numbered<'a> {
    queue: &'a mut MemoryQueue,
    fences: &'a mut dyn FnMut() -> Fence,
}

impl WaitQueue for Numbered<'_> {
    type Error = Infallible;

    fn pool(&mut self) -> Result<Pool, Infallible> {
        Ok(self.queue.pool)
    }

    fn set_pool(&mut self, pool: Pool) -> Result<(), Infallible> {
        self.queue.pool = pool;
        Ok(())
    }

    fn holder(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Infallible> {
        Ok(self.queue.holders.of(owner).cloned())
    }

    fn first_to_expire(&mut self) -> Result<Option<ClaimRecord>, Infallible> {
        Ok(self.queue.holders.first().cloned())
    }

    fn holders(&mut self, now: Moment, most: usize) -> Result<Vec<ClaimRecord>, Infallible> {
        let alive = self.queue.holders.in_order().filter(|r| r.expires > now);
        Ok(alive.take(most).cloned().collect())
    }

    fn dead_weight(&mut self, now: Moment) -> Result<u64, Infallible> {
        let dead = self.queue.holders.in_order();
        let dead = dead.take_while(|r| r.expires <= now);
        Ok(dead.map(|r| u64::from(r.weight)).sum())
    }

    fn first(&mut self) -> Result<Option<ClaimRecord>, Infallible> {
        Ok(self.queue.waiting.first_key_value().map(|(_, r)| r.clone()))
    }

    fn waiter(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Infallible> {
        let ticket = self.queue.places.get(owner);
        Ok(ticket.map(|p| self.queue.waiting[p].clone()))
    }

    fn set_holder(&mut self, record: ClaimRecord) -> Result<(), Infallible> {
        self.queue.holders.set(record);
        Ok(())
    }

    fn set_waiter(&mut self, record: ClaimRecord) -> Result<(), Infallible> {
        self.queue.places.insert(record.owner.clone(), record.fence);
        self.queue.waiting.insert(record.fence, record);
        Ok(())
    }

    fn remove_holder(&mut self, holder: &ClaimRecord) -> Result<(), Infallible> {
        self.queue.holders.remove(&holder.owner);
        Ok(())
    }

    fn remove_waiter(&mut self, record: &ClaimRecord) -> Result<(), Infallible> {
        self.queue.waiting.remove(&record.fence);
        self.queue.places.remove(&record.owner);
        Ok(())
    }

    fn waiters(&mut self) -> Result<u64, Infallible> {
        Ok(self.queue.waiting.len() as u64)
    }

    fn next_fence(&mut self) -> Result<Fence, Infallible> {
        Ok((self.fences)())
    }
}

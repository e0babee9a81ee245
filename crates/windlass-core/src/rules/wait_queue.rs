//! The state of one name: its pool, its holders and its wait queue. See
//! [`store::claims`](crate::store::claims) for the terms.
//!
//! The [claim rules](super::claims) work on the trait [`WaitQueue`]. [`MemoryQueue`] implements it
//! in memory; the file store has an implementation in SQL.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::store::WakeAddress;
use crate::{Fence, Moment, Owner};

/// One claim, held or waiting.
#[derive(Clone, Debug, PartialEq)]
pub struct ClaimRecord {
    /// Its owner.
    pub owner: Owner,
    /// The ticket while it waits, the fence while it is held. Taken once, on arrival: without
    /// barging, grants come in the order of tickets, so fences grow.
    pub fence: Fence,
    /// The part of the pool that it takes.
    pub weight: u32,
    /// The TTL requested.
    pub ttl: Duration,
    /// When it expires unless renewed.
    pub expires: Moment,
    /// When it was granted (held) or enqueued (waiting).
    pub since: Moment,
    /// Text that inspection shows.
    pub note: Option<Arc<str>>,
    /// Where to send its wake-up.
    pub wake: WakeAddress,
}

/// The capacity of a name, shared by weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// The capacity; 0 if it is not known.
    pub size: u32,
    /// The weight of all holders, including expired ones until they are removed.
    pub used: u64,
    /// The highest fence granted to a claim that overtook the queue.
    pub overtook: Fence,
    /// For a barrier, from when all parties have arrived until all have left: a number unique to
    /// this round.
    pub open: Option<Fence>,
    /// Until when the size is kept without holders and waiters.
    pub until: Moment,
}

impl Pool {
    /// The pool of a name without any state.
    pub const UNKNOWN: Pool = Pool {
        size: 0,
        used: 0,
        overtook: Fence::new(0),
        open: None,
        until: Moment::from_nanos(0),
    };
}

/// Access to the holders and waiters of one name: maps in memory, or rows of a table.
///
/// Storage knows nothing of expiry: expired claims are returned like others unless stated
/// otherwise, and the rules remove them.
pub trait WaitQueue {
    /// A failure of the storage.
    type Error;

    /// The pool; [`Pool::UNKNOWN`] if nothing is stored.
    fn pool(&mut self) -> Result<Pool, Self::Error>;
    /// Stores the pool.
    fn set_pool(&mut self, pool: Pool) -> Result<(), Self::Error>;
    /// The holder with this owner.
    fn holder(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Self::Error>;
    /// The holder whose claim expires first.
    fn first_to_expire(&mut self) -> Result<Option<ClaimRecord>, Self::Error>;
    /// Up to `most` holders that have not expired, in the order of their expiry.
    fn holders(&mut self, now: Moment, most: usize) -> Result<Vec<ClaimRecord>, Self::Error>;
    /// The weight of expired holders.
    fn expired_weight(&mut self, now: Moment) -> Result<u64, Self::Error>;
    /// The waiter with the lowest ticket.
    fn first_waiter(&mut self) -> Result<Option<ClaimRecord>, Self::Error>;
    /// The waiter with this owner.
    fn waiter(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Self::Error>;
    /// Stores a holder, new or changed.
    fn set_holder(&mut self, record: ClaimRecord) -> Result<(), Self::Error>;
    /// Stores a waiter, new or changed.
    fn set_waiter(&mut self, record: ClaimRecord) -> Result<(), Self::Error>;
    /// Removes a holder.
    fn remove_holder(&mut self, holder: &ClaimRecord) -> Result<(), Self::Error>;
    /// Removes a waiter.
    fn remove_waiter(&mut self, record: &ClaimRecord) -> Result<(), Self::Error>;
    /// The number of waiters that have not expired.
    fn waiter_count(&mut self, now: Moment) -> Result<u64, Self::Error>;
    /// Takes the next fence: higher than all before, for every name of the store.
    fn next_fence(&mut self) -> Result<Fence, Self::Error>;
}

/// The state of one name in memory.
#[derive(Clone, Debug)]
pub struct MemoryQueue {
    pool: Pool,
    holders: HolderSet,
    waiting: BTreeMap<Fence, ClaimRecord>,
    tickets: HashMap<Owner, Fence>,
}

impl Default for MemoryQueue {
    fn default() -> MemoryQueue {
        MemoryQueue {
            pool: Pool::UNKNOWN,
            holders: HolderSet::One(None),
            waiting: BTreeMap::new(),
            tickets: HashMap::new(),
        }
    }
}

impl MemoryQueue {
    /// Whether there are no holders and no waiters.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.waiting.is_empty()
    }

    /// Whether it can be dropped: every claim has expired, and so has the retention of the size.
    pub fn is_expired(&self, now: Moment) -> bool {
        self.pool.until <= now
            && self.holders.all(|r| r.expires <= now)
            && self.waiting.values().all(|r| r.expires <= now)
    }

    /// Binds the queue to the counter that its fences come from.
    pub fn with<'a>(&'a mut self, fences: &'a mut dyn FnMut() -> Fence) -> FencedQueue<'a> {
        FencedQueue {
            queue: self,
            fences,
        }
    }

    /// Makes one owner's claim expire now, as if its TTL had passed. For tests.
    pub fn expire(&mut self, owner: &Owner) {
        self.end_by(owner, Moment::from_nanos(0));
    }

    /// Makes one owner's claim expire by `end`. For tests.
    pub fn end_by(&mut self, owner: &Owner, end: Moment) {
        if let Some(mut holder) = self.holders.get(owner).cloned() {
            holder.expires = holder.expires.min(end);
            self.holders.set(holder);
        }
        if let Some(waiter) = self
            .tickets
            .get(owner)
            .and_then(|ticket| self.waiting.get_mut(ticket))
        {
            waiter.expires = waiter.expires.min(end);
        }
    }
}

/// The holders of a name. Most names have one, which needs no map.
#[derive(Clone, Debug)]
enum HolderSet {
    One(Option<ClaimRecord>),
    Many(Box<ManyHolders>),
}

#[derive(Clone, Debug, Default)]
struct ManyHolders {
    by_owner: HashMap<Owner, ClaimRecord>,
    by_expiry: BTreeSet<(Moment, Fence, Owner)>,
}

impl ManyHolders {
    fn set(&mut self, record: ClaimRecord) {
        let expiry = |r: &ClaimRecord| (r.expires, r.fence, r.owner.clone());
        if let Some(old) = self.by_owner.get(&record.owner) {
            self.by_expiry.remove(&expiry(old));
        }
        self.by_expiry.insert(expiry(&record));
        self.by_owner.insert(record.owner.clone(), record);
    }
}

impl HolderSet {
    fn is_empty(&self) -> bool {
        match self {
            HolderSet::One(one) => one.is_none(),
            HolderSet::Many(many) => many.by_owner.is_empty(),
        }
    }

    fn all(&self, mut is: impl FnMut(&ClaimRecord) -> bool) -> bool {
        match self {
            HolderSet::One(one) => one.iter().all(is),
            HolderSet::Many(many) => many.by_owner.values().all(&mut is),
        }
    }

    fn get(&self, owner: &Owner) -> Option<&ClaimRecord> {
        match self {
            HolderSet::One(one) => one.as_ref().filter(|r| r.owner == *owner),
            HolderSet::Many(many) => many.by_owner.get(owner),
        }
    }

    fn first(&self) -> Option<&ClaimRecord> {
        match self {
            HolderSet::One(one) => one.as_ref(),
            HolderSet::Many(many) => many
                .by_expiry
                .first()
                .map(|(_, _, owner)| &many.by_owner[owner]),
        }
    }

    /// In the order of their expiry.
    fn in_order(&self) -> Box<dyn Iterator<Item = &ClaimRecord> + '_> {
        match self {
            HolderSet::One(one) => Box::new(one.iter()),
            HolderSet::Many(many) => Box::new(
                many.by_expiry
                    .iter()
                    .map(|(_, _, owner)| &many.by_owner[owner]),
            ),
        }
    }

    fn set(&mut self, record: ClaimRecord) {
        match self {
            HolderSet::One(one) if one.as_ref().is_none_or(|r| r.owner == record.owner) => {
                *one = Some(record);
            }
            HolderSet::One(one) => {
                let mut many = ManyHolders::default();
                one.take().into_iter().for_each(|first| many.set(first));
                many.set(record);
                *self = HolderSet::Many(Box::new(many));
            }
            HolderSet::Many(many) => many.set(record),
        }
    }

    fn remove(&mut self, owner: &Owner) {
        match self {
            HolderSet::One(one) => *one = None,
            HolderSet::Many(many) => {
                if let Some(old) = many.by_owner.remove(owner) {
                    many.by_expiry.remove(&(old.expires, old.fence, old.owner));
                }
                if many.by_owner.is_empty() {
                    *self = HolderSet::One(None);
                }
            }
        }
    }
}

/// A [`MemoryQueue`] and a source of fences.
#[expect(missing_debug_implementations, reason = "borrows a closure")]
pub struct FencedQueue<'a> {
    queue: &'a mut MemoryQueue,
    fences: &'a mut dyn FnMut() -> Fence,
}

impl WaitQueue for FencedQueue<'_> {
    type Error = Infallible;

    fn pool(&mut self) -> Result<Pool, Infallible> {
        Ok(self.queue.pool)
    }

    fn set_pool(&mut self, pool: Pool) -> Result<(), Infallible> {
        self.queue.pool = pool;
        Ok(())
    }

    fn holder(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Infallible> {
        Ok(self.queue.holders.get(owner).cloned())
    }

    fn first_to_expire(&mut self) -> Result<Option<ClaimRecord>, Infallible> {
        Ok(self.queue.holders.first().cloned())
    }

    fn holders(&mut self, now: Moment, most: usize) -> Result<Vec<ClaimRecord>, Infallible> {
        let alive = self.queue.holders.in_order().filter(|r| r.expires > now);
        Ok(alive.take(most).cloned().collect())
    }

    fn expired_weight(&mut self, now: Moment) -> Result<u64, Infallible> {
        let holders = self.queue.holders.in_order();
        let expired = holders.take_while(|r| r.expires <= now);
        Ok(expired.map(|r| u64::from(r.weight)).sum())
    }

    fn first_waiter(&mut self) -> Result<Option<ClaimRecord>, Infallible> {
        Ok(self.queue.waiting.first_key_value().map(|(_, r)| r.clone()))
    }

    fn waiter(&mut self, owner: &Owner) -> Result<Option<ClaimRecord>, Infallible> {
        let ticket = self.queue.tickets.get(owner);
        Ok(ticket.map(|ticket| self.queue.waiting[ticket].clone()))
    }

    fn set_holder(&mut self, record: ClaimRecord) -> Result<(), Infallible> {
        self.queue.holders.set(record);
        Ok(())
    }

    fn set_waiter(&mut self, record: ClaimRecord) -> Result<(), Infallible> {
        self.queue
            .tickets
            .insert(record.owner.clone(), record.fence);
        self.queue.waiting.insert(record.fence, record);
        Ok(())
    }

    fn remove_holder(&mut self, holder: &ClaimRecord) -> Result<(), Infallible> {
        self.queue.holders.remove(&holder.owner);
        Ok(())
    }

    fn remove_waiter(&mut self, record: &ClaimRecord) -> Result<(), Infallible> {
        self.queue.waiting.remove(&record.fence);
        self.queue.tickets.remove(&record.owner);
        Ok(())
    }

    fn waiter_count(&mut self, now: Moment) -> Result<u64, Infallible> {
        let waiting = self.queue.waiting.values();
        Ok(waiting.filter(|r| r.expires > now).count() as u64)
    }

    fn next_fence(&mut self) -> Result<Fence, Infallible> {
        Ok((self.fences)())
    }
}

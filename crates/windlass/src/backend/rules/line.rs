//! Everyone who has a claim to one name: at most one holder, and those in line behind it.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use crate::backend::WakeAddress;
use crate::lease::{Fence, Moment, Owner};

/// One claim, held or waiting.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// Whose.
    pub owner: Owner,
    /// Drawn once, on arrival: the place in line, and the fence of the grant. Since nobody
    /// overtakes, grants come in the order of places, so fences grow.
    pub fence: Fence,
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

/// The storage of one line: a map in memory, or rows of a table.
pub trait Line {
    /// What can go wrong in storage.
    type Error;

    /// The holder, dead or alive.
    fn holder(&mut self) -> Result<Option<Record>, Self::Error>;
    /// The waiter in front.
    fn first(&mut self) -> Result<Option<Record>, Self::Error>;
    /// The waiter with this owner.
    fn waiter(&mut self, owner: &Owner) -> Result<Option<Record>, Self::Error>;
    /// Makes `record` the holder, new or changed.
    fn set_holder(&mut self, record: Record) -> Result<(), Self::Error>;
    /// Puts `record` in line, new or changed.
    fn set_waiter(&mut self, record: Record) -> Result<(), Self::Error>;
    /// The holder holds no more.
    fn remove_holder(&mut self, holder: &Record) -> Result<(), Self::Error>;
    /// Takes a waiter out of the line.
    fn remove_waiter(&mut self, record: &Record) -> Result<(), Self::Error>;
    /// How many wait.
    fn waiters(&mut self) -> Result<u64, Self::Error>;
    /// A number higher than all before, for every name.
    fn next_fence(&mut self) -> Result<Fence, Self::Error>;
}

/// A line in memory.
#[derive(Debug, Default)]
pub struct MemoryLine {
    holder: Option<Record>,
    waiting: BTreeMap<Fence, Record>,
    places: HashMap<Owner, Fence>,
}

impl MemoryLine {
    /// Whether nothing is left to remember.
    pub fn is_empty(&self) -> bool {
        self.holder.is_none() && self.waiting.is_empty()
    }

    /// Whether every claim is dead.
    pub fn is_dead(&self, now: Moment) -> bool {
        self.holder.iter().all(|r| r.expires <= now)
            && self.waiting.values().all(|r| r.expires <= now)
    }

    /// Binds the line to the counter that its fences come from.
    pub fn with<'a>(&'a mut self, fences: &'a mut dyn FnMut() -> Fence) -> Numbered<'a> {
        Numbered { line: self, fences }
    }

    /// Makes one owner's claim expire now, as if its ttl had passed.
    pub fn expire(&mut self, owner: &Owner) {
        let past = Moment::from_nanos(0);
        if let Some(holder) = self.holder.as_mut().filter(|h| h.owner == *owner) {
            holder.expires = past;
        }
        if let Some(waiter) = self
            .places
            .get(owner)
            .and_then(|place| self.waiting.get_mut(place))
        {
            waiter.expires = past;
        }
    }
}

/// A [`MemoryLine`] with a source of fences.
#[expect(missing_debug_implementations, reason = "borrows a closure")]
pub struct Numbered<'a> {
    line: &'a mut MemoryLine,
    fences: &'a mut dyn FnMut() -> Fence,
}

impl Line for Numbered<'_> {
    type Error = Infallible;

    fn holder(&mut self) -> Result<Option<Record>, Infallible> {
        Ok(self.line.holder.clone())
    }

    fn first(&mut self) -> Result<Option<Record>, Infallible> {
        Ok(self.line.waiting.first_key_value().map(|(_, r)| r.clone()))
    }

    fn waiter(&mut self, owner: &Owner) -> Result<Option<Record>, Infallible> {
        let place = self.line.places.get(owner);
        Ok(place.map(|p| self.line.waiting[p].clone()))
    }

    fn set_holder(&mut self, record: Record) -> Result<(), Infallible> {
        self.line.holder = Some(record);
        Ok(())
    }

    fn set_waiter(&mut self, record: Record) -> Result<(), Infallible> {
        self.line.places.insert(record.owner.clone(), record.fence);
        self.line.waiting.insert(record.fence, record);
        Ok(())
    }

    fn remove_holder(&mut self, _holder: &Record) -> Result<(), Infallible> {
        self.line.holder = None;
        Ok(())
    }

    fn remove_waiter(&mut self, record: &Record) -> Result<(), Infallible> {
        self.line.waiting.remove(&record.fence);
        self.line.places.remove(&record.owner);
        Ok(())
    }

    fn waiters(&mut self) -> Result<u64, Infallible> {
        Ok(self.line.waiting.len() as u64)
    }

    fn next_fence(&mut self) -> Result<Fence, Infallible> {
        Ok((self.fences)())
    }
}

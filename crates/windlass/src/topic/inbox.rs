//! [`Inbox`]: the bounded buffer between the store and a subscriber.
//!
//! Where messages are missing, the inbox holds a gap in their place. Adjacent gaps are merged, so a subscriber that does
//! not read costs at most its buffer and one gap per message.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use windlass_core::store::Subscriber;

/// What happens to messages when the buffer is full. In both cases the subscription reports how many are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Overflow {
    /// Drops the oldest message: a slow subscriber sees the latest ones.
    #[default]
    DropOldest,
    /// Drops the new message: a slow subscriber sees the first ones.
    DropNewest,
}

pub(super) enum Item {
    Message(Vec<u8>),
    /// Messages are missing here; `None` if it is not known how many, if any.
    Gap(Option<u64>),
}

pub(super) struct Inbox {
    capacity: usize,
    overflow: Overflow,
    queue: Mutex<Queue>,
    /// Messages may have been missed: the connection must be checked.
    pub(super) connection_doubtful: Notify,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    messages: usize,
    /// The subscriber, if it waits.
    waker: Option<Waker>,
}

impl Inbox {
    pub(super) fn new(capacity: usize, overflow: Overflow) -> Arc<Inbox> {
        Arc::new(Inbox {
            capacity,
            overflow,
            queue: Mutex::default(),
            connection_doubtful: Notify::new(),
        })
    }

    /// The next item, in order. For one subscriber: a second one would replace the first one's waker.
    pub(super) fn poll_next(&self, cx: &mut Context<'_>) -> Poll<Item> {
        let mut queue = self.queue();
        match queue.pop() {
            Some(item) => Poll::Ready(item),
            None => {
                queue.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Messages may be missing from here on.
    pub(super) fn push_gap(&self) {
        let mut queue = self.queue();
        queue.push_gap(None);
        wake(queue);
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes the subscriber, after the lock is released.
fn wake(mut queue: MutexGuard<'_, Queue>) {
    let waker = queue.waker.take();
    drop(queue);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Queue {
    fn pop(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let Item::Message(_) = item {
            self.messages -= 1;
        }
        Some(item)
    }

    /// Drops the oldest message, and merges it with the gaps on both sides of it.
    fn drop_oldest(&mut self) {
        let mut missing = Some(1);
        while let Some(Item::Gap(more)) = self.items.front() {
            missing = merged(missing, *more);
            self.items.pop_front();
        }
        if self.items.pop_front().is_some() {
            self.messages -= 1;
        }
        if let Some(Item::Gap(more)) = self.items.front() {
            missing = merged(missing, *more);
            self.items.pop_front();
        }
        self.items.push_front(Item::Gap(missing));
    }

    fn push_gap(&mut self, more: Option<u64>) {
        match self.items.back_mut() {
            Some(Item::Gap(missing)) => *missing = merged(*missing, more),
            _ => self.items.push_back(Item::Gap(more)),
        }
    }
}

/// The size of two merged gaps; unknown if either is.
fn merged(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.zip(b).map(|(a, b)| a.saturating_add(b))
}

impl Subscriber for Inbox {
    fn notify(&self, message: &[u8]) {
        let mut queue = self.queue();
        let full = queue.messages >= self.capacity;
        if full && self.overflow == Overflow::DropNewest {
            queue.push_gap(Some(1));
        } else {
            if full {
                queue.drop_oldest();
            }
            queue.items.push_back(Item::Message(message.to_vec()));
            queue.messages += 1;
        }
        wake(queue);
    }

    fn missed(&self) {
        self.push_gap();
        self.connection_doubtful.notify_one();
    }

    fn lost(&self, count: u64) {
        let mut queue = self.queue();
        queue.push_gap(Some(count));
        wake(queue);
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({} of {})", self.queue().messages, self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(inbox: &Inbox) -> String {
        let mut text = String::new();
        while let Some(item) = inbox.queue().pop() {
            match item {
                Item::Message(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
                Item::Gap(Some(n)) => text.push_str(&format!("<{n}>")),
                Item::Gap(None) => text.push_str("<?>"),
            }
        }
        text
    }

    #[test]
    fn dropped_messages_are_counted_where_they_are_missing() {
        let receive = |inbox: &Inbox, text: &str| {
            for letter in text.chars() {
                match letter {
                    '?' => inbox.missed(),
                    letter => inbox.notify(letter.to_string().as_bytes()),
                }
            }
        };
        let oldest = Inbox::new(3, Overflow::DropOldest);
        receive(&oldest, "abcdef");
        assert_eq!(drain(&oldest), "<3>def");
        receive(&oldest, "ab?cde");
        assert_eq!(drain(&oldest), "<?>cde");
        receive(&oldest, "ab?cd");
        assert_eq!(drain(&oldest), "<1>b<?>cd");
        let newest = Inbox::new(3, Overflow::DropNewest);
        receive(&newest, "abcdef");
        assert_eq!(drain(&newest), "abc<3>");
        receive(&newest, "ab??c");
        assert_eq!(drain(&newest), "ab<?>c");
        receive(&newest, "abcd?e");
        assert_eq!(drain(&newest), "abc<?>");
    }

    #[test]
    fn slow_subscriber_costs_no_more_than_its_buffer() {
        for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
            let inbox = Inbox::new(3, overflow);
            for n in 0..10_000u32 {
                inbox.notify(&n.to_le_bytes());
                inbox.missed();
            }
            let queue = inbox.queue();
            assert_eq!(queue.messages, 3);
            assert!(queue.items.len() <= 7, "{} items", queue.items.len());
        }
    }
}

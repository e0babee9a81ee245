//! Where messages wait for their subscriber.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use windlass_core::store::Subscriber;

/// What becomes of messages for which there is no room. Either way, the subscription says how many are missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Overflow {
    /// The oldest goes: a slow subscriber sees the latest.
    #[default]
    DropOldest,
    /// The new one goes: a slow subscriber sees what came first.
    DropNewest,
}

pub(super) enum Item {
    Message(Vec<u8>),
    /// So many messages are missing here; `None` if nobody knows how many, if any.
    Gap(Option<u64>),
}

pub(super) struct Inbox {
    room: usize,
    overflow: Overflow,
    queue: Mutex<Queue>,
    /// There is something to take.
    filled: Notify,
    /// Some may have been missed: the connection has to be looked after.
    pub(super) trouble: Notify,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    messages: usize,
}

impl Inbox {
    pub(super) fn new(room: usize, overflow: Overflow) -> Arc<Inbox> {
        Arc::new(Inbox {
            room,
            overflow,
            queue: Mutex::default(),
            filled: Notify::new(),
            trouble: Notify::new(),
        })
    }

    /// The next item, in order. Cancel safe.
    pub(super) async fn take(&self) -> Item {
        loop {
            if let Some(item) = self.queue().take() {
                return item;
            }
            self.filled.notified().await;
        }
    }

    /// Messages may be missing from here on.
    pub(super) fn tell_of_gap(&self) {
        self.queue().gap_at_the_end(None);
        self.filled.notify_one();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn take(&mut self) -> Option<Item> {
        let item = self.items.pop_front()?;
        if let Item::Message(_) = item {
            self.messages -= 1;
        }
        Some(item)
    }

    /// What was on either side of the message becomes one gap: so there are never two in a row, and no more
    /// of them than there is room for messages, and one.
    fn drop_oldest(&mut self) {
        let mut missing = Some(1);
        while let Some(Item::Gap(more)) = self.items.front() {
            missing = together(missing, *more);
            self.items.pop_front();
        }
        if self.items.pop_front().is_some() {
            self.messages -= 1;
        }
        if let Some(Item::Gap(more)) = self.items.front() {
            missing = together(missing, *more);
            self.items.pop_front();
        }
        self.items.push_front(Item::Gap(missing));
    }

    fn gap_at_the_end(&mut self, more: Option<u64>) {
        match self.items.back_mut() {
            Some(Item::Gap(missing)) => *missing = together(*missing, more),
            _ => self.items.push_back(Item::Gap(more)),
        }
    }
}

/// How many two gaps miss: if either does not know, nobody does.
fn together(a: Option<u64>, b: Option<u64>) -> Option<u64> {
    a.zip(b).map(|(a, b)| a.saturating_add(b))
}

impl Subscriber for Inbox {
    fn heard(&self, news: &[u8]) {
        let mut queue = self.queue();
        let full = queue.messages >= self.room;
        if full && self.overflow == Overflow::DropNewest {
            queue.gap_at_the_end(Some(1));
        } else {
            if full {
                queue.drop_oldest();
            }
            queue.items.push_back(Item::Message(news.to_vec()));
            queue.messages += 1;
        }
        drop(queue);
        self.filled.notify_one();
    }

    fn missed(&self) {
        self.tell_of_gap();
        self.trouble.notify_one();
    }
}

impl fmt::Debug for Inbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbox({} of {})", self.queue().messages, self.room)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(inbox: &Inbox) -> String {
        let mut text = String::new();
        while !inbox.queue().items.is_empty() {
            match inbox.take().await {
                Item::Message(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
                Item::Gap(Some(n)) => text.push_str(&format!("<{n}>")),
                Item::Gap(None) => text.push_str("<?>"),
            }
        }
        text
    }

    #[tokio::test]
    async fn what_is_dropped_is_counted_where_it_is_missing() {
        let hear = |inbox: &Inbox, text: &str| {
            for letter in text.chars() {
                match letter {
                    '?' => inbox.missed(),
                    letter => inbox.heard(letter.to_string().as_bytes()),
                }
            }
        };
        let oldest = Inbox::new(3, Overflow::DropOldest);
        hear(&oldest, "abcdef");
        assert_eq!(all(&oldest).await, "<3>def");
        hear(&oldest, "ab?cde");
        assert_eq!(all(&oldest).await, "<?>cde");
        hear(&oldest, "ab?cd");
        assert_eq!(all(&oldest).await, "<1>b<?>cd");
        let newest = Inbox::new(3, Overflow::DropNewest);
        hear(&newest, "abcdef");
        assert_eq!(all(&newest).await, "abc<3>");
        hear(&newest, "ab??c");
        assert_eq!(all(&newest).await, "ab<?>c");
        hear(&newest, "abcd?e");
        assert_eq!(all(&newest).await, "abc<?>");
    }

    #[test]
    fn whoever_does_not_read_costs_no_more_than_its_buffer() {
        for overflow in [Overflow::DropOldest, Overflow::DropNewest] {
            let inbox = Inbox::new(3, overflow);
            for n in 0..10_000u32 {
                inbox.heard(&n.to_le_bytes());
                inbox.missed();
            }
            let queue = inbox.queue();
            assert_eq!(queue.messages, 3);
            assert!(queue.items.len() <= 7, "{} items", queue.items.len());
        }
    }
}

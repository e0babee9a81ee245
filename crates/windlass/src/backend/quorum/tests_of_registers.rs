//! Values that a majority agrees on, when others get in the way at the worst moment.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Weak};
use std::time::Duration;

use windlass_testkit::eventually;

use super::Shared;
use super::register::{Found, LONGEST_KEEP, Next, Register};
use super::seat::{Seat, client};
use super::tests::Deaf;
use super::together::{Together, Wanted};
use crate::backend::{Channel, Hears};
use crate::error::{ErrorKind, Result};
use crate::lease::Clock;
use crate::name::Name;

const SOON: Duration = Duration::from_secs(20);

fn register() -> Register {
    Register {
        of: Channel {
            kind: "latch",
            name: Name::new("test", None, "value").unwrap(),
        },
        void_after: LONGEST_KEEP,
    }
}

fn seats(clock: &Clock) -> [Seat; 3] {
    ["x", "y", "z"].map(|run| Seat::new(run, clock))
}

fn becomes(value: &[u8]) -> Next {
    Next::Becomes {
        value: value.to_vec(),
        keep: LONGEST_KEEP,
        news: false,
        highest: 0,
    }
}

/// How much news has come.
#[derive(Default)]
struct Counting(AtomicUsize);

impl Counting {
    /// Since it was last asked.
    fn any(&self) -> bool {
        self.0.swap(0, Ordering::SeqCst) > 0
    }
}

impl Hears for Counting {
    fn heard(&self, _: &[u8]) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    fn missed(&self) {}
}

/// Whoever heard of a value when only some had it may have looked before a majority did, and seen the one before. So
/// whoever settles it says so again, whatever it changes itself.
#[tokio::test]
async fn what_was_half_written_is_announced_by_whoever_settles_it() {
    let seats = seats(&Clock::system());
    let deaf: Weak<Deaf> = Weak::new();
    let shared = client(&seats, deaf).await;
    let register = register();
    let of = &register.of;
    let ear = Arc::new(Counting::default());
    let weak: Weak<Counting> = Arc::downgrade(&ear);
    let _listening = shared.listen(of.clone(), weak).await.unwrap();
    // It is of no interest to anybody, by itself.
    let quietly = |found: Option<&Found>, _| {
        let before = found.unwrap().value.to_vec();
        Ok((before, becomes(b"quietly")))
    };

    for seat in &seats {
        seat.keep(of, 5, b"settled", LONGEST_KEEP);
    }
    assert_eq!(shared.change(&register, quietly).await.unwrap(), b"settled");
    assert!(!ear.any(), "all knew of it");

    seats[0].keep(of, 50, b"half", LONGEST_KEEP);
    assert_eq!(shared.change(&register, quietly).await.unwrap(), b"half");
    assert!(ear.any(), "those who looked too early");

    seats[1].keep(of, 500, b"half", LONGEST_KEEP);
    let looks = |_: Option<&Found>, _| Ok(((), Next::Same { highest: 0 }));
    shared.change(&register, looks).await.unwrap();
    assert!(ear.any(), "though nothing was changed");

    // What this client itself tried to write may be somewhere, and announced there.
    let mut tries = 0;
    let thrown_back = |_: Option<&Found>, _| {
        tries += 1;
        if tries == 1 {
            for seat in &seats {
                seat.draw(of, 0);
            }
        }
        Ok((tries, becomes(b"again")))
    };
    assert_eq!(shared.change(&register, thrown_back).await.unwrap(), 2);
    assert!(ear.any(), "an earlier try may have been half written");
}

/// Asks that nothing be changed; or makes whoever decides on it panic.
struct Asks {
    panics: bool,
}

impl Wanted for Asks {
    const KIND: &'static str = "latch";
    type Answer = ();

    fn all(_: &Shared) -> &Together<Asks> {
        static ALL: LazyLock<Together<Asks>> = LazyLock::new(Together::default);
        &ALL
    }

    fn decide(
        _: &Shared,
        _: Option<&Found>,
        _: u64,
        asked: &mut [Asks],
    ) -> Result<(Vec<()>, Next)> {
        assert!(!asked.iter().any(|asked| asked.panics), "as it was told");
        Ok((asked.iter().map(drop).collect(), Next::Same { highest: 0 }))
    }
}

/// What goes wrong with one change is no reason for all that come later to wait for ever.
#[tokio::test]
async fn a_change_that_panics_holds_up_nobody_else() {
    let seats = seats(&Clock::system());
    let deaf: Weak<Deaf> = Weak::new();
    let shared = client(&seats, deaf).await;
    let name = register().of.name;
    let ask = |panics| {
        let answer = shared.ask_of(name.clone(), Asks { panics });
        async { tokio::time::timeout(SOON, answer).await.expect("an answer") }
    };
    // So slow that others come meanwhile.
    seats
        .iter()
        .for_each(|seat| seat.desk().travel = Duration::from_millis(20));
    let bad = ask(true);
    let begun = eventually(SOON, || async { seats[0].desk().draws > 0 });
    assert!(begun.await);
    let waiting = ask(false);
    let e = bad.await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::OutcomeUnknown, "{e}");
    waiting.await.unwrap();
    ask(false).await.unwrap();
}

/// However far away the nodes are, those who change the same value let each other write: in turn, and with little that
/// was asked in vain.
#[tokio::test]
async fn writers_that_are_far_away_do_not_throw_each_other_back_for_ever() {
    const WRITERS: u32 = 6;
    const CHANGES: u32 = 2;
    let clock = Clock::manual();
    let seats = seats(&clock);
    let mut clients = Vec::new();
    for _ in 0..WRITERS {
        let deaf: Weak<Deaf> = Weak::new();
        clients.push(client(&seats, deaf).await);
    }
    for seat in &seats {
        seat.desk().travel = Duration::from_millis(100);
    }
    let count = |(nth, shared): (u32, Arc<Shared>)| async move {
        // Not in step: each comes while others are about to write.
        shared.clock.sleep(nth * Duration::from_millis(35)).await;
        for _ in 0..CHANGES {
            let one_more = |found: Option<&Found>, _| {
                let count = found.map_or(0, |found| found.value[0]);
                Ok(((), becomes(&[count + 1])))
            };
            shared.change(&register(), one_more).await.unwrap();
        }
    };
    let began = clock.now();
    let all = (0..).zip(clients).map(count).map(tokio::spawn);
    let all: Vec<_> = all.collect();
    while !all.iter().all(tokio::task::JoinHandle::is_finished) {
        // All that can be done is done before time goes on.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        clock.advance(Duration::from_millis(1));
    }
    for done in all {
        done.await.unwrap();
    }
    let (took, draws) = (clock.now().since(began), seats[0].desk().draws);
    println!(
        "{draws} draws for {} changes, in {took:?}",
        WRITERS * CHANGES
    );
    // Until each has learnt how far away they are, some are thrown back.
    let (changes, bound) = (WRITERS * CHANGES, 4 * WRITERS * CHANGES);
    assert!(
        draws <= bound,
        "{draws} draws for {changes} changes, in {took:?}"
    );
}

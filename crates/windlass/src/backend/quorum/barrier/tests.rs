//! Those in line for a barrier over a quorum, when what they hear and what they do cross.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use windlass_testkit::eventually;

use super::value::State;
use super::{Answer, Ask, LONGEST_KEEP};
use crate::backend::quorum::Shared;
use crate::backend::quorum::seat::{Seat, client};
use crate::backend::quorum::together::Wanted;
use crate::backend::rules::line::MemoryLine;
use crate::backend::{
    self, Acquired, Channel, IfHeld, Kind, Released, Share, WakeAddress, WakeUps,
};
use crate::lease::{Clock, Fence, Moment, Owner};
use crate::name::Name;

const SOON: Duration = Duration::from_secs(20);
const TTL: Duration = Duration::from_secs(60);

/// What a client's keeper was told.
#[derive(Default)]
struct Told(Mutex<Vec<(u64, Option<Fence>)>>);

impl Told {
    /// What a claim was told, and how often.
    fn of(&self, claim: u64) -> Vec<Option<Fence>> {
        let told = self.0.lock().unwrap();
        let its = told.iter().filter(|(which, _)| *which == claim);
        its.map(|(_, fence)| *fence).collect()
    }

    async fn comes_in(&self, claim: u64) {
        let told = eventually(SOON, || async {
            self.of(claim).iter().any(Option::is_some)
        });
        assert!(told.await, "{claim} is in, and was never told");
    }
}

impl WakeUps for Told {
    fn granted(&self, claim: u64, fence: Option<Fence>) {
        self.0.lock().unwrap().push((claim, fence));
    }

    fn missed(&self) {}
}

/// A client, and another one that is in with two parties of two.
struct Bed {
    told: Arc<Told>,
    shared: Arc<Shared>,
    other: Arc<Shared>,
}

fn name() -> Name {
    Name::new("test", None, "phase").unwrap()
}

fn owner(claim: u64) -> Owner {
    Owner::new(&format!("owner-{claim}")).unwrap()
}

fn wake(claim: u64) -> WakeAddress {
    WakeAddress { client: 7, claim }
}

fn ask(owner: Owner, claim: u64) -> backend::Ask {
    backend::Ask {
        kind: Kind::Barrier,
        name: name(),
        owner,
        share: Share {
            size: 2,
            ..Share::ONLY
        },
        ttl: TTL,
        if_held: IfHeld::LineUp,
        note: None,
        heal_missing_ttl: false,
        record_now: true,
        again: false,
        renewed: true,
        wake: wake(claim),
    }
}

impl Bed {
    async fn open() -> Bed {
        let clock = Clock::system();
        let seats = ["x", "y", "z"].map(|run| Seat::new(run, &clock));
        let (told, strangers) = (Arc::new(Told::default()), Arc::new(Told::default()));
        let weak: Weak<Told> = Arc::downgrade(&told);
        let shared = client(&seats, weak).await;
        let weak: Weak<Told> = Arc::downgrade(&strangers);
        let other = client(&seats, weak).await;
        for claim in [1, 2] {
            let entered = other.enter_barrier(ask(owner(claim), claim)).await.unwrap();
            assert!(matches!(entered, Acquired::Granted { .. }), "{entered:?}");
        }
        Bed {
            told,
            shared,
            other,
        }
    }

    /// Lines up, and is known to wait.
    async fn lines_up(&self, owner: Owner, claim: u64) {
        let entered = self.shared.enter_barrier(ask(owner, claim)).await.unwrap();
        assert!(matches!(entered, Acquired::Queued { .. }), "{entered:?}");
        self.is_quiet().await;
    }

    /// Is put in line, but has not heard of it yet.
    async fn lines_up_unheard(&self, claim: u64) {
        let asked = Ask::Acquire(ask(owner(claim), claim));
        match self.shared.ask_of(name(), asked).await.unwrap() {
            Answer::Acquired(Ok(Acquired::Queued { .. })) => {}
            other => panic!("not in line: {other:?}"),
        }
    }

    /// Nobody is about to listen, or to look.
    async fn is_quiet(&self) {
        let quiet = eventually(SOON, || async { self.shared.is_quiet(&name()) });
        assert!(quiet.await, "somebody looks all the time");
    }

    async fn leaves(&self, client: &Arc<Shared>, claim: u64) -> Released {
        let left = client.leave_barrier(name(), owner(claim), Some(wake(claim)));
        left.await.unwrap()
    }

    /// The round ends, and those in line come in.
    async fn those_inside_leave(&self) {
        for claim in [1, 2] {
            assert_eq!(self.leaves(&self.other, claim).await, Released::WasHeld);
        }
    }
}

/// Between the answer that puts a claim in line and the moment that it is known here to wait, its turn may come, and
/// be told.
#[tokio::test]
async fn a_turn_that_comes_before_the_claim_is_known_to_wait_is_told() {
    let bed = Bed::open().await;
    bed.lines_up(owner(3), 3).await;
    bed.lines_up_unheard(4).await;
    bed.those_inside_leave().await;
    bed.told.comes_in(3).await;
    bed.is_quiet().await;
    assert_eq!(bed.told.of(4), [], "it is not known yet");
    // Nothing changes any more that would be news.
    bed.shared.waits_for_turn(name(), owner(4), wake(4));
    bed.told.comes_in(4).await;
}

#[tokio::test]
async fn who_has_given_up_is_told_of_no_turn() {
    let bed = Bed::open().await;
    bed.lines_up(owner(3), 3).await;
    bed.lines_up(owner(4), 4).await;
    assert_eq!(bed.leaves(&bed.shared, 3).await, Released::WasWaiting);
    bed.those_inside_leave().await;
    bed.told.comes_in(4).await;
    bed.is_quiet().await;
    assert_eq!(bed.told.of(3), [], "it waits no more");
}

/// A renewal that was under way when its claim was given up says that it waits, after that.
#[tokio::test]
async fn who_has_given_up_is_forgotten_though_its_renewal_comes_late() {
    let bed = Bed::open().await;
    bed.lines_up(owner(3), 3).await;
    bed.lines_up(owner(4), 4).await;
    assert_eq!(bed.leaves(&bed.shared, 3).await, Released::WasWaiting);
    bed.shared.waits_for_turn(name(), owner(3), wake(3));
    bed.is_quiet().await;
    assert!(bed.shared.is_known_to_wait(&name(), wake(4)));
    assert!(
        !bed.shared.is_known_to_wait(&name(), wake(3)),
        "nobody else takes it off"
    );
    // If it has not given up, it asks what became of it.
    assert_eq!(bed.told.of(3), [None]);
    bed.those_inside_leave().await;
    bed.told.comes_in(4).await;
}

/// Whoever comes again as the same owner has a later claim, which stays when the earlier one is given up.
#[tokio::test]
async fn an_earlier_claim_that_is_given_up_leaves_the_turn_to_the_later_one() {
    let bed = Bed::open().await;
    bed.lines_up(owner(3), 3).await;
    bed.lines_up(owner(3), 4).await;
    assert_eq!(bed.leaves(&bed.shared, 3).await, Released::WasGone);
    bed.is_quiet().await;
    assert!(bed.shared.is_known_to_wait(&name(), wake(4)));
    bed.those_inside_leave().await;
    bed.told.comes_in(4).await;
    assert!(bed.told.of(3).iter().all(Option::is_none));
}

/// Numbers that a value uses are given to nobody else, also after the value is forgotten: so whoever settles
/// what another left half written tells the nodes how far its numbers go.
#[tokio::test]
async fn what_was_half_written_keeps_its_numbers_when_it_is_settled() {
    let clock = Clock::system();
    let seats = ["x", "y", "z"].map(|run| Seat::new(run, &clock));
    let deaf: Weak<Told> = Weak::new();
    let shared = client(&seats, deaf).await;
    let of = Channel {
        kind: Ask::KIND,
        name: name(),
    };
    // One change that gave the numbers up to 150, and reached one node.
    let state = State {
        line: MemoryLine::default(),
        now: Moment::from_nanos(1 << 62),
        last: 150,
    };
    seats[0].keep(&of, 100, &state.write(LONGEST_KEEP), LONGEST_KEEP);
    seats[0].desk().counter = 150;
    // The others give different numbers at the first try, when it is not heard; and a lower one than it at the second.
    seats[0].desk().fails = 1;
    seats[1].desk().counter = 100;
    seats[2].desk().counter = 101;
    match shared.ask_of(name(), Ask::Look).await.unwrap() {
        Answer::Look(_) => {}
        other => panic!("not a look: {other:?}"),
    }
    let settled = eventually(SOON, || async {
        let kept = |seat: &Seat| seat.ballot(&of).is_some_and(|ballot| ballot > 100);
        seats.iter().filter(|seat| kept(seat)).count() >= 2
    });
    assert!(settled.await, "it was looked at");
    let under = seats[1].ballot(&of).unwrap();
    assert!(under < 150, "{under}: nothing is checked here otherwise");
    for seat in &seats[1..] {
        assert!(seat.desk().counter >= 150, "{}", seat.desk().counter);
    }
}

//! For each rule, a history that keeps it and one that breaks it.

use super::check::{Breach, Verdict};
use super::{Event, Seen, check, load, save};

/// A history, in milliseconds.
#[derive(Default)]
struct Story(Vec<Event>);

const MS: u64 = 1_000_000;

impl Story {
    fn see(mut self, at: u64, client: &str, seen: Seen) -> Story {
        self.0.push(Event {
            at: at * MS,
            client: client.to_owned(),
            what: "stock".to_owned(),
            seen,
        });
        self
    }

    /// Asks at `asked`, is granted at `granted`, and holds until `held`.
    fn hold(self, client: &str, asked: u64, granted: u64, held: u64, fence: u64) -> Story {
        let attempt = asked;
        self.see(asked, client, Seen::Asked { attempt })
            .see(granted, client, Seen::Granted { attempt, fence })
            .see(held, client, Seen::Held { attempt })
    }

    fn write(self, asked: u64, answered: u64, fence: u64, admitted: bool) -> Story {
        let gate = "register".to_owned();
        let asked = asked * MS;
        let seen = Seen::Gate {
            gate,
            fence,
            asked,
            admitted,
        };
        self.see(answered, "w", seen)
    }

    fn fault(self, begin: u64, end: u64) -> Story {
        let kind = || "freeze".to_owned();
        self.see(begin, "test", Seen::Fault { kind: kind() }).see(
            end,
            "test",
            Seen::Healed { kind: kind() },
        )
    }

    fn verdict(&self) -> Verdict {
        let mut verdicts = check(&self.0);
        assert_eq!(verdicts.len(), 1);
        verdicts.remove(0)
    }

    fn breaches(&self) -> Vec<Breach> {
        self.verdict().breaches
    }
}

#[test]
fn turns_are_fine() {
    let story = Story::default()
        .hold("a", 0, 1, 10, 1)
        .hold("b", 2, 11, 20, 2)
        .hold("a", 12, 20, 30, 3);
    let verdict = story.verdict();
    assert!(verdict.is_fine(), "{verdict}");
    assert_eq!((verdict.grants(), verdict.overtaken), (3, 0));
    assert!(verdict.to_string().contains("fine"), "{verdict}");
}

#[test]
fn two_at_one_moment_are_seen() {
    let story = Story::default()
        .hold("a", 0, 1, 10, 1)
        .hold("b", 2, 9, 20, 2);
    let breaches = story.breaches();
    assert!(
        matches!(&breaches[..], [Breach::TwoHolders(a, b)] if a.client == "a" && b.client == "b"),
        "{breaches:?}"
    );
    let shown = story.verdict().to_string();
    assert!(shown.contains("two held it at one moment"), "{shown}");
    assert!(
        shown.contains("granted with fence 2 at 0.009000 s"),
        "{shown}"
    );
}

/// One that began long ago, and not merely the one before.
#[test]
fn a_long_hold_is_not_forgotten() {
    let story = Story::default()
        .hold("a", 0, 1, 100, 1)
        .hold("b", 2, 5, 6, 2)
        .hold("c", 3, 50, 60, 3);
    assert_eq!(story.breaches().len(), 2);
}

/// Whoever was frozen says nothing of that time; loss that is told late is no breach.
#[test]
fn nobody_is_believed_about_what_it_did_not_look_at() {
    let attempt = 0;
    let story = Story::default()
        .hold("a", 0, 1, 5, 1)
        .see(90, "a", Seen::Lost { attempt })
        .hold("b", 2, 40, 50, 2);
    assert!(story.verdict().is_fine(), "{}", story.verdict());
    assert_eq!(story.verdict().losses(), 1);
    // Nor one that never looked at all.
    let story = Story::default()
        .see(0, "a", Seen::Asked { attempt })
        .see(1, "a", Seen::Granted { attempt, fence: 1 })
        .hold("b", 2, 3, 50, 2);
    assert!(story.verdict().is_fine(), "{}", story.verdict());
}

#[test]
fn a_fence_used_twice_is_seen() {
    let story = Story::default()
        .hold("a", 0, 1, 10, 7)
        .hold("b", 2, 11, 20, 7);
    let breaches = story.breaches();
    assert!(
        matches!(&breaches[..], [Breach::SameFence(..)]),
        "{breaches:?}"
    );
}

#[test]
fn a_fence_that_went_back_is_seen() {
    let story = Story::default()
        .hold("a", 0, 1, 10, 7)
        .hold("b", 2, 11, 20, 6);
    let breaches = story.breaches();
    assert!(
        matches!(&breaches[..], [Breach::FenceWentBack(..)]),
        "{breaches:?}"
    );
    // Also if nobody held it for certain: granted before the other was asked for.
    let (attempt, fence) = (0, 7);
    let story = Story::default()
        .see(0, "a", Seen::Asked { attempt })
        .see(1, "a", Seen::Granted { attempt, fence })
        .hold("b", 2, 11, 20, 6);
    let breaches = story.breaches();
    assert!(
        matches!(&breaches[..], [Breach::FenceWentBack(..)]),
        "{breaches:?}"
    );
}

#[test]
fn a_stale_write_is_seen() {
    let fine = Story::default()
        .write(1, 2, 5, true)
        .write(3, 4, 5, true)
        .write(5, 9, 7, true)
        .write(6, 10, 6, true) // at the same time as the one before: it may have come first
        .write(11, 12, 6, false);
    let verdict = fine.verdict();
    assert!(verdict.is_fine(), "{verdict}");
    assert_eq!((verdict.admitted, verdict.refused), (4, 1));
    let stale = fine.write(13, 14, 6, true);
    let breaches = stale.breaches();
    assert!(
        matches!(&breaches[..], [Breach::StaleWrite(a, b)] if (a.fence, b.fence) == (7, 6)),
        "{breaches:?}"
    );
}

#[test]
fn holding_on_after_loss_is_seen() {
    let attempt = 0;
    let story = Story::default()
        .hold("a", 0, 1, 20, 1)
        .see(10, "a", Seen::Lost { attempt });
    let breaches = story.breaches();
    assert!(
        matches!(&breaches[..], [Breach::HeldAfterLoss(_)]),
        "{breaches:?}"
    );
}

#[test]
fn those_who_were_overtaken_are_counted() {
    let story = Story::default()
        .hold("early", 0, 500, 510, 3)
        .hold("close", 390, 395, 398, 2)
        .hold("late", 200, 300, 310, 1);
    // The early one by both others; the late one by one who asked 190 ms later, but came after it.
    assert_eq!(story.verdict().overtaken, 1);
    let fair = Story::default()
        .hold("early", 0, 300, 310, 1)
        .hold("late", 50, 290, 300, 2);
    assert_eq!(fair.verdict().overtaken, 0, "50 ms may be the way there");
}

#[test]
fn recovery_is_measured() {
    let story = Story::default()
        .hold("a", 0, 10, 90, 1)
        .fault(100, 400)
        .hold("b", 20, 650, 660, 2)
        .hold("a", 655, 670, 680, 3);
    let verdict = story.verdict();
    assert!(verdict.is_fine(), "{verdict}");
    let recovery = &verdict.recoveries[0];
    assert_eq!(
        recovery.gap,
        560 * MS,
        "from the last hold to the next grant"
    );
    assert_eq!(recovery.after, Some(250 * MS));
    // A fault that nobody felt.
    let story = Story::default()
        .hold("a", 0, 10, 90, 1)
        .fault(50, 120)
        .hold("b", 60, 91, 110, 2)
        .hold("a", 95, 121, 130, 3);
    let recovery = &story.verdict().recoveries[0];
    assert_eq!((recovery.gap, recovery.after), (80 * MS, Some(MS)));
}

#[test]
fn a_fault_that_nothing_follows_is_seen() {
    let story = Story::default().hold("a", 0, 10, 90, 1).fault(100, 400);
    let breaches = story.breaches();
    assert!(
        matches!(&breaches[..], [Breach::NoRecovery(_)]),
        "{breaches:?}"
    );
}

#[test]
fn a_history_can_be_kept() {
    let story = Story::default()
        .hold("a", 0, 1, 2, 3)
        .write(4, 5, 6, true)
        .fault(7, 8);
    let file = tempfile::NamedTempFile::new().unwrap();
    save(file.path(), &story.0).unwrap();
    assert_eq!(load(file.path()).unwrap(), story.0);
    std::fs::write(file.path(), "{}\n").unwrap();
    let error = load(file.path()).unwrap_err().to_string();
    assert!(error.contains(":1:"), "{error}");
}

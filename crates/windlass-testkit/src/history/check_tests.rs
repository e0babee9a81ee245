//! For each rule, a history that satisfies it and one that violates it.

use super::check::{Breach, Verdict};
use super::{HistoryEvent, Observation, check, load, save};

/// Builds a history; times are in milliseconds.
#[derive(Default)]
struct HistoryBuilder(Vec<HistoryEvent>);

const MS: u64 = 1_000_000;

impl HistoryBuilder {
    fn see(mut self, at: u64, client: &str, seen: Observation) -> HistoryBuilder {
        self.0.push(HistoryEvent {
            at: at * MS,
            client: client.to_owned(),
            what: "stock".to_owned(),
            seen,
        });
        self
    }

    /// Requests at `asked`, is granted at `granted`, and holds until `held`.
    fn hold(self, client: &str, asked: u64, granted: u64, held: u64, fence: u64) -> HistoryBuilder {
        let attempt = asked;
        self.see(asked, client, Observation::Asked { attempt })
            .see(granted, client, Observation::Granted { attempt, fence })
            .see(held, client, Observation::Held { attempt })
    }

    fn write(self, asked: u64, answered: u64, fence: u64, admitted: bool) -> HistoryBuilder {
        let gate = "register".to_owned();
        let asked = asked * MS;
        let seen = Observation::Gate {
            gate,
            fence,
            asked,
            admitted,
        };
        self.see(answered, "w", seen)
    }

    fn fault(self, begin: u64, end: u64) -> HistoryBuilder {
        let kind = || "freeze".to_owned();
        self.see(begin, "test", Observation::Fault { kind: kind() })
            .see(end, "test", Observation::Healed { kind: kind() })
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
fn taking_turns_is_fine() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 1, 10, 1)
        .hold("b", 2, 11, 20, 2)
        .hold("a", 12, 20, 30, 3);
    let verdict = history.verdict();
    assert!(verdict.is_fine(), "{verdict}");
    assert_eq!((verdict.grants(), verdict.overtaken), (3, 0));
    assert!(verdict.to_string().contains("fine"), "{verdict}");
}

#[test]
fn two_holders_are_found() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 1, 10, 1)
        .hold("b", 2, 9, 20, 2);
    let breaches = history.breaches();
    assert!(
        matches!(&breaches[..], [Breach::TwoHolders(a, b)] if a.client == "a" && b.client == "b"),
        "{breaches:?}"
    );
    let shown = history.verdict().to_string();
    assert!(shown.contains("two held it at one moment"), "{shown}");
    assert!(
        shown.contains("granted with fence 2 at 0.009000 s"),
        "{shown}"
    );
}

/// The overlapping hold began long before, not just one grant earlier.
#[test]
fn long_hold_is_remembered() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 1, 100, 1)
        .hold("b", 2, 5, 6, 2)
        .hold("c", 3, 50, 60, 3);
    assert_eq!(history.breaches().len(), 2);
}

/// A frozen client reports nothing about that time; a delayed loss signal is no violation.
#[test]
fn only_observed_time_counts_as_held() {
    let attempt = 0;
    let history = HistoryBuilder::default()
        .hold("a", 0, 1, 5, 1)
        .see(90, "a", Observation::Lost { attempt })
        .hold("b", 2, 40, 50, 2);
    assert!(history.verdict().is_fine(), "{}", history.verdict());
    assert_eq!(history.verdict().losses(), 1);
    // The same for a client that never checked its lease.
    let history = HistoryBuilder::default()
        .see(0, "a", Observation::Asked { attempt })
        .see(1, "a", Observation::Granted { attempt, fence: 1 })
        .hold("b", 2, 3, 50, 2);
    assert!(history.verdict().is_fine(), "{}", history.verdict());
}

#[test]
fn duplicate_fence_is_found() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 1, 10, 7)
        .hold("b", 2, 11, 20, 7);
    let breaches = history.breaches();
    assert!(
        matches!(&breaches[..], [Breach::SameFence(..)]),
        "{breaches:?}"
    );
}

/// A command learns of its grant only when it starts: others may have been granted since. But one
/// that was requested later than another was held has a higher fence.
#[test]
fn fence_of_a_command_counts_from_its_request() {
    let run = |asked: u64| {
        let attempt = asked;
        HistoryBuilder::default()
            .hold("a", 10, 20, 30, 9)
            .see(asked, "run", Observation::Asked { attempt })
            .see(40, "run", Observation::Running { attempt, fence: 8 })
            .see(50, "run", Observation::Held { attempt })
            .breaches()
    };
    assert_eq!(run(15), []);
    assert!(matches!(run(35)[..], [Breach::FenceWentBack(..)]));
}

#[test]
fn decreasing_fence_is_found() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 1, 10, 7)
        .hold("b", 2, 11, 20, 6);
    let breaches = history.breaches();
    assert!(
        matches!(&breaches[..], [Breach::FenceWentBack(..)]),
        "{breaches:?}"
    );
    // Also without an observed hold: granted before the other was requested.
    let (attempt, fence) = (0, 7);
    let history = HistoryBuilder::default()
        .see(0, "a", Observation::Asked { attempt })
        .see(1, "a", Observation::Granted { attempt, fence })
        .hold("b", 2, 11, 20, 6);
    let breaches = history.breaches();
    assert!(
        matches!(&breaches[..], [Breach::FenceWentBack(..)]),
        "{breaches:?}"
    );
}

#[test]
fn stale_write_is_found() {
    let fine = HistoryBuilder::default()
        .write(1, 2, 5, true)
        .write(3, 4, 5, true)
        .write(5, 9, 7, true)
        .write(6, 10, 6, true) // overlaps the one before: either may have been first
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
fn holding_after_loss_is_found() {
    let attempt = 0;
    let history = HistoryBuilder::default().hold("a", 0, 1, 20, 1).see(
        10,
        "a",
        Observation::Lost { attempt },
    );
    let breaches = history.breaches();
    assert!(
        matches!(&breaches[..], [Breach::HeldAfterLoss(_)]),
        "{breaches:?}"
    );
}

#[test]
fn overtaken_waiters_are_counted() {
    let history = HistoryBuilder::default()
        .hold("early", 0, 500, 510, 3)
        .hold("close", 390, 395, 398, 2)
        .hold("late", 200, 300, 310, 1);
    // The early client is overtaken by both others; the late one by a client that requested 190 ms
    // later but after it.
    assert_eq!(history.verdict().overtaken, 1);
    let fair = HistoryBuilder::default()
        .hold("early", 0, 300, 310, 1)
        .hold("late", 50, 290, 300, 2);
    assert_eq!(fair.verdict().overtaken, 0, "50 ms may be the way there");
}

#[test]
fn recovery_is_measured() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 10, 90, 1)
        .fault(100, 400)
        .hold("b", 20, 650, 660, 2)
        .hold("a", 655, 670, 680, 3);
    let verdict = history.verdict();
    assert!(verdict.is_fine(), "{verdict}");
    let recovery = &verdict.recoveries[0];
    assert_eq!(
        recovery.gap,
        560 * MS,
        "from the last hold to the next grant"
    );
    assert_eq!(recovery.after, Some(250 * MS));
    // A fault without any effect.
    let history = HistoryBuilder::default()
        .hold("a", 0, 10, 90, 1)
        .fault(50, 120)
        .hold("b", 60, 91, 110, 2)
        .hold("a", 95, 121, 130, 3);
    let recovery = &history.verdict().recoveries[0];
    assert_eq!((recovery.gap, recovery.after), (80 * MS, Some(MS)));
}

#[test]
fn fault_without_recovery_is_found() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 10, 90, 1)
        .fault(100, 400);
    let breaches = history.breaches();
    assert!(
        matches!(&breaches[..], [Breach::NoRecovery(_)]),
        "{breaches:?}"
    );
}

#[test]
fn history_survives_save_and_load() {
    let history = HistoryBuilder::default()
        .hold("a", 0, 1, 2, 3)
        .write(4, 5, 6, true)
        .fault(7, 8);
    let file = tempfile::NamedTempFile::new().unwrap();
    save(file.path(), &history.0).unwrap();
    assert_eq!(load(file.path()).unwrap(), history.0);
    std::fs::write(file.path(), "{}\n").unwrap();
    let error = load(file.path()).unwrap_err().to_string();
    assert!(error.contains(":1:"), "{error}");
}

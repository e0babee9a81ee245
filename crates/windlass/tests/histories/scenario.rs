//! Runs clients and faults for a while, and checks the history.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use windlass_testkit::history::{
    Breach, Event, History, Observation, Verdict, boot_nanos, check, save,
};
use windlass_testkit::{FencedRegister, TestProcess, eventually_blocking};

use crate::stores::{Fault, StoreUnderTest};
use crate::worker::ClientBehaviour;

/// The TTL, unless a store needs a longer one.
pub(crate) const TTL: Duration = Duration::from_millis(500);
const PROCESSES: usize = 4;
const SOON: Duration = Duration::from_secs(20);

/// One store under a mix of faults.
pub(crate) struct FaultScenario<'a> {
    name: &'a str,
    store: &'a dyn StoreUnderTest,
    behaviour: ClientBehaviour,
    lasts: Duration,
    history: History,
    register: FencedRegister,
}

/// The duration; an environment variable overrides it.
fn run_for() -> Duration {
    let seconds = std::env::var("WINDLASS_TEST_HISTORY_SECONDS");
    Duration::from_secs(seconds.map_or(15, |s| s.parse().unwrap()))
}

impl<'a> FaultScenario<'a> {
    pub(crate) fn new(name: &'a str, store: &'a dyn StoreUnderTest) -> FaultScenario<'a> {
        FaultScenario {
            name,
            store,
            behaviour: ClientBehaviour::Correct,
            lasts: run_for(),
            history: History::start().unwrap(),
            register: FencedRegister::start().unwrap(),
        }
    }

    /// Uses clients of this behaviour, and a resource that ignores fences.
    pub(crate) fn with_behaviour(self, behaviour: ClientBehaviour) -> FaultScenario<'a> {
        let register = FencedRegister::start_open().unwrap();
        FaultScenario {
            behaviour,
            register,
            lasts: run_for().min(Duration::from_secs(4)),
            ..self
        }
    }

    /// Runs the scenario and checks that no rule is violated.
    pub(crate) fn run_and_check(self) {
        let verdict = self.run();
        println!("{}: {verdict}", self.name);
        let broken = |breach: &&Breach| !self.store.tolerates(breach);
        assert_eq!(verdict.breaches.iter().find(broken), None, "{verdict}");
        assert!(verdict.grants() > 50, "they hardly worked:\n{verdict}");
        let (accepted, stale) = self.register.writes();
        println!("{}: {accepted} writes, {stale} refused", self.name);
        assert_eq!(self.register.lost_updates(), 0, "an update was lost");
        assert_eq!(self.register.value(), accepted);
    }

    /// Injects faults, one after the other, and returns the verdict.
    pub(crate) fn run(&self) -> Verdict {
        let mut workers: Vec<_> = (0..PROCESSES).map(|_| self.worker()).collect();
        for worker in &workers {
            let ready = worker.wait_for_line(|line| line == "ready", SOON);
            ready.expect("a worker connects");
        }
        let (faults, ttl) = (self.store.faults(), self.store.ttl());
        let end = Instant::now() + self.lasts;
        let kinds = 2 + faults.len();
        let first = rand::random_range(0..kinds);
        let mut round = 0;
        // Longer on a slow machine, until every kind of fault has occurred.
        while Instant::now() < end || round < kinds {
            sleep(Duration::from_millis(rand::random_range(200..600))); // let them work
            let victim = rand::random_range(0..PROCESSES);
            match (first + round) % kinds {
                0 => {
                    self.record("kill", "a client", ScenarioPhase::Begin);
                    workers[victim].kill9().unwrap();
                    self.record("kill", "a client", ScenarioPhase::End);
                    workers[victim] = self.worker();
                }
                1 => {
                    let victim = self.next_holder(&workers).unwrap_or(victim);
                    self.record("freeze", "a client", ScenarioPhase::Begin);
                    workers[victim].pause().unwrap();
                    sleep(ttl + ttl / 2); // beyond its lease
                    workers[victim].resume().unwrap();
                    self.record("freeze", "a client", ScenarioPhase::End);
                }
                other => self.inject(&faults[other - 2]),
            }
            round += 1;
            // Start the next fault after this one has recovered, so that each recovery is measured.
            self.next_grant(SOON);
        }
        sleep(ttl * 2); // let clients that lost the lock acquire it again
        drop(workers);
        let events = self.history.events();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file = folder.join(format!("history-{}.jsonl", self.name));
        save(&file, &events).unwrap();
        println!("{}: kept in {}", self.name, file.display());
        let mut verdicts = check(&events);
        assert_eq!(verdicts.len(), 1, "one lock");
        verdicts.remove(0)
    }

    fn inject(&self, fault: &Fault<'_>) {
        self.record(fault.kind, fault.victim, ScenarioPhase::Begin);
        (fault.begin)();
        sleep(fault.lasts);
        (fault.end)();
        self.record(fault.kind, fault.victim, ScenarioPhase::End);
    }

    /// The worker that is granted the lock next: frozen now, it most likely holds it.
    fn next_holder(&self, workers: &[TestProcess]) -> Option<usize> {
        let client = self.next_grant(self.store.ttl())?;
        let (pid, _) = client.split_once('/')?;
        workers.iter().position(|w| w.pid().to_string() == pid)
    }

    /// The client that is granted the lock next.
    fn next_grant(&self, limit: Duration) -> Option<String> {
        let known = self.history.events().len();
        let mut client = None;
        eventually_blocking(limit, || {
            let events = self.history.events();
            let granted = |event: &&Event| matches!(event.seen, Observation::Granted { .. });
            let last = events[known..].iter().rev().find(granted);
            client = last.map(|event| event.client.clone());
            client.is_some()
        });
        client
    }

    fn record(&self, kind: &str, victim: &str, phase: ScenarioPhase) {
        let kind = kind.to_owned();
        self.history.add(Event {
            at: boot_nanos(),
            client: "the test".to_owned(),
            what: victim.to_owned(),
            seen: match phase {
                ScenarioPhase::Begin => Observation::Fault { kind },
                ScenarioPhase::End => Observation::Healed { kind },
            },
        });
    }

    fn worker(&self) -> TestProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "worker", "--nocapture"])
            .env("WINDLASS_TEST_ROLE", self.behaviour.as_str())
            .env("WINDLASS_TEST_URL", self.store.url())
            .env(
                "WINDLASS_TEST_TTL",
                self.store.ttl().as_millis().to_string(),
            )
            .env("WINDLASS_TEST_HISTORY", self.history.addr().to_string())
            .env("WINDLASS_TEST_REGISTER", self.register.addr().to_string());
        TestProcess::spawn(&mut command).unwrap()
    }
}

enum ScenarioPhase {
    Begin,
    End,
}

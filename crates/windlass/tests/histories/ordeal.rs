//! Clients and faults for a while, and then the verdict.

use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use windlass_testkit::history::{Breach, Event, History, Seen, Verdict, boot_nanos, check, save};
use windlass_testkit::{FencedRegister, TestProcess, eventually_blocking};

use crate::engines::{Engine, Fault};
use crate::worker::Manners;

/// Unless an engine needs more.
pub(crate) const TTL: Duration = Duration::from_millis(500);
const PROCESSES: usize = 4;
const SOON: Duration = Duration::from_secs(20);

/// One engine under a mix of faults.
pub(crate) struct Ordeal<'a> {
    name: &'a str,
    engine: &'a dyn Engine,
    manners: Manners,
    lasts: Duration,
    history: History,
    register: FencedRegister,
}

/// Set to run for longer or shorter.
fn run_for() -> Duration {
    let seconds = std::env::var("WINDLASS_TEST_HISTORY_SECONDS");
    Duration::from_secs(seconds.map_or(15, |s| s.parse().unwrap()))
}

impl<'a> Ordeal<'a> {
    pub(crate) fn of(name: &'a str, engine: &'a dyn Engine) -> Ordeal<'a> {
        Ordeal {
            name,
            engine,
            manners: Manners::Good,
            lasts: run_for(),
            history: History::start().unwrap(),
            register: FencedRegister::start().unwrap(),
        }
    }

    /// Among clients that do not behave, with a resource that looks at no fence.
    pub(crate) fn among(self, manners: Manners) -> Ordeal<'a> {
        let register = FencedRegister::start_open().unwrap();
        Ordeal {
            manners,
            register,
            lasts: run_for().min(Duration::from_secs(4)),
            ..self
        }
    }

    /// Nothing happens that must not.
    pub(crate) fn pass(self) {
        let verdict = self.undergo();
        println!("{}: {verdict}", self.name);
        let broken = |breach: &&Breach| !self.engine.excuses(breach);
        assert_eq!(verdict.breaches.iter().find(broken), None, "{verdict}");
        assert!(verdict.grants() > 50, "they hardly worked:\n{verdict}");
        let (accepted, stale) = self.register.writes();
        println!("{}: {accepted} writes, {stale} refused", self.name);
        assert_eq!(self.register.lost_updates(), 0, "an update was lost");
        assert_eq!(self.register.value(), accepted);
    }

    /// Faults, one after the other; what is to be said afterwards.
    pub(crate) fn undergo(&self) -> Verdict {
        let mut workers: Vec<_> = (0..PROCESSES).map(|_| self.worker()).collect();
        for worker in &workers {
            let ready = worker.wait_for_line(|line| line == "ready", SOON);
            ready.expect("a worker connects");
        }
        let (faults, ttl) = (self.engine.faults(), self.engine.ttl());
        let end = Instant::now() + self.lasts;
        let kinds = 2 + faults.len();
        let first = rand::random_range(0..kinds);
        let mut round = 0;
        // On a slow machine for longer, until it has seen every kind.
        while Instant::now() < end || round < kinds {
            sleep(Duration::from_millis(rand::random_range(200..600))); // let them work
            let victim = rand::random_range(0..PROCESSES);
            match (first + round) % kinds {
                0 => {
                    self.tell("kill", "a client", Begun::Now);
                    workers[victim].kill9().unwrap();
                    self.tell("kill", "a client", Begun::Before);
                    workers[victim] = self.worker();
                }
                1 => {
                    let victim = self.next_holder(&workers).unwrap_or(victim);
                    self.tell("freeze", "a client", Begun::Now);
                    workers[victim].pause().unwrap();
                    sleep(ttl + ttl / 2); // beyond its lease
                    workers[victim].resume().unwrap();
                    self.tell("freeze", "a client", Begun::Before);
                }
                other => self.inflict(&faults[other - 2]),
            }
            round += 1;
            // The next fault when this one is over, so that each is told what it has cost.
            self.next_grant(SOON);
        }
        sleep(ttl * 2); // whoever lost something comes again
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

    fn inflict(&self, fault: &Fault<'_>) {
        self.tell(fault.kind, fault.victim, Begun::Now);
        (fault.begin)();
        sleep(fault.lasts);
        (fault.end)();
        self.tell(fault.kind, fault.victim, Begun::Before);
    }

    /// Which of the workers is granted the lock next: frozen now, it most likely holds it.
    fn next_holder(&self, workers: &[TestProcess]) -> Option<usize> {
        let client = self.next_grant(self.engine.ttl())?;
        let (pid, _) = client.split_once('/')?;
        workers.iter().position(|w| w.pid().to_string() == pid)
    }

    /// Who is granted the lock next.
    fn next_grant(&self, limit: Duration) -> Option<String> {
        let known = self.history.events().len();
        let mut client = None;
        eventually_blocking(limit, || {
            let events = self.history.events();
            let granted = |event: &&Event| matches!(event.seen, Seen::Granted { .. });
            let last = events[known..].iter().rev().find(granted);
            client = last.map(|event| event.client.clone());
            client.is_some()
        });
        client
    }

    fn tell(&self, kind: &str, victim: &str, begun: Begun) {
        let kind = kind.to_owned();
        self.history.add(Event {
            at: boot_nanos(),
            client: "the test".to_owned(),
            what: victim.to_owned(),
            seen: match begun {
                Begun::Now => Seen::Fault { kind },
                Begun::Before => Seen::Healed { kind },
            },
        });
    }

    fn worker(&self) -> TestProcess {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "worker", "--nocapture"])
            .env("WINDLASS_TEST_ROLE", self.manners.as_str())
            .env("WINDLASS_TEST_URL", self.engine.url())
            .env(
                "WINDLASS_TEST_TTL",
                self.engine.ttl().as_millis().to_string(),
            )
            .env("WINDLASS_TEST_HISTORY", self.history.addr().to_string())
            .env("WINDLASS_TEST_REGISTER", self.register.addr().to_string());
        TestProcess::spawn(&mut command).unwrap()
    }
}

enum Begun {
    Now,
    Before,
}

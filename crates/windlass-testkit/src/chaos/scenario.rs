//! Runs clients and faults for a while, and checks the history.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::commands::{LockedCommand, LockedCommands};
use super::report::ChaosReport;
use super::stores::{Fault, StoreUnderTest};
use super::worker::{ClientBehaviour, LOCK};
use crate::history::{
    Breach, History, HistoryEvent, Observation, Verdict, boot_nanos, check, save,
};
use crate::{FencedRegister, Signal, TestProcess, eventually_blocking};

/// The TTL, unless a store needs a longer one.
pub(super) const TTL: Duration = Duration::from_millis(500);
const PROCESSES: usize = 4;
/// Commands under `windlass run` at a time.
const COMMANDS: usize = 2;
const SOON: Duration = Duration::from_secs(20);

/// One store under a mix of faults.
pub struct FaultScenario<'a> {
    name: &'a str,
    store: &'a dyn StoreUnderTest,
    behaviour: ClientBehaviour,
    lasts: Duration,
    /// Where the history is saved.
    folder: PathBuf,
    severe: bool,
    /// The program `windlass`, to run commands under the lock.
    windlass: Option<PathBuf>,
    history: History,
    register: FencedRegister,
}

impl<'a> FaultScenario<'a> {
    /// Clients of `store` for `lasts`, or longer until each kind of fault has occurred. The history is
    /// saved in `folder`.
    pub fn new(
        name: &'a str,
        store: &'a dyn StoreUnderTest,
        lasts: Duration,
        folder: &Path,
    ) -> FaultScenario<'a> {
        FaultScenario {
            name,
            store,
            behaviour: ClientBehaviour::Correct,
            lasts,
            folder: folder.to_owned(),
            severe: false,
            windlass: None,
            history: History::start().unwrap(),
            register: FencedRegister::start().unwrap(),
        }
    }

    /// Uses clients of this behaviour, and a resource that ignores fences.
    pub fn with_behaviour(self, behaviour: ClientBehaviour) -> FaultScenario<'a> {
        let register = FencedRegister::start_open().unwrap();
        FaultScenario {
            behaviour,
            register,
            ..self
        }
    }

    /// Injects the faults of [`StoreUnderTest::severe_faults`] too.
    pub fn with_severe_faults(self) -> FaultScenario<'a> {
        FaultScenario {
            severe: true,
            ..self
        }
    }

    /// Also runs commands under the lock with this `windlass`, in process groups that are stopped
    /// and killed.
    pub fn with_commands(self, windlass: PathBuf) -> FaultScenario<'a> {
        FaultScenario {
            windlass: Some(windlass),
            ..self
        }
    }

    /// Runs the scenario and checks that no rule is violated.
    pub fn run_and_check(self) {
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

    /// Runs the scenario and returns its figures; prints the verdict.
    pub fn report(self) -> ChaosReport {
        let verdict = self.run();
        println!("{}: {verdict}", self.name);
        let mut report = ChaosReport::new(
            self.name,
            self.store,
            &verdict,
            &self.history.events(),
            self.leaks(),
        );
        report.overlaps += usize::try_from(self.register.lost_updates()).unwrap_or(usize::MAX);
        report
    }

    /// How many claims are left after all clients were killed and their leases have ended. An entry of
    /// the queue that has expired may still be counted until the next client comes: so one comes. `None`
    /// if the store does not answer.
    fn leaks(&self) -> Option<u64> {
        let left = async || -> windlass::Result<u64> {
            let w = windlass::connect(&self.store.url()).await?;
            let next = w.lock(LOCK).ttl(self.store.ttl()).try_acquire().await?;
            if let Some(guard) = next.acquired()
                && !guard.release().await?.was_held()
            {
                return Ok(1);
            }
            let state = w.lock(LOCK).inspect().await?;
            Ok(state.waiters + u64::from(state.holder.is_some()))
        };
        sleep(self.store.expiry_limit());
        let runtime = tokio::runtime::Runtime::new().expect("a runtime");
        let mut leaks = None;
        // The store may still recover from the last fault.
        eventually_blocking(SOON, || match runtime.block_on(left()) {
            Ok(left) => {
                leaks = Some(left);
                true
            }
            Err(_) => false,
        });
        leaks
    }

    /// Injects faults, one after the other, and returns the verdict.
    pub fn run(&self) -> Verdict {
        let commands = self.windlass.as_ref().map(|windlass| {
            let command = LockedCommand {
                windlass: windlass.clone(),
                store: self.store.url(),
                ttl: self.store.ttl(),
                variables: self.variables(),
            };
            LockedCommands::start(COMMANDS, &command)
        });
        let mut workers: Vec<_> = (0..PROCESSES).map(|_| self.worker()).collect();
        for worker in &workers {
            let ready = worker.wait_for_line(|line| line == "ready", SOON);
            ready.expect("a worker connects");
        }
        let (mut faults, ttl) = (self.store.faults(), self.store.ttl());
        if self.severe {
            faults.extend(self.store.severe_faults());
        }
        let end = Instant::now() + self.lasts;
        let of_commands = if commands.is_some() { 3 } else { 0 };
        let kinds = 2 + faults.len() + of_commands;
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
                other => match (faults.get(other - 2), &commands) {
                    (Some(fault), _) => self.inject(fault),
                    (None, Some(commands)) => {
                        self.inject_into_command(commands, other - 2 - faults.len());
                    }
                    (None, None) => unreachable!("no other kinds of faults"),
                },
            }
            round += 1;
            // Start the next fault after this one has recovered, so that each recovery is measured.
            self.next_grant(SOON);
        }
        sleep(ttl * 2); // let clients that lost the lock acquire it again
        drop((workers, commands));
        let events = self.history.events();
        let file = self.folder.join(format!("history-{}.jsonl", self.name));
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

    /// Kills a `windlass run`, or stops or kills its whole process group.
    fn inject_into_command(&self, commands: &LockedCommands, kind: usize) {
        let Some(command) = commands.pick() else {
            return;
        };
        let (name, ttl) = match kind {
            0 => ("kill", Duration::ZERO),
            1 => ("kill the group of", Duration::ZERO),
            _ => ("stop the group of", self.store.ttl() * 3 / 2),
        };
        self.record(name, "windlass run", ScenarioPhase::Begin);
        // It may have ended since: then there is nothing to do.
        let _ = match kind {
            0 => command.kill9(),
            1 => command.signal_group(Signal::KILL),
            _ => command.signal_group(Signal::STOP),
        };
        if !ttl.is_zero() {
            sleep(ttl); // beyond its lease
            let _ = command.signal_group(Signal::CONT);
        }
        self.record(name, "windlass run", ScenarioPhase::End);
    }

    /// The worker that is granted the lock next: frozen now, it most likely holds it.
    fn next_holder(&self, workers: &[TestProcess]) -> Option<usize> {
        let client = self.next_grant(self.store.ttl())?;
        let (pid, _) = client.split_once('/')?;
        workers.iter().position(|w| w.pid().to_string() == pid)
    }

    /// The client that is granted the lock next.
    fn next_grant(&self, limit: Duration) -> Option<String> {
        let known = self.history.len();
        let mut client = None;
        eventually_blocking(limit, || {
            client = self.history.last_grant(known);
            client.is_some()
        });
        client
    }

    fn record(&self, kind: &str, victim: &str, phase: ScenarioPhase) {
        let kind = kind.to_owned();
        self.history.add(HistoryEvent {
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
            .envs(self.variables())
            .env("WINDLASS_TEST_ROLE", self.behaviour.as_str());
        TestProcess::spawn(&mut command).unwrap()
    }

    /// What a worker reads from its environment.
    fn variables(&self) -> Vec<(String, String)> {
        [
            ("WINDLASS_TEST_URL", self.store.url()),
            (
                "WINDLASS_TEST_TTL",
                self.store.ttl().as_millis().to_string(),
            ),
            ("WINDLASS_TEST_HISTORY", self.history.addr().to_string()),
            ("WINDLASS_TEST_REGISTER", self.register.addr().to_string()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }
}

enum ScenarioPhase {
    Begin,
    End,
}

impl fmt::Debug for FaultScenario<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FaultScenario")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

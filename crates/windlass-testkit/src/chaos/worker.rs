//! A client, and what it records.
//!
//! A worker process is the program itself, started again with `WINDLASS_TEST_ROLE` set.

use std::net::SocketAddr;
use std::time::Duration;

use crate::history::{HistoryEvent, HistoryRecorder, Observation, boot_nanos};
use crate::{RegisterClient, Written};
use windlass::{Coordinator, Error, LockGuard, connect};

const TASKS: usize = 3;
/// The lock that all clients take.
pub const LOCK: &str = "stock";
/// The role of a command under `windlass run`.
pub(super) const SECTION: &str = "section";
/// The variable that tells it when `windlass run` was started.
pub(super) const ASKED: &str = "WINDLASS_TEST_ASKED";

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientBehaviour {
    /// Stops working when its lease has ended.
    Correct,
    /// Continues to work after its lease has ended.
    IgnoreLoss,
}

impl ClientBehaviour {
    pub(super) fn as_str(self) -> &'static str {
        match self {
            ClientBehaviour::Correct => "correct",
            ClientBehaviour::IgnoreLoss => "ignore-loss",
        }
    }
}

/// Works for ever if this process is a worker; else returns at once.
pub fn run_if_worker() {
    let Ok(role) = std::env::var("WINDLASS_TEST_ROLE") else {
        return;
    };
    if role == SECTION {
        return critical_section();
    }
    let behaviour = [ClientBehaviour::Correct, ClientBehaviour::IgnoreLoss];
    let behaviour = behaviour
        .into_iter()
        .find(|behaviour| behaviour.as_str() == role);
    let behaviour = behaviour.expect("a role that is known");
    let variable = |name: &str| std::env::var(name).unwrap();
    let history: SocketAddr = variable("WINDLASS_TEST_HISTORY").parse().unwrap();
    let ttl: u64 = variable("WINDLASS_TEST_TTL").parse().unwrap();
    let register: SocketAddr = variable("WINDLASS_TEST_REGISTER").parse().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        // A process may start during a fault of the store.
        let w = loop {
            match connect(&variable("WINDLASS_TEST_URL")).await {
                Ok(w) => break w,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        println!("ready");
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let client = RecordingClient {
                    w: w.clone(),
                    name: format!("{}/{task}", std::process::id()),
                    behaviour,
                    ttl: Duration::from_millis(ttl),
                    attempt: 0,
                    recorder: HistoryRecorder::connect(history).unwrap(),
                    register: RegisterClient::connect(register).unwrap(),
                };
                tokio::spawn(client.work())
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// The command under `windlass run`: records that it runs, for a while. It does not know whether the
/// lock is held; to be killed in time is not its job.
fn critical_section() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let fence: u64 = variable("WINDLASS_FENCE").parse().unwrap();
    let history: SocketAddr = variable("WINDLASS_TEST_HISTORY").parse().unwrap();
    let mut recorder = HistoryRecorder::connect(history).unwrap();
    let client = format!("{}/run", std::process::id());
    let mut record = |at: u64, seen: Observation| {
        let (client, what) = (client.clone(), LOCK.to_owned());
        let event = HistoryEvent {
            at,
            client,
            what,
            seen,
        };
        recorder.record(&event).unwrap();
    };
    let attempt = 1;
    let asked: u64 = variable(ASKED).parse().unwrap();
    record(asked, Observation::Asked { attempt });
    record(boot_nanos(), Observation::Running { attempt, fence });
    for _ in 0..rand::random_range(5..100) {
        record(boot_nanos(), Observation::Held { attempt });
        std::thread::sleep(Duration::from_millis(1));
    }
    record(boot_nanos(), Observation::Held { attempt });
}

struct RecordingClient {
    w: Coordinator,
    name: String,
    behaviour: ClientBehaviour,
    ttl: Duration,
    attempt: u64,
    recorder: HistoryRecorder,
    register: RegisterClient,
}

impl RecordingClient {
    async fn work(mut self) {
        loop {
            self.attempt += 1;
            let attempt = self.attempt;
            let mut lock = self.w.lock(LOCK).ttl(self.ttl).wait(10 * self.ttl);
            if self.behaviour == ClientBehaviour::IgnoreLoss {
                lock = lock.max_hold(self.ttl / 2);
            }
            self.record(boot_nanos(), Observation::Asked { attempt });
            match lock.acquire().await {
                Ok(guard) => {
                    let fence = guard.fence().get();
                    self.record(boot_nanos(), Observation::Granted { attempt, fence });
                    self.hold(guard).await;
                }
                Err(e) => self.not_granted(&e).await,
            }
        }
    }

    async fn not_granted(&mut self, error: &Error) {
        let why = format!("{:?}", error.kind());
        let attempt = self.attempt;
        self.record(boot_nanos(), Observation::NotGranted { attempt, why });
        tokio::time::sleep(Duration::from_millis(20)).await; // the store may be down: not in a tight loop
    }

    /// Works for a while, checking the lease and writing; then releases.
    async fn hold(&mut self, guard: LockGuard) {
        let attempt = self.attempt;
        let steps = match self.behaviour {
            ClientBehaviour::Correct => rand::random_range(1..4),
            ClientBehaviour::IgnoreLoss => 60,
        };
        for _ in 0..steps {
            if !self.look(&guard) && self.behaviour == ClientBehaviour::Correct {
                return; // dropping it releases what is left
            }
            // A process is most often frozen here: its write then arrives too late.
            let seen = self.register.read_as(guard.fence().get());
            let pause = Duration::from_micros(rand::random_range(2000..10_000));
            tokio::time::sleep(pause).await; // work
            self.write(&guard, seen.unwrap()).await;
        }
        if self.look(&guard) {
            self.record(boot_nanos(), Observation::ReleaseAsked { attempt });
            if let Ok(released) = guard.release().await {
                let was_held = released.was_held();
                self.record(boot_nanos(), Observation::Released { attempt, was_held });
            }
        }
    }

    /// Whether the lease is valid. The clock is read first: a lease valid now was valid then.
    fn look(&mut self, guard: &LockGuard) -> bool {
        let attempt = self.attempt;
        let at = boot_nanos();
        let held = guard.is_held();
        if !held {
            self.record(boot_nanos(), Observation::Lost { attempt });
        }
        if held || self.behaviour == ClientBehaviour::IgnoreLoss {
            let at = if held { at } else { boot_nanos() };
            self.record(at, Observation::Held { attempt });
        }
        held
    }

    /// Presents the fence to the store's gate, and writes to a register that checks it itself.
    async fn write(&mut self, guard: &LockGuard, seen: Option<u64>) {
        let fence = guard.fence();
        let asked = boot_nanos();
        // Without a reply it is unknown whether the fence was admitted.
        if let Ok(admission) = self.w.gate(LOCK).admit(fence).await {
            self.record_gate("store", fence.get(), asked, admission.is_admitted());
        }
        let asked = boot_nanos();
        let written = match seen {
            Some(seen) => self.register.write(fence.get(), seen + 1).unwrap(),
            None => Written::Stale,
        };
        let admitted = written == Written::Accepted;
        self.record_gate("register", fence.get(), asked, admitted);
    }

    fn record_gate(&mut self, gate: &str, fence: u64, asked: u64, admitted: bool) {
        let gate = gate.to_owned();
        let seen = Observation::Gate {
            gate,
            fence,
            asked,
            admitted,
        };
        self.record(boot_nanos(), seen);
    }

    fn record(&mut self, at: u64, seen: Observation) {
        let event = HistoryEvent {
            at,
            client: self.name.clone(),
            what: LOCK.to_owned(),
            seen,
        };
        self.recorder.record(&event).unwrap();
    }
}

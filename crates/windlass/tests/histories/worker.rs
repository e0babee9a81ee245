//! What a client does, and what it tells of it.
//!
//! A worker process is this very test program, started again with `WINDLASS_TEST_ROLE` set.

use std::net::SocketAddr;
use std::time::Duration;

use windlass::{Coordinator, Error, LockGuard, connect};
use windlass_testkit::history::{Event, HistoryRecorder, Observation, boot_nanos};
use windlass_testkit::{RegisterClient, Written};

const TASKS: usize = 3;
pub(crate) const LOCK: &str = "stock";

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientBehaviour {
    Correct,
    /// Works on when its lease is over.
    IgnoreLoss,
}

impl ClientBehaviour {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            ClientBehaviour::Correct => "correct",
            ClientBehaviour::IgnoreLoss => "ignore-loss",
        }
    }
}

pub(crate) fn run_if_worker() {
    let Ok(role) = std::env::var("WINDLASS_TEST_ROLE") else {
        return;
    };
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
        // A process may be started while the store is being mistreated.
        let w = loop {
            match connect(&variable("WINDLASS_TEST_URL")).await {
                Ok(w) => break w,
                Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        };
        println!("ready");
        let tasks: Vec<_> = (0..TASKS)
            .map(|task| {
                let client = Client {
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

struct Client {
    w: Coordinator,
    name: String,
    behaviour: ClientBehaviour,
    ttl: Duration,
    attempt: u64,
    recorder: HistoryRecorder,
    register: RegisterClient,
}

impl Client {
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

    /// Works for a while, looking every now and then; writes; releases.
    async fn hold(&mut self, guard: LockGuard) {
        let attempt = self.attempt;
        let steps = match self.behaviour {
            ClientBehaviour::Correct => rand::random_range(1..4),
            ClientBehaviour::IgnoreLoss => 60,
        };
        for _ in 0..steps {
            if !self.look(&guard) && self.behaviour == ClientBehaviour::Correct {
                return; // dropping it withdraws what is left of it
            }
            // Where a process is frozen, it is most often here: the write then comes too late.
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

    /// Whether the lease is valid. The clock is read first: what is valid now was valid then.
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

    /// Shows the fence to the store's gate, and writes to a register that checks it by itself.
    async fn write(&mut self, guard: &LockGuard, seen: Option<u64>) {
        let fence = guard.fence();
        let asked = boot_nanos();
        // No answer says nothing: it may have been admitted or not.
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
        let event = Event {
            at,
            client: self.name.clone(),
            what: LOCK.to_owned(),
            seen,
        };
        self.recorder.record(&event).unwrap();
    }
}

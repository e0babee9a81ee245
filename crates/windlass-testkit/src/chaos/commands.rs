//! Commands under `windlass run`: the critical section is a process that knows nothing of the
//! library.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::Duration;

use super::worker::{ASKED, LOCK, SECTION};
use crate::TestProcess;
use crate::history::boot_nanos;

/// Several shells, each of which runs one command after the other under the lock.
#[derive(Debug)]
pub(super) struct LockedCommands {
    slots: Vec<CommandSlot>,
    stop: Arc<AtomicBool>,
}

#[derive(Debug)]
struct CommandSlot {
    /// The `windlass run` of the moment.
    current: Arc<Mutex<Option<Arc<TestProcess>>>>,
    thread: Option<JoinHandle<()>>,
}

/// What `windlass run` is called with.
#[derive(Clone, Debug)]
pub(super) struct LockedCommand {
    pub(super) windlass: PathBuf,
    pub(super) store: String,
    pub(super) ttl: Duration,
    /// The variables of a worker.
    pub(super) variables: Vec<(String, String)>,
}

impl LockedCommand {
    fn spawn(&self, program: &Path) -> std::io::Result<TestProcess> {
        let millis = |time: Duration| format!("{}ms", time.as_millis());
        let mut command = Command::new(&self.windlass);
        command
            .args(["run", "--quiet", "--store", &self.store])
            .args(["--ttl", &millis(self.ttl), "--wait", &millis(10 * self.ttl)])
            .args([LOCK, "--"])
            .arg(program)
            .args(["--exact", "worker", "--nocapture"])
            .envs(self.variables.iter().map(|(name, value)| (name, value)))
            .env("WINDLASS_TEST_ROLE", SECTION)
            .env(ASKED, boot_nanos().to_string())
            .stderr(std::process::Stdio::null());
        TestProcess::spawn_in_group(&mut command)
    }
}

impl LockedCommands {
    pub(super) fn start(count: usize, command: &LockedCommand) -> LockedCommands {
        let stop = Arc::new(AtomicBool::new(false));
        let start = |_| {
            let current = Arc::new(Mutex::new(None));
            let (slot, stop, command) = (Arc::clone(&current), Arc::clone(&stop), command.clone());
            let thread = thread::spawn(move || {
                let program = std::env::current_exe().expect("this program has a path");
                while !stop.load(Ordering::Relaxed) {
                    let process = command.spawn(&program).expect("windlass can be started");
                    let process = Arc::new(process);
                    *slot.lock().unwrap_or_else(PoisonError::into_inner) =
                        Some(Arc::clone(&process));
                    while process.is_alive() && !stop.load(Ordering::Relaxed) {
                        sleep(Duration::from_millis(5));
                    }
                }
            });
            CommandSlot {
                current,
                thread: Some(thread),
            }
        };
        LockedCommands {
            slots: (0..count).map(start).collect(),
            stop,
        }
    }

    /// A `windlass run` that is alive, or was a moment ago.
    pub(super) fn pick(&self) -> Option<Arc<TestProcess>> {
        let slot = &self.slots[rand::random_range(0..self.slots.len())];
        let current = slot.current.lock();
        current.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for LockedCommands {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for slot in &mut self.slots {
            if let Some(thread) = slot.thread.take() {
                let _ = thread.join();
            }
        }
    }
}

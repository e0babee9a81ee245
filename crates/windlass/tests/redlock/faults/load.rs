//! Tasks that count under a lock while nodes fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use windlass::{Coordinator, Fence};
use windlass_testkit::eventually;

use super::SOON;

/// Several tasks that count under one lock, until stopped.
pub(crate) struct CountingTasks {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    unprotected: Arc<AtomicU64>,
    pause: Arc<Mutex<ServiceGap>>,
    fences: tokio::task::JoinHandle<Vec<Fence>>,
}

/// The time without a grant.
struct ServiceGap {
    last_turn: Instant,
    longest: Duration,
}

impl ServiceGap {
    fn ends(&mut self) {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last_turn);
        self.last_turn = now;
    }
}

impl CountingTasks {
    pub(crate) fn start(w: &Coordinator, name: &'static str) -> CountingTasks {
        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicU64::new(0));
        let unprotected = Arc::new(AtomicU64::new(0));
        let pause = Arc::new(Mutex::new(ServiceGap {
            last_turn: Instant::now(),
            longest: Duration::ZERO,
        }));
        let fences = tokio::spawn({
            let (w, stop, done) = (w.clone(), Arc::clone(&stop), Arc::clone(&done));
            let (unprotected, pause) = (Arc::clone(&unprotected), Arc::clone(&pause));
            async move {
                let tasks = (0..4).map(|_| {
                    let (w, stop) = (w.clone(), Arc::clone(&stop));
                    let (done, unprotected) = (Arc::clone(&done), Arc::clone(&unprotected));
                    let pause = Arc::clone(&pause);
                    tokio::spawn(async move {
                        let mut fences = Vec::new();
                        while !stop.load(Ordering::Relaxed) {
                            let Ok(guard) = w.lock(name).acquire().await else {
                                continue;
                            };
                            let before = unprotected.load(Ordering::Relaxed);
                            tokio::task::yield_now().await;
                            unprotected.store(before + 1, Ordering::Relaxed);
                            done.fetch_add(1, Ordering::Relaxed);
                            pause.lock().unwrap().ends();
                            fences.push(guard.fence());
                            let _ = guard.release().await;
                        }
                        fences
                    })
                });
                let mut all = Vec::new();
                for task in tasks.collect::<Vec<_>>() {
                    all.extend(task.await.unwrap());
                }
                all
            }
        });
        CountingTasks {
            stop,
            done,
            unprotected,
            pause,
            fences,
        }
    }

    /// Waits for further counts, and prints the longest time without a grant.
    pub(crate) async fn goes_on(&self, what: &str) {
        self.pause.lock().unwrap().longest = Duration::ZERO;
        let before = self.done.load(Ordering::Relaxed);
        let further = || async { self.done.load(Ordering::Relaxed) >= before + 20 };
        assert!(
            eventually(6 * SOON, further).await,
            "{what}: it does not go on"
        );
        let longest = self.pause.lock().unwrap().longest;
        println!("{what}: nobody was served for {longest:?} at most");
    }

    /// Stops, and checks that no update was lost and no fence was used twice.
    pub(crate) async fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        let mut fences = self.fences.await.unwrap();
        let done = self.done.load(Ordering::Relaxed);
        assert_eq!(self.unprotected.load(Ordering::Relaxed), done);
        assert_eq!(fences.len() as u64, done);
        fences.sort_unstable();
        fences.dedup();
        assert_eq!(fences.len() as u64, done, "a fence was given twice");
    }
}

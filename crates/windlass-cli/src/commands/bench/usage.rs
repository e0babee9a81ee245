//! What a process has used of the machine.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Processor time of this process, all threads together.
pub(super) fn own_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Memory of this process that is in RAM, in bytes; nothing where the system does not tell.
///
/// The rollup counts pages; the quicker `statm` lags behind by up to some hundred KiB a thread.
pub(super) fn own_rss() -> Option<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Bytes per piece by which memory has grown; nothing if either size is unknown.
pub(super) fn growth(before: Option<u64>, after: Option<u64>, pieces: u32) -> Option<f64> {
    Some(after?.saturating_sub(before?) as f64 / f64::from(pieces))
}

/// Processor time of each thread of another process, at one moment.
///
/// Taken from the scheduler's own count in nanoseconds: `/proc/PID/stat` counts in hundredths of a
/// second, and a process that waits well uses less than one.
#[derive(Debug)]
pub(super) struct Threads(HashMap<u32, Duration>);

impl Threads {
    pub(super) fn of(process: u32) -> io::Result<Threads> {
        let mut spent = HashMap::new();
        for entry in fs::read_dir(format!("/proc/{process}/task"))? {
            let entry = entry?;
            // A thread may end between being listed and being read; what it used is then unknown.
            let Ok(text) = fs::read_to_string(entry.path().join("schedstat")) else {
                continue;
            };
            let number = entry.file_name().to_str().and_then(|n| n.parse().ok());
            let nanos = text.split_whitespace().next().and_then(|n| n.parse().ok());
            if let (Some(number), Some(nanos)) = (number, nanos) {
                spent.insert(number, Duration::from_nanos(nanos));
            }
        }
        if spent.is_empty() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "this system does not tell what threads use",
            ));
        }
        Ok(Threads(spent))
    }

    /// What the threads that are there now have used since `earlier`.
    pub(super) fn since(&self, earlier: &Threads) -> Duration {
        let used = |(thread, now): (&u32, &Duration)| {
            let before = earlier.0.get(thread).copied().unwrap_or_default();
            now.saturating_sub(before)
        };
        self.0.iter().map(used).sum()
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn work_is_seen() {
        let (cpu, threads) = (own_cpu(), Threads::of(std::process::id()).unwrap());
        let end = Instant::now() + Duration::from_millis(50);
        let mut work = 0u64;
        while Instant::now() < end {
            work = std::hint::black_box(work + 1);
        }
        // Other tests may have most of the processor meanwhile.
        let some = Duration::from_millis(2);
        assert!(own_cpu() - cpu > some);
        assert!(Threads::of(std::process::id()).unwrap().since(&threads) > some);
    }

    #[test]
    fn memory_is_seen() {
        let before = own_rss();
        assert!(before > Some(100_000));
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let grown = growth(before, own_rss(), 32).unwrap();
        assert!((800_000.0..2_000_000.0).contains(&grown), "{grown}");
        drop(block);
        assert_eq!(growth(None, before, 1), None);
    }
}

//! CPU time and memory of processes.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// CPU time of this process, all threads together.
pub(crate) fn own_cpu() -> Duration {
    let spent = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

/// Resident memory of this process in bytes; `None` where the system does not report it.
///
/// `smaps_rollup` counts pages; the faster `statm` lags behind by up to some hundred KiB per thread.
pub(crate) fn own_rss() -> Option<u64> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Rss:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

/// Growth of memory per piece in bytes; `None` if either size is unknown.
pub(crate) fn growth(before: Option<u64>, after: Option<u64>, pieces: u32) -> Option<f64> {
    Some(after?.saturating_sub(before?) as f64 / f64::from(pieces))
}

/// CPU time of each thread of a process, at one moment.
///
/// Read from the scheduler's count in nanoseconds: `/proc/PID/stat` counts in hundredths of a second, more than an
/// idle waiter uses.
#[derive(Debug)]
pub(crate) struct ThreadTimes(HashMap<u32, Duration>);

impl ThreadTimes {
    pub(crate) fn of(process: u32) -> io::Result<ThreadTimes> {
        let mut spent = HashMap::new();
        for entry in fs::read_dir(format!("/proc/{process}/task"))? {
            let entry = entry?;
            // A thread may end between being listed and being read; its time is then unknown.
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
                "this system does not report the CPU time of threads",
            ));
        }
        Ok(ThreadTimes(spent))
    }

    /// CPU time of the present threads since `earlier`.
    pub(crate) fn since(&self, earlier: &ThreadTimes) -> Duration {
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
    fn cpu_time_of_work_is_measured() {
        let (cpu, threads) = (own_cpu(), ThreadTimes::of(std::process::id()).unwrap());
        let end = Instant::now() + Duration::from_millis(50);
        let mut work = 0u64;
        while Instant::now() < end {
            work = std::hint::black_box(work + 1);
        }
        // Other tests may use most of the CPU meanwhile.
        let some = Duration::from_millis(2);
        assert!(own_cpu() - cpu > some);
        assert!(ThreadTimes::of(std::process::id()).unwrap().since(&threads) > some);
    }

    #[test]
    fn allocated_memory_is_measured() {
        let before = own_rss();
        assert!(before > Some(100_000));
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let grown = growth(before, own_rss(), 32).unwrap();
        assert!((800_000.0..2_000_000.0).contains(&grown), "{grown}");
        drop(block);
        assert_eq!(growth(None, before, 1), None);
    }
}

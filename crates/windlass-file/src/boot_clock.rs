//! The clock that all processes of a machine share: the time since it booted.
//!
//! A container may have a time namespace, in which the boot clock has an offset. Times in the file
//! are those without offset, so that processes inside and outside agree.
//!
//! `/proc/self/timens_offsets` describes the namespace that children of this process get. It is that
//! of the process itself, unless the process created one (`unshare --time` without `--fork`): the
//! offset of the process is then that of its earlier namespace, which nothing shows. It is taken for
//! none, as it is outside of containers with a clock of their own.

use std::path::PathBuf;

use windlass_core::{Clock, Moment};

/// The machine's boot clock, whatever the time namespace of this process.
#[derive(Clone, Debug)]
pub(super) struct BootClock {
    clock: Clock,
    /// How far the clock of this process is ahead of the machine's, in nanoseconds.
    ahead: i64,
}

impl BootClock {
    pub(super) fn new() -> BootClock {
        // Without the file, the kernel has no time namespaces.
        let offsets = std::fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
        let namespaces = ["time", "time_for_children"].map(namespace);
        BootClock {
            clock: Clock::system(),
            ahead: own_offset(&namespaces, &offsets),
        }
    }

    pub(super) fn now(&self) -> Moment {
        let nanos = self.clock.now().as_nanos();
        Moment::from_nanos(nanos.saturating_add_signed(self.ahead.saturating_neg()))
    }
}

/// Identifies a namespace of this process.
fn namespace(kind: &str) -> Option<PathBuf> {
    std::fs::read_link(format!("/proc/self/ns/{kind}")).ok()
}

/// Identifies the current boot of the machine.
pub(super) fn boot_id() -> String {
    std::fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_else(|_| "unknown".to_owned())
}

/// The offset for this process, from its namespaces and the offsets for its children.
fn own_offset([own, for_children]: &[Option<PathBuf>; 2], offsets: &str) -> i64 {
    match own == for_children {
        true => boot_offset(offsets).unwrap_or(0),
        false => 0,
    }
}

/// The offset of the boot clock: a line with its name, seconds and nanoseconds.
fn boot_offset(offsets: &str) -> Option<i64> {
    let line = offsets.lines().find_map(|l| l.strip_prefix("boottime"))?;
    let mut numbers = line.split_whitespace().map(str::parse::<i64>);
    let (seconds, nanos) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offset_is_read() {
        let offsets = "monotonic           7         5\nboottime      1000000        12\n";
        assert_eq!(boot_offset(offsets), Some(1_000_000_000_000_012));
        let back = "monotonic           0         0\nboottime           -2 500000000\n";
        assert_eq!(boot_offset(back), Some(-1_500_000_000));
        assert_eq!(boot_offset(""), None);
    }

    /// A process that has called `unshare(CLONE_NEWTIME)`. On Linux before 6.1, so has one that
    /// `unshare --time` runs without `--fork`.
    #[test]
    fn offset_for_children_is_not_that_of_the_process() {
        let offsets = "monotonic           0         0\nboottime      1000000         0\n";
        let [host, container] = ["time:[4026531834]", "time:[4026532178]"].map(PathBuf::from);
        let offset = |own: &PathBuf, children: &PathBuf| {
            own_offset(&[Some(own.clone()), Some(children.clone())], offsets)
        };
        assert_eq!(offset(&container, &container), 1_000_000_000_000_000);
        assert_eq!(offset(&host, &container), 0);
    }
}

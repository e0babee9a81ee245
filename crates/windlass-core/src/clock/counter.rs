//! The boot clock, read through the processor's counter: less than half the price of a system clock, which is most of a
//! rate limiter's decision in memory.
//!
//! Each thread keeps an *anchor*: a reading of the boot clock, and the count just after it. For the next millisecond of
//! the counter, the time is that of the anchor plus the count since. Then the boot clock is read again.
//!
//! **Accuracy.** The count of an anchor is at most a microsecond younger than its reading of the clock, and within a
//! millisecond neither the counter's calibration nor the slewing of the system's clock (at most 500 ppm) adds up to
//! another one. So the time is within [`MAX_ERROR`] of the boot clock, on every thread.
//!
//! **Sleep is noticed.** While a machine is suspended, its counter goes on, restarts from zero, or is stopped. In the
//! first case the anchor is older than a millisecond when the machine resumes, in the second its count is in the
//! future: either way the boot clock, which includes the sleep, is read at once. In the third the anchor is used for a
//! millisecond of running time at most, less than the kernel needs to resume. So is one whose counter has changed its
//! rate, because a virtual machine has moved to another host.
//!
//! **Where it is not used.** Unless the kernel itself tells the time by this counter, it may differ between processors:
//! then, and until the counter is calibrated (some milliseconds, on a thread of its own), this is the boot clock.

use std::cell::Cell;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How far the time is from the boot clock at most.
pub(super) const MAX_ERROR: Duration = Duration::from_micros(2);

/// For how long an anchor is used, in nanoseconds by the counter.
const MAX_AGE: u64 = 1_000_000;
/// An anchor whose two readings are further apart, because the thread was interrupted, is not used.
const MAX_GAP: u64 = 1_000;

/// The calibrated counter; `None` if the kernel does not rely on it.
static COUNTER: OnceLock<Option<quanta::Clock>> = OnceLock::new();

thread_local! {
    static ANCHOR: Cell<Anchor> = const { Cell::new(Anchor::UNUSABLE) };
}

/// The nanoseconds of the boot clock, within [`MAX_ERROR`].
#[inline]
pub(super) fn boot_nanos() -> u64 {
    match COUNTER.get() {
        Some(Some(counter)) => ANCHOR.with(|anchor| read(anchor, counter, super::boot_nanos)),
        Some(None) => super::boot_nanos(),
        None => calibrate(),
    }
}

/// Begins to calibrate the counter, once. Returns the time by the boot clock.
#[cold]
fn calibrate() -> u64 {
    static BEGUN: AtomicBool = AtomicBool::new(false);
    if !BEGUN.swap(true, Ordering::Relaxed) {
        let calibrate = || {
            let counter = kernel_relies_on_it().then(quanta::Clock::new);
            let _ = COUNTER.set(counter);
        };
        let thread = std::thread::Builder::new().name("windlass-clock".to_owned());
        // Without a thread, the boot clock is as good, and slower.
        let _ = thread.spawn(calibrate);
    }
    super::boot_nanos()
}

/// Whether the kernel tells the time by the counter that user space reads: x86's time stamp counter, Arm's generic timer.
fn kernel_relies_on_it() -> bool {
    const SOURCE: &str = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
    let source = std::fs::read_to_string(SOURCE);
    source.is_ok_and(|source| matches!(source.trim(), "tsc" | "arch_sys_counter"))
}

/// A counter and its rate.
trait Counter {
    fn count(&self) -> u64;

    /// The time between two counts; 0 if the second is not later.
    fn nanos_between(&self, from: u64, to: u64) -> u64;
}

impl Counter for quanta::Clock {
    #[inline(always)]
    fn count(&self) -> u64 {
        self.raw()
    }

    #[inline(always)]
    fn nanos_between(&self, from: u64, to: u64) -> u64 {
        self.delta_as_nanos(from, to)
    }
}

/// A reading of the boot clock, and the count just after it.
#[derive(Clone, Copy, Debug)]
struct Anchor {
    nanos: u64,
    count: u64,
}

impl Anchor {
    const UNUSABLE: Anchor = Anchor {
        nanos: 0,
        count: u64::MAX,
    };
}

#[inline(always)]
fn read(anchor: &Cell<Anchor>, counter: &impl Counter, boot_nanos: impl Fn() -> u64) -> u64 {
    let Anchor { nanos, count } = anchor.get();
    let now = counter.count();
    let age = counter.nanos_between(count, now);
    if now >= count && age < MAX_AGE {
        return nanos + age;
    }
    renew(anchor, counter, boot_nanos)
}

#[inline(never)]
fn renew(anchor: &Cell<Anchor>, counter: &impl Counter, boot_nanos: impl Fn() -> u64) -> u64 {
    let before = counter.count();
    let nanos = boot_nanos();
    let count = counter.count();
    let is_usable = count >= before && counter.nanos_between(before, count) <= MAX_GAP;
    anchor.set(match is_usable {
        true => Anchor { nanos, count },
        false => Anchor::UNUSABLE,
    });
    nanos
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine whose counter counts every other nanosecond.
    #[derive(Default)]
    struct Machine {
        boot: Cell<u64>,
        count: Cell<u64>,
        /// How long reading the clock takes.
        reading: Cell<u64>,
    }

    impl Counter for Machine {
        fn count(&self) -> u64 {
            self.count.get()
        }

        fn nanos_between(&self, from: u64, to: u64) -> u64 {
            to.saturating_sub(from) * 2
        }
    }

    impl Machine {
        fn started() -> Machine {
            let machine = Machine::default();
            machine.boot.set(1 << 40);
            machine.count.set(1 << 30);
            machine
        }

        fn run(&self, nanos: u64) {
            self.boot.set(self.boot.get() + nanos);
            self.count.set(self.count.get() + nanos / 2);
        }

        fn sleep(&self, nanos: u64) {
            self.boot.set(self.boot.get() + nanos);
        }

        fn read(&self, anchor: &Cell<Anchor>) -> u64 {
            read(anchor, self, || {
                let boot = self.boot.get();
                self.run(self.reading.get());
                boot
            })
        }
    }

    #[test]
    fn time_by_the_counter_follows_the_boot_clock() {
        let (machine, anchor) = (Machine::started(), Cell::new(Anchor::UNUSABLE));
        for _ in 0..10_000 {
            assert_eq!(machine.read(&anchor), machine.boot.get());
            machine.run(998);
        }
    }

    #[test]
    fn clock_is_read_once_a_millisecond() {
        let (machine, anchor) = (Machine::started(), Cell::new(Anchor::UNUSABLE));
        let read = Cell::new(0);
        for _ in 0..10_000 {
            super::read(&anchor, &machine, || {
                read.set(read.get() + 1);
                machine.boot.get()
            });
            machine.run(1_000);
        }
        assert_eq!(read.get(), 10);
    }

    #[test]
    fn sleep_is_noticed_if_the_counter_goes_on() {
        let (machine, anchor) = (Machine::started(), Cell::new(Anchor::UNUSABLE));
        machine.read(&anchor);
        machine.run(3_600_000_000_000);
        // At another rate than calibrated: only the boot clock knows.
        machine.sleep(40_000_000);
        assert_eq!(machine.read(&anchor), machine.boot.get());
    }

    #[test]
    fn sleep_is_noticed_if_the_counter_restarts() {
        let (machine, anchor) = (Machine::started(), Cell::new(Anchor::UNUSABLE));
        machine.read(&anchor);
        machine.sleep(3_600_000_000_000);
        machine.count.set(7);
        assert_eq!(machine.read(&anchor), machine.boot.get());
    }

    #[test]
    fn sleep_is_noticed_within_a_millisecond_if_the_counter_was_stopped() {
        let (machine, anchor) = (Machine::started(), Cell::new(Anchor::UNUSABLE));
        machine.read(&anchor);
        machine.run(MAX_AGE / 4);
        machine.sleep(3_600_000_000_000);
        machine.run(MAX_AGE - MAX_AGE / 4);
        assert_eq!(machine.read(&anchor), machine.boot.get());
    }

    /// Or else the time would lag behind by as long as the thread was interrupted.
    #[test]
    fn anchor_of_an_interrupted_thread_is_not_used() {
        let (machine, anchor) = (Machine::started(), Cell::new(Anchor::UNUSABLE));
        machine.reading.set(50_000);
        machine.read(&anchor);
        machine.reading.set(0);
        assert_eq!(machine.read(&anchor), machine.boot.get());
    }

    #[test]
    fn counter_of_this_machine_is_within_the_stated_error() {
        let counter = quanta::Clock::new();
        if !kernel_relies_on_it() {
            return;
        }
        let (anchor, error) = (Cell::new(Anchor::UNUSABLE), MAX_ERROR.as_nanos() as u64);
        for _ in 0..200_000 {
            let before = super::super::boot_nanos();
            let time = read(&anchor, &counter, super::super::boot_nanos);
            let after = super::super::boot_nanos();
            assert!(time + error >= before, "{before} {time}");
            assert!(time <= after + error, "{time} {after}");
        }
    }
}

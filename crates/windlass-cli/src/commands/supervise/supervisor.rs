//! Watches a command and its leases, and ends the command before the first of them expires.
//!
//! A lease is renewed after a third of its TTL, so two thirds of it are always left. Less than half left means that
//! renewals fail. The command must be dead before the lease expires, and should have some time to clean up before it is
//! killed:
//!
//! ```text
//! ttl ──────── 2/3 ───── 1/2 ──────── min(kill-after, 1/3) ──────── margin ── 0
//!     renewed     │        failing: warn         TERM                 KILL
//!             renewals
//! ```

use std::io;
use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use windlass::{Clock, Moment};
use windlass_term::{Exit, Printer, Signal, Signals};

use super::leases::Leases;
use super::status_file::{StatusEvent, StatusFile};
use crate::args::OnLost;
use crate::child::{ChildExit, RunningChild};
use crate::humanize;

/// Maximum reserve for the killing itself, which takes milliseconds even on a busy machine.
const MAX_RESERVE: Duration = Duration::from_millis(250);

/// The thresholds of the remaining time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Deadlines {
    warn: Duration,
    term: Duration,
    reserve: Duration,
}

/// The state of a lease by its remaining time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum LeaseStage {
    Safe,
    /// Renewals fail.
    Failing,
    /// The command must end now, to be dead before the lease expires.
    Expiring,
}

impl Deadlines {
    pub(super) fn new(ttl: Duration, kill_after: Duration) -> Deadlines {
        let reserve = (ttl / 20).min(MAX_RESERVE);
        Deadlines {
            warn: ttl / 2,
            term: kill_after.min(ttl / 3).max(reserve),
            reserve,
        }
    }

    pub(super) fn stage(&self, left: Duration) -> LeaseStage {
        if left <= self.term {
            LeaseStage::Expiring
        } else if left <= self.warn {
            LeaseStage::Failing
        } else {
            LeaseStage::Safe
        }
    }

    /// Time until the command is killed.
    pub(super) fn until_kill(&self, left: Duration) -> Duration {
        left.saturating_sub(self.reserve)
    }

    /// Time until the next check: at the next threshold, and often enough to notice renewals.
    pub(super) fn next_check(&self, left: Duration) -> Duration {
        let thresholds = [self.warn, self.term, self.reserve];
        let to_threshold = thresholds
            .into_iter()
            .find_map(|threshold| left.checked_sub(threshold).filter(|gap| !gap.is_zero()));
        let often = (self.warn / 3).min(Duration::from_secs(1));
        to_threshold
            .unwrap_or(often)
            .min(often)
            .max(Duration::from_millis(1))
    }
}

/// A running command and its leases.
pub(super) struct Supervisor<'a, 'p> {
    /// The noun for messages: lock, permit, …
    pub(super) noun: &'static str,
    pub(super) running: RunningChild,
    pub(super) leases: Leases<'a>,
    pub(super) signals: &'a mut Signals,
    pub(super) status: &'a mut StatusFile<'p>,
    pub(super) printer: &'a Printer,
    pub(super) deadlines: Deadlines,
    pub(super) on_lost: OnLost,
    pub(super) max_time: Option<Duration>,
    pub(super) kill_after: Duration,
}

/// How a supervised command ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct SupervisedOutcome {
    /// `None` if the command could not be killed and may still run.
    pub(super) ended: Option<ChildExit>,
    /// Why it was stopped, if it was.
    pub(super) stop_reason: Option<StopReason>,
    /// The last signal that asked it to end, whether it did or not.
    pub(super) stop_signal: Option<Signal>,
    /// How long it ran; set where it is started.
    pub(in crate::commands) ran: Duration,
}

/// Why a command was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StopReason {
    MaxTime,
    Lost,
    /// A signal arrived after the command had ended, while the lease was still held.
    Signal(Signal),
}

impl SupervisedOutcome {
    /// Whether the lease was lost.
    pub(in crate::commands) fn is_lost(self) -> bool {
        self.stop_reason == Some(StopReason::Lost)
    }

    /// Whether the command was stopped because of `--max-time`.
    pub(in crate::commands) fn reached_max_time(self) -> bool {
        self.stop_reason == Some(StopReason::MaxTime)
    }

    /// Whether the command is known to have ended.
    pub(in crate::commands) fn is_over(self) -> bool {
        self.ended.is_some()
    }

    /// The last signal that asked the command to end, if any.
    pub(in crate::commands) fn stop_signal(self) -> Option<Signal> {
        self.stop_signal
    }

    /// The code to exit with.
    pub(in crate::commands) fn exit(self) -> Exit {
        match (self.stop_reason, self.ended) {
            (Some(StopReason::Lost), _) => Exit::LOST,
            (Some(StopReason::MaxTime), _) => Exit::TIMED_OUT,
            (Some(StopReason::Signal(signal)), _) => Exit::by_signal(signal),
            (None, Some(ended)) => Exit::from(ended),
            (None, None) => Exit::FAILED,
        }
    }
}

/// What has happened so far.
#[derive(Default)]
struct SupervisorState {
    /// When the command and its descendants are killed, once it has to end.
    kill_at: Option<Instant>,
    stop_reason: Option<StopReason>,
    failing: bool,
    lost: bool,
    /// A process cannot be killed for lack of permission, and this was reported.
    stuck: bool,
    /// The deadline that the watchdog knows.
    deadline: Option<Moment>,
    stop_signal: Option<Signal>,
}

impl Supervisor<'_, '_> {
    /// Returns when the command has ended, by itself or because it was stopped.
    pub(super) async fn run(mut self) -> io::Result<SupervisedOutcome> {
        let mut state = SupervisorState::default();
        let overdue = self
            .max_time
            .and_then(|time| Instant::now().checked_add(time));
        let leases = self.leases.clone();
        let mut lost = pin!(leases.reported_lost());
        // Errors of orders to the watchdog are ignored here and below: they mean that it has died, and then `wait` does its
        // work and returns the result.
        let _ = self.running.set_grace(self.kill_after);
        loop {
            self.check_lease(&mut state);
            if overdue.is_some_and(|at| at <= Instant::now()) && state.stop_reason.is_none() {
                self.stop_at_max_time(&mut state);
            }
            let pause = self.pause(overdue.filter(|_| state.stop_reason.is_none()));
            tokio::select! {
                biased;
                ended = finish(&mut self.running, state.kill_at.filter(|_| !state.stuck)) => {
                    match ended {
                        Ok(ended) => return Ok(self.outcome(ended, &state)),
                        Err(error) if state.stop_reason.is_some() && !state.stuck => {
                            self.printer.error("internal", &error);
                            state.stuck = true;
                        }
                        Err(error) => return Err(error),
                    }
                    if state.stop_reason == Some(StopReason::Lost) {
                        // Waiting for it gains nothing: the lock will pass to another holder anyway.
                        return Ok(SupervisedOutcome {
                            ended: None,
                            stop_reason: state.stop_reason,
                            stop_signal: state.stop_signal,
                            ran: Duration::ZERO,
                        });
                    }
                }
                signal = self.signals.next() => {
                    if ![Signal::USR1, Signal::USR2].contains(&signal) {
                        state.stop_signal = Some(signal);
                    }
                    let _ = self.running.forward(signal);
                }
                () = &mut lost, if !state.lost => self.on_loss(&mut state),
                () = sleep(pause) => {}
            }
        }
    }

    /// Compares the remaining time with the thresholds, and acts on them.
    fn check_lease(&mut self, state: &mut SupervisorState) {
        if state.lost {
            return;
        }
        // Read before the remaining time: if this process is suspended in between, the deadline is early, not late.
        let (now, instant) = (Clock::system().now(), Instant::now());
        let (name, left) = self.leases.first_to_end();
        let stage = self.deadlines.stage(left);
        if stage >= LeaseStage::Failing && !state.failing {
            state.failing = true;
            self.status.record(&StatusEvent::RenewalTrouble {
                remaining_ms: humanize::millis(left),
            });
            self.printer.warn(format_args!(
                "renewals of {name} fail; it expires in {}{}",
                humanize::duration(left),
                self.renewal_error()
            ));
        } else if stage == LeaseStage::Safe && state.failing {
            state.failing = false;
            self.status.record(&StatusEvent::Renewed);
            self.printer.note(format_args!("{name} was renewed"));
        }
        if self.on_lost == OnLost::Warn {
            return;
        }
        let until_kill = self.deadlines.until_kill(left);
        if stage == LeaseStage::Expiring {
            if state.stop_reason != Some(StopReason::Lost) {
                state.stop_reason = Some(StopReason::Lost);
                self.status.record(&StatusEvent::Lost);
                self.printer.error("lost", format_args!(
                    "{name} cannot be renewed; ending the command before another holder gets the {}{}",
                    self.noun, self.renewal_error()
                ));
            }
            end_by(state, instant + until_kill);
        } else {
            self.set_deadline(state, now + until_kill);
        }
    }

    /// Why the last renewal failed, as the end of a message.
    fn renewal_error(&self) -> String {
        let error = self.leases.renewal_error();
        error.map_or_else(String::new, |error| format!(" ({error})"))
    }

    /// Extends the deadline of the watchdog, in case this process is suspended or too slow.
    fn set_deadline(&self, state: &mut SupervisorState, at: Moment) {
        let changed = state
            .deadline
            .is_none_or(|known| at.since(known) > Duration::from_millis(2));
        if changed {
            let _ = self.running.set_deadline(Some(at));
            state.deadline = Some(at);
        }
    }

    /// The lease is lost: it was broken, removed from the store, or this process was suspended.
    fn on_loss(&mut self, state: &mut SupervisorState) {
        state.lost = true;
        let known = state.stop_reason.replace(StopReason::Lost) == Some(StopReason::Lost);
        if !known {
            self.status.record(&StatusEvent::Lost);
            self.printer.error(
                "lost",
                format_args!(
                    "{}: broken or removed from the store, or this process was suspended too long",
                    self.loss()
                ),
            );
        }
        if self.on_lost == OnLost::Kill {
            // Another holder may have the lock already, so there is no time for TERM.
            let _ = self.running.signal_tree(Signal::KILL);
            end_by(state, Instant::now());
        } else {
            self.printer.warn(format_args!(
                "the command continues without the {} (--on-lost warn)",
                self.noun
            ));
        }
    }

    /// "backup was lost", "a, b were lost"
    fn loss(&self) -> String {
        match self.leases.lost_names()[..] {
            // The watchdog acts a moment before the end.
            [] => format!("{} was lost", self.leases.first_to_end().0),
            [name] => format!("{name} was lost"),
            ref names => format!("{} were lost", names.join(", ")),
        }
    }

    fn stop_at_max_time(&mut self, state: &mut SupervisorState) {
        state.stop_reason = Some(StopReason::MaxTime);
        self.printer.error(
            "max-time",
            format_args!(
                "the command did not end within --max-time {}",
                humanize::duration(self.max_time.unwrap_or_default())
            ),
        );
        end_by(state, Instant::now() + self.kill_after);
    }

    fn pause(&self, overdue: Option<Instant>) -> Duration {
        let check = self.deadlines.next_check(self.leases.remaining());
        match overdue {
            Some(at) => check.min(at.saturating_duration_since(Instant::now())),
            None => check,
        }
    }

    fn outcome(&mut self, ended: ChildExit, state: &SupervisorState) -> SupervisedOutcome {
        let mut stop_reason = state.stop_reason;
        // Killed by the watchdog, while this process did not run.
        let by_watchdog = state.deadline.is_some_and(|at| at <= Clock::system().now())
            && ended == ChildExit::Signal(Signal::KILL.as_raw());
        if (by_watchdog || !self.leases.lost_names().is_empty())
            && stop_reason != Some(StopReason::Lost)
        {
            stop_reason = Some(StopReason::Lost);
            self.status.record(&StatusEvent::Lost);
            self.printer.error(
                "lost",
                format_args!("{} before the command ended", self.loss()),
            );
        }
        SupervisedOutcome {
            ended: Some(ended),
            stop_reason,
            stop_signal: state.stop_signal,
            ran: Duration::ZERO,
        }
    }
}

/// Never later than already planned.
fn end_by(state: &mut SupervisorState, at: Instant) {
    state.kill_at = Some(state.kill_at.map_or(at, |planned| planned.min(at)));
}

async fn finish(running: &mut RunningChild, kill_at: Option<Instant>) -> io::Result<ChildExit> {
    match kill_at {
        Some(at) => running.end_by(at).await,
        None => running.wait().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    #[test]
    fn term_comes_kill_after_before_the_end_unless_the_lease_is_short() {
        let usual = Deadlines::new(ms(30_000), ms(5_000));
        assert_eq!(usual.stage(ms(20_000)), LeaseStage::Safe);
        assert_eq!(usual.stage(ms(15_000)), LeaseStage::Failing);
        assert_eq!(usual.stage(ms(5_001)), LeaseStage::Failing);
        assert_eq!(usual.stage(ms(5_000)), LeaseStage::Expiring);
        assert_eq!(usual.until_kill(ms(5_000)), ms(4_750));

        let short = Deadlines::new(ms(3_000), ms(5_000));
        assert_eq!(short.stage(ms(1_001)), LeaseStage::Failing);
        assert_eq!(short.stage(ms(1_000)), LeaseStage::Expiring);
        assert_eq!(short.until_kill(ms(1_000)), ms(850));
        assert_eq!(short.until_kill(ms(100)), ms(0));
    }

    #[test]
    fn freshly_renewed_lease_is_safe_with_any_options() {
        for ttl in [ms(10), ms(100), ms(1_000), ms(30_000), ms(86_400_000)] {
            for kill_after in [ms(0), ms(5_000), ms(3_600_000)] {
                let deadlines = Deadlines::new(ttl, kill_after);
                assert_eq!(deadlines.stage(ttl * 6 / 10), LeaseStage::Safe);
                assert_eq!(deadlines.stage(ms(0)), LeaseStage::Expiring);
                assert!(deadlines.until_kill(ttl / 3) > ms(0));
            }
        }
    }

    #[test]
    fn next_check_is_never_later_than_a_threshold() {
        let deadlines = Deadlines::new(ms(3_000), ms(5_000));
        assert_eq!(deadlines.next_check(ms(2_900)), ms(500));
        assert_eq!(deadlines.next_check(ms(1_600)), ms(100));
        assert_eq!(deadlines.next_check(ms(1_010)), ms(10));
        assert_eq!(deadlines.next_check(ms(1_000)), ms(500));
        assert_eq!(deadlines.next_check(ms(160)), ms(10));
        assert_eq!(deadlines.next_check(ms(0)), ms(500));
    }
}

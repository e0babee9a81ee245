//! Watches a command and its lease, and ends the command before the lease expires.

use std::io;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use windlass::{Clock, Lease, Moment};
use windlass_term::{Exit, Printer, Signal, Signals};

use super::deadlines::{Deadlines, LeaseStage};
use super::status_file::{StatusEvent, StatusFile};
use crate::args::OnLost;
use crate::child::{ChildExit, RunningChild};
use crate::humanize;

/// A running command and its lease.
pub(super) struct Supervisor<'a, 'p> {
    pub(super) name: &'a str,
    /// The noun for messages: lock, permit, …
    pub(super) noun: &'static str,
    pub(super) running: RunningChild,
    pub(super) lease: &'a Lease,
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
        let lost = self.lease.lost_token();
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
                () = lost.cancelled(), if !state.lost => self.on_loss(&mut state),
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
        let left = self.lease.remaining();
        let stage = self.deadlines.stage(left);
        if stage >= LeaseStage::Failing && !state.failing {
            state.failing = true;
            self.status.record(&StatusEvent::RenewalTrouble {
                remaining_ms: humanize::millis(left),
            });
            self.printer.warn(format_args!(
                "renewals of {} fail; it expires in {}",
                self.name,
                humanize::duration(left)
            ));
        } else if stage == LeaseStage::Safe && state.failing {
            state.failing = false;
            self.status.record(&StatusEvent::Renewed);
            self.printer.note(format_args!("{} was renewed", self.name));
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
                    "{} cannot be renewed; ending the command before another holder gets the {}",
                    self.name, self.noun
                ));
            }
            end_by(state, instant + until_kill);
        } else {
            self.set_deadline(state, now + until_kill);
        }
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
            self.printer.error("lost", format_args!(
                "{} was lost: it was broken or removed from the store, or this process was suspended too long",
                self.name
            ));
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
        let check = self.deadlines.next_check(self.lease.remaining());
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
        if (by_watchdog || !self.lease.is_held()) && stop_reason != Some(StopReason::Lost) {
            stop_reason = Some(StopReason::Lost);
            self.status.record(&StatusEvent::Lost);
            self.printer.error(
                "lost",
                format_args!("{} was lost before the command ended", self.name),
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

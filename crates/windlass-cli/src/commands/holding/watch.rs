//! Watching a command and its lease: neither may outlive the other.

use std::io;
use std::time::{Duration, Instant};

use tokio::time::sleep;
use windlass::Lease;

use super::danger::{Danger, Stage};
use super::status::{Event, Status};
use crate::args::OnLost;
use crate::child::{Ended, Running, Signal, Signals};
use crate::exit::Exit;
use crate::printer::Printer;
use crate::words;

/// Everything there is to watch.
pub(super) struct Watch<'a, 'p> {
    pub(super) name: &'a str,
    /// What is held: a lock, a permit, …
    pub(super) noun: &'static str,
    pub(super) running: Running,
    pub(super) lease: &'a Lease,
    pub(super) signals: &'a mut Signals,
    pub(super) status: &'a mut Status<'p>,
    pub(super) printer: &'a Printer,
    pub(super) danger: Danger,
    pub(super) on_lost: OnLost,
    pub(super) max_time: Option<Duration>,
    pub(super) kill_after: Duration,
}

/// How it ended.
#[derive(Clone, Copy, Debug)]
pub(in crate::commands) struct Outcome {
    /// `None` if the command could not be killed, and may still be running.
    pub(super) ended: Option<Ended>,
    /// Why it did not end by itself, if so.
    pub(super) cut_short: Option<CutShort>,
    /// The last signal that asked it to end, if one did, whatever came of it.
    pub(super) asked: Option<Signal>,
}

/// Why a command was ended, or should have been.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CutShort {
    MaxTime,
    Lost,
    /// It had ended already, but more was to come.
    Signal(Signal),
}

impl Outcome {
    /// Whether what was held was not held to the end.
    pub(in crate::commands) fn is_lost(self) -> bool {
        self.cut_short == Some(CutShort::Lost)
    }

    /// Whether the command is known to have ended.
    pub(in crate::commands) fn is_over(self) -> bool {
        self.ended.is_some()
    }

    /// The signal that asked the command to end, if one did.
    pub(in crate::commands) fn asked_to_end(self) -> Option<Signal> {
        self.asked
    }

    /// The code to exit with.
    pub(in crate::commands) fn exit(self) -> Exit {
        match (self.cut_short, self.ended) {
            (Some(CutShort::Lost), _) => Exit::LOST,
            (Some(CutShort::MaxTime), _) => Exit::TIMED_OUT,
            (Some(CutShort::Signal(signal)), _) => Exit::by_signal(signal),
            (None, Some(ended)) => Exit::from(ended),
            (None, None) => Exit::FAILED,
        }
    }
}

/// What has happened so far.
#[derive(Default)]
struct Progress {
    /// When everything that is left of the command is killed, once it has to end.
    kill_at: Option<Instant>,
    cut_short: Option<CutShort>,
    in_trouble: bool,
    lost: bool,
    /// There is a process that we may not kill, and this has been said.
    stuck: bool,
    /// When the warden kills on its own, unless told otherwise.
    deadline: Option<Instant>,
    asked: Option<Signal>,
}

impl Watch<'_, '_> {
    /// Returns when the command has ended, by itself or because it had to.
    pub(super) async fn watch(mut self) -> io::Result<Outcome> {
        let mut so_far = Progress::default();
        let overdue = self
            .max_time
            .and_then(|time| Instant::now().checked_add(time));
        let lost = self.lease.lost_token();
        // Errors of orders to the warden are ignored here and below: they mean that it is gone, and then `wait`
        // does its work and tells.
        let _ = self.running.set_grace(self.kill_after);
        loop {
            self.look_at_lease(&mut so_far);
            if overdue.is_some_and(|at| at <= Instant::now()) && so_far.cut_short.is_none() {
                self.stop_overdue(&mut so_far);
            }
            let pause = self.pause(overdue.filter(|_| so_far.cut_short.is_none()));
            tokio::select! {
                biased;
                ended = finish(&mut self.running, so_far.kill_at.filter(|_| !so_far.stuck)) => {
                    match ended {
                        Ok(ended) => return Ok(self.outcome(ended, &so_far)),
                        Err(error) if so_far.cut_short.is_some() && !so_far.stuck => {
                            self.printer.error(&error);
                            so_far.stuck = true;
                        }
                        Err(error) => return Err(error),
                    }
                    if so_far.cut_short == Some(CutShort::Lost) {
                        // Nothing is gained by waiting for it, and the lock cannot be kept from others.
                        return Ok(Outcome {
                            ended: None,
                            cut_short: so_far.cut_short,
                            asked: so_far.asked,
                        });
                    }
                }
                signal = self.signals.next() => {
                    if ![Signal::USR1, Signal::USR2].contains(&signal) {
                        so_far.asked = Some(signal);
                    }
                    let _ = self.running.forward(signal);
                }
                () = lost.cancelled(), if !so_far.lost => self.lost(&mut so_far),
                () = sleep(pause) => {}
            }
        }
    }

    /// Compares the lease with the marks on its way to the end.
    fn look_at_lease(&mut self, so_far: &mut Progress) {
        if so_far.lost {
            return;
        }
        let left = self.lease.remaining();
        let stage = self.danger.stage(left);
        if stage >= Stage::Trouble && !so_far.in_trouble {
            so_far.in_trouble = true;
            self.status.tell(&Event::RenewalTrouble {
                remaining_ms: words::millis(left),
            });
            self.printer.warn(format_args!(
                "no renewal of {} has been confirmed lately; it is certain for another {} only",
                self.name,
                words::time(left)
            ));
        } else if stage == Stage::Safe && so_far.in_trouble {
            so_far.in_trouble = false;
            self.status.tell(&Event::Renewed);
            self.printer
                .note(format_args!("{} was renewed after all", self.name));
        }
        if self.on_lost == OnLost::Warn {
            return;
        }
        let last_moment = Instant::now() + self.danger.until_kill(left);
        if stage == Stage::End {
            if so_far.cut_short != Some(CutShort::Lost) {
                so_far.cut_short = Some(CutShort::Lost);
                self.status.tell(&Event::Lost);
                self.printer.error(format_args!(
                    "{} cannot be renewed, so the command has to end before somebody else gets the {}",
                    self.name, self.noun
                ));
            }
            end_by(so_far, last_moment);
        } else {
            self.set_deadline(so_far, last_moment);
        }
    }

    /// Keeps the warden informed, should this process be stopped, or be too slow.
    fn set_deadline(&self, so_far: &mut Progress, at: Instant) {
        let news = so_far
            .deadline
            .is_none_or(|known| at.saturating_duration_since(known) > Duration::from_millis(2));
        if news {
            let _ = self.running.set_deadline(Some(at));
            so_far.deadline = Some(at);
        }
    }

    /// The lock is not ours any more: it was broken, or the store has forgotten it, or we were asleep.
    fn lost(&mut self, so_far: &mut Progress) {
        so_far.lost = true;
        let known = so_far.cut_short.replace(CutShort::Lost) == Some(CutShort::Lost);
        if !known {
            self.status.tell(&Event::Lost);
            self.printer.error(format_args!(
                "{} is not ours any more: it was broken by force or forgotten by the store, or this machine was asleep",
                self.name
            ));
        }
        if self.on_lost == OnLost::Kill {
            // Somebody else may have the lock already, so there is no time to ask.
            let _ = self.running.signal_tree(Signal::KILL);
            end_by(so_far, Instant::now());
        } else {
            self.printer.warn(format_args!(
                "the command goes on without the {}, as --on-lost warn says",
                self.noun
            ));
        }
    }

    fn stop_overdue(&mut self, so_far: &mut Progress) {
        so_far.cut_short = Some(CutShort::MaxTime);
        self.printer.error(format_args!(
            "the command has not ended within --max-time {}",
            words::time(self.max_time.unwrap_or_default())
        ));
        end_by(so_far, Instant::now() + self.kill_after);
    }

    fn pause(&self, overdue: Option<Instant>) -> Duration {
        let look = self.danger.next_look(self.lease.remaining());
        match overdue {
            Some(at) => look.min(at.saturating_duration_since(Instant::now())),
            None => look,
        }
    }

    fn outcome(&mut self, ended: Ended, so_far: &Progress) -> Outcome {
        let mut cut_short = so_far.cut_short;
        // Killed by the warden, while this process could not even notice that the lease was running out.
        let by_warden = so_far.deadline.is_some_and(|at| at <= Instant::now())
            && ended == Ended::Signal(Signal::KILL.as_raw());
        if (by_warden || !self.lease.is_held()) && cut_short != Some(CutShort::Lost) {
            cut_short = Some(CutShort::Lost);
            self.status.tell(&Event::Lost);
            self.printer.error(format_args!(
                "{} was lost before the command had ended",
                self.name
            ));
        }
        Outcome {
            ended: Some(ended),
            cut_short,
            asked: so_far.asked,
        }
    }
}

/// Never later than already planned.
fn end_by(so_far: &mut Progress, at: Instant) {
    so_far.kill_at = Some(so_far.kill_at.map_or(at, |planned| planned.min(at)));
}

async fn finish(running: &mut Running, kill_at: Option<Instant>) -> io::Result<Ended> {
    match kill_at {
        Some(at) => running.end_by(at).await,
        None => running.wait().await,
    }
}

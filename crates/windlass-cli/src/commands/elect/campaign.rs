//! Runs a command while leader, and again after each re-election.

use std::time::Duration;

use tokio::time::sleep;
use windlass::{Attempt, Election, Holder, Leadership, Owner, Released, RetryPolicy};
use windlass_term::{
    Exit, Failure, GlobalArgs, Printer, Signals, printable, store, unless_interrupted,
};

use crate::args::{ElectArgs, OnLost};
use crate::commands::acquisition::{self, Acquirable, Acquisition, WaitLimit};
use crate::commands::supervise::{Leases, StatusEvent, StatusFile, SupervisedCommand};
use crate::commands::wait_report::{Blocker, WaitReport};

/// Pause of a former leader before it retries an unreachable store.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// A candidacy in an election.
#[derive(Clone)]
struct Campaign {
    election: Election,
    value: String,
}

impl Acquirable for Campaign {
    type Guard = Leadership;

    fn retry(self, policy: RetryPolicy) -> Campaign {
        Campaign {
            election: self.election.retry(policy),
            ..self
        }
    }

    async fn try_acquire(&self) -> windlass::Result<Attempt<Leadership>> {
        self.election.try_campaign(&self.value).await
    }

    async fn acquire_within(&self, wait: Duration) -> windlass::Result<Attempt<Leadership>> {
        self.election.campaign_within(&self.value, wait).await
    }

    async fn acquire(&self) -> windlass::Result<Leadership> {
        self.election.campaign(&self.value).await
    }

    async fn blocker(&self) -> windlass::Result<Blocker> {
        let leader = self.election.leader().await?;
        Ok(Blocker {
            detail: leader.map(|leader| format!("led by {}", printable(&leader.value))),
            waiters: None,
        })
    }

    async fn release_as(&self, owner: &str) -> windlass::Result<Released> {
        self.election.resign_as(owner).await
    }
}

pub(super) async fn campaign(
    args: &ElectArgs,
    global: &GlobalArgs,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let mut status = StatusFile::open(args.job.status_file.as_deref(), printer)?;
    let opening = store::open_for(global, args.job.ttl, printer);
    let store = match unless_interrupted(&mut signals, opening).await {
        Ok(store) => store?,
        Err(exit) => return Ok(exit),
    };
    let name = args.name();
    let job = SupervisedCommand {
        names: &[name],
        noun: "leadership",
        args: &args.job,
        command: &args.command,
        on_lost: OnLost::Kill,
        max_time: args.max_time,
        at_least: None,
        more_env: store::command_env(global)?,
        store: &store,
        printer,
    };
    let limit = match args.wait {
        Some(wait) => WaitLimit::Within(wait),
        None if args.no_wait => WaitLimit::None,
        None => WaitLimit::Forever,
    };
    // Whether this candidate has led before; from then on, an outage does not end it.
    let mut led = false;
    let mut outage = false;
    loop {
        let owner = match &args.owner {
            Some(owner) => owner.clone(),
            None => Owner::random().as_str().to_owned(),
        };
        let election = store.election(name).ttl(args.job.ttl(&store)).owner(&owner);
        let campaign = Campaign {
            election,
            value: args.value.clone().unwrap_or_else(host_name),
        };
        let on_wait = |leader: Option<&Holder>| {
            let held_by = leader.map(|leader| leader.owner.as_str());
            status.record(&StatusEvent::Waiting { held_by });
        };
        let report = WaitReport::new(format!("to lead {name}"), printer);
        let acquired = acquisition::acquire(
            &store,
            &campaign,
            &owner,
            limit,
            &mut signals,
            &report,
            on_wait,
        );
        let leadership = match acquired.await {
            Ok(Acquisition::Held(leadership)) => leadership,
            Ok(Acquisition::Interrupted(signal)) => return Ok(Exit::by_signal(signal)),
            Ok(Acquisition::Busy(_)) if limit == WaitLimit::Forever => continue,
            Ok(Acquisition::Busy(leader)) => {
                acquisition::report_led(name, leader.as_ref(), printer);
                // A leader that was replaced has lost its lease.
                return Ok(if led { Exit::LOST } else { Exit::NO });
            }
            Err(failure) if led && failure.exit == Exit::UNREACHABLE => {
                if !outage {
                    printer.warn(format_args!("{}; retrying", failure.message));
                }
                outage = true;
                tokio::select! {
                    () = sleep(RETRY_PAUSE) => continue,
                    signal = signals.next() => return Ok(Exit::by_signal(signal)),
                }
            }
            Err(failure) => return Err(failure),
        };
        (led, outage) = (true, false);
        let leases = Leases::one(name, &leadership);
        let outcome = job.run(&leases, &mut signals, &mut status).await;
        let left = leases.time_left();
        let released = job.release(left, leadership.resign(), outcome, &mut status);
        let outcome = released.await?;
        if !outcome.is_lost() || !outcome.is_over() {
            return Ok(outcome.exit());
        }
        if let Some(signal) = outcome.stop_signal() {
            return Ok(Exit::by_signal(signal));
        }
        printer.note(format_args!("campaigning for {name} again"));
    }
}

/// The host name, the default value of a candidate.
fn host_name() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.chars().filter(|c| !c.is_control()).collect()
}

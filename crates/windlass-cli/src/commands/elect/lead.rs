//! Running a command while leading, and again whenever leadership comes back.

use std::time::Duration;

use tokio::time::sleep;
use windlass::{Attempt, Election, Holder, Leadership, Owner, Released, RetryPolicy};

use crate::args::{ElectArgs, Global, OnLost};
use crate::child::Signals;
use crate::commands::acquiring::{self, Ask, Patience, Taken, unless_interrupted};
use crate::commands::holding::{Event, Job, Status};
use crate::commands::warn_of_memory;
use crate::exit::Exit;
use crate::failure::Failure;
use crate::printer::Printer;
use crate::{store, words};

/// How long a candidate that has led before leaves a store alone that cannot be reached.
const PAUSE: Duration = Duration::from_secs(1);

/// An election to be won.
#[derive(Clone)]
struct Campaign {
    election: Election,
    value: String,
}

impl Ask for Campaign {
    type Held = Leadership;

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

    async fn release_as(&self, owner: &str) -> windlass::Result<Released> {
        self.election.resign_as(owner).await
    }
}

pub(super) async fn lead(
    args: &ElectArgs,
    global: &Global,
    printer: &Printer,
) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()
        .map_err(|error| Failure::internal(format!("cannot listen for signals: {error}")))?;
    let mut status = Status::open(args.job.status_file.as_deref(), printer)?;
    let opening = store::open_for(global, args.job.ttl);
    let store = match unless_interrupted(&mut signals, opening).await? {
        Ok(store) => store,
        Err(exit) => return Ok(exit),
    };
    warn_of_memory(&store, printer);
    let name = args.name.as_str();
    let job = Job {
        name,
        noun: "leadership",
        args: &args.job,
        command: &args.command,
        on_lost: OnLost::Kill,
        max_time: None,
        at_least: None,
        more_env: store::for_commands(global)?,
        store: &store,
        printer,
    };
    // Whether we have led before; from then on, an outage is no reason to give up.
    let mut led = false;
    let mut outage = false;
    loop {
        let owner = match &args.owner {
            Some(owner) => owner.clone(),
            None => Owner::random().as_str().to_owned(),
        };
        let election = store.election(name).ttl(args.job.ttl).owner(&owner);
        let campaign = Campaign {
            election,
            value: args.value.clone().unwrap_or_else(host),
        };
        let must_wait = async |leader: Option<Holder>| {
            let held_by = leader.as_ref().map(|leader| leader.owner.as_str());
            status.tell(&Event::Waiting { held_by });
            if printer.is_watched() {
                let leader = leader.as_ref().map_or("somebody else".into(), words::who);
                printer.note(format_args!("waiting to lead {name}, led by {leader}"));
            }
        };
        let taken = acquiring::take(
            &campaign,
            &owner,
            Patience::Forever,
            &mut signals,
            must_wait,
        )
        .await;
        let leadership = match taken {
            Ok(Taken::Held(leadership)) => leadership,
            Ok(Taken::Interrupted(signal)) => return Ok(Exit::by_signal(signal)),
            Ok(Taken::Busy(_)) => continue,
            Err(failure) if led && failure.exit == Exit::UNREACHABLE => {
                if !outage {
                    printer.warn(format_args!("{}; trying on", failure.message));
                }
                outage = true;
                tokio::select! {
                    () = sleep(PAUSE) => continue,
                    signal = signals.next() => return Ok(Exit::by_signal(signal)),
                }
            }
            Err(failure) => return Err(failure),
        };
        (led, outage) = (true, false);
        let outcome = job.run(&leadership, &mut signals, &mut status).await;
        let left = leadership.remaining();
        let given_back = job.give_back(left, leadership.resign(), outcome, &mut status);
        let outcome = given_back.await?;
        if !outcome.is_lost() || !outcome.is_over() {
            return Ok(outcome.exit());
        }
        if let Some(signal) = outcome.asked_to_end() {
            return Ok(Exit::by_signal(signal));
        }
        printer.note(format_args!("campaigning for {name} again"));
    }
}

/// What others can find us by, if nothing better was said.
fn host() -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy();
    name.chars().filter(|c| !c.is_control()).collect()
}

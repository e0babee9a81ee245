//! Decisions on locks, as a node of a quorum takes them.

use std::time::Duration;

use redis::Cmd;

use super::super::batch::Decision;
use super::super::lock::renewal_flags;
use super::super::master_epoch::FenceUse;
use super::super::script::Script;
use super::super::{keys, millis, record, script};
use windlass_core::name::Name;
use windlass_core::store::{AcquireRequest, OnBusy, Renewal, WakeAddress};
use windlass_core::{Fence, Owner};

/// One decision on one lock, for the script.
#[derive(Debug)]
pub(super) struct LockVote {
    name: Name,
    /// Empty for a decision on behalf of nobody.
    owner: Option<Owner>,
    verb: Verb,
}

#[derive(Debug)]
enum Verb {
    /// Ttl in ms, flags, claim record without the number, proposal.
    Acquire(u64, &'static str, String, Fence),
    /// The same.
    Confirm(u64, &'static str, String, Fence),
    /// Ttl in ms, number, claim record without the number, proposal.
    LineUpAgain(u64, Fence, String, Fence),
    /// Ttl in ms, flags, claim record.
    Renew(u64, &'static str, String),
    /// The claim's address, if another of the same owner may be in its place.
    Release(String),
    Break,
}

impl Decision for LockVote {
    fn script() -> &'static Script {
        &script::VOTE_LOCK
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn draws(&self) -> FenceUse {
        // A node that may have forgotten numbers has no vote until it has been told the others'.
        FenceUse::None
    }

    fn command<'a>(
        batch: impl ExactSizeIterator<Item = &'a LockVote> + Clone,
        fences: &str,
    ) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::VOTE_LOCK.digest());
        command.arg(1 + 3 * batch.len()).arg(fences);
        for LockVote { name, owner, .. } in batch.clone() {
            command.arg(name.as_str()).arg(keys::queue(name));
            match owner {
                Some(owner) => command.arg(keys::claim(name, owner)),
                None => command.arg(keys::claim_prefix(name)),
            };
        }
        command.arg("");
        for vote in batch {
            let owner = vote.owner.as_ref().map_or("", Owner::as_str);
            match &vote.verb {
                Verb::Acquire(ttl, flags, record, proposal) => {
                    let front = command.arg("A").arg(owner).arg(*ttl).arg(*flags);
                    front.arg(record).arg(proposal.get())
                }
                Verb::Confirm(ttl, flags, record, proposal) => {
                    let front = command.arg("D").arg(owner).arg(*ttl).arg(*flags);
                    front.arg(record).arg(proposal.get())
                }
                Verb::LineUpAgain(ttl, number, record, proposal) => {
                    let front = command.arg("Y").arg(owner).arg(*ttl).arg(number.get());
                    front.arg(record).arg(proposal.get())
                }
                Verb::Renew(ttl, flags, record) => {
                    let front = command.arg("N").arg(owner).arg(*ttl);
                    front.arg(*flags).arg(record)
                }
                Verb::Release(claim) => command.arg("R").arg(owner).arg(claim),
                Verb::Break => command.arg("B").arg(owner),
            };
        }
        command
    }
}

impl LockVote {
    pub(super) fn acquire(ask: &AcquireRequest, channel: &str, proposal: Fence) -> LockVote {
        let flags = match (ask.on_busy, ask.record_now, ask.heal_missing_ttl) {
            (OnBusy::Return, false, false) => "",
            (OnBusy::Return, true, false) => "r",
            (OnBusy::Return, false, true) => "h",
            (OnBusy::Return, true, true) => "rh",
            (OnBusy::Enqueue, false, false) => "q",
            (OnBusy::Enqueue, true, false) => "qr",
            (OnBusy::Enqueue, false, true) => "qh",
            (OnBusy::Enqueue, true, true) => "qrh",
        };
        let note = ask.note.as_deref();
        let rest = record::without_fence(ask.ttl, Duration::ZERO, channel, ask.wake.claim, note);
        LockVote {
            name: ask.name.clone(),
            owner: Some(ask.owner.clone()),
            verb: Verb::Acquire(millis(ask.ttl), flags, rest, proposal),
        }
    }

    pub(super) fn confirm(claim: &Renewal, channel: &str, proposal: Fence) -> LockVote {
        let verb = Verb::Confirm(
            millis(claim.ttl),
            renewal_flags(claim),
            rest(claim, channel),
            proposal,
        );
        LockVote::of(claim, verb)
    }

    pub(super) fn line_up_again(
        claim: &Renewal,
        channel: &str,
        number: Fence,
        proposal: Fence,
    ) -> LockVote {
        let verb = Verb::LineUpAgain(millis(claim.ttl), number, rest(claim, channel), proposal);
        LockVote::of(claim, verb)
    }

    pub(super) fn renew(claim: &Renewal, channel: &str) -> LockVote {
        let record = format!("{} {}", claim.fence, rest(claim, channel));
        let verb = Verb::Renew(millis(claim.ttl), renewal_flags(claim), record);
        LockVote::of(claim, verb)
    }

    pub(super) fn release(
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
        channel: &str,
    ) -> LockVote {
        let address = claim.map(|c| record::address(channel, c.claim));
        LockVote {
            name,
            owner: Some(owner),
            verb: Verb::Release(address.unwrap_or_default()),
        }
    }

    pub(super) fn break_lock(name: Name) -> LockVote {
        LockVote {
            name,
            owner: None,
            verb: Verb::Break,
        }
    }

    fn of(claim: &Renewal, verb: Verb) -> LockVote {
        LockVote {
            name: claim.name.clone(),
            owner: Some(claim.owner.clone()),
            verb,
        }
    }
}

fn rest(claim: &Renewal, channel: &str) -> String {
    let note = claim.note.as_deref();
    record::without_fence(claim.ttl, claim.age, channel, claim.wake.claim, note)
}

#[cfg(test)]
mod tests {
    use windlass_testkit::RedisServer;

    use super::*;

    /// Whoever asked twice, and gave up, must not be left with what the second request got.
    #[test]
    fn in_one_batch_a_release_does_not_overtake_a_request_of_its_owner() {
        let server = RedisServer::start().unwrap();
        let name = Name::new("test", None, "stock").unwrap();
        let owner = Owner::new("host:1:00000000000000000000000000000007").unwrap();
        let vote = |verb| LockVote {
            name: name.clone(),
            owner: Some(owner.clone()),
            verb,
        };
        let record = || "60000 0 channel 1 ".to_owned();
        let acquire = || vote(Verb::Acquire(60_000, "q", record(), Fence::new(5)));
        let run = |batch: &[LockVote]| {
            let command = LockVote::command(batch.iter(), keys::FENCE);
            let mut words: Vec<String> = command
                .args_iter()
                .map(|word| match word {
                    redis::Arg::Simple(word) => String::from_utf8(word.to_vec()).unwrap(),
                    _ => unreachable!("all words are plain"),
                })
                .collect();
            words[0] = "EVAL".to_owned();
            words[1] = script::VOTE_LOCK.source().to_owned();
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            server.command(&words).unwrap();
        };
        run(&[acquire()]);
        assert_eq!(server.command(&["GET", "stock"]).unwrap(), owner.as_str());
        run(&[acquire(), vote(Verb::Release(String::new()))]);
        assert_eq!(server.command(&["EXISTS", "stock"]).unwrap(), "0");
        assert_eq!(
            server.command(&["EXISTS", &keys::queue(&name)]).unwrap(),
            "0"
        );
    }
}

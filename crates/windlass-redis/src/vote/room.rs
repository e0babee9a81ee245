//! Decisions on all that is not a lock, as a node of a quorum takes them.

use redis::Cmd;

use super::super::batch::Decision;
use super::super::lock::renewal_flags;
use super::super::master_epoch::FenceUse;
use super::super::script::Script;
use super::super::{keys, millis, record, script};
use windlass_core::name::Name;
use windlass_core::store::{
    AcquireRequest, Kind, OnBusy, OnSizeMismatch, Order, Renewal, WakeAddress,
};
use windlass_core::{Fence, Owner};

/// One decision on one room, for the script.
#[derive(Debug)]
pub(super) struct RoomVote {
    kind: Kind,
    name: Name,
    owner: Owner,
    letter: &'static str,
    arguments: Vec<String>,
}

impl Decision for RoomVote {
    fn script() -> &'static Script {
        &script::VOTE_ROOM
    }

    fn name(&self) -> &Name {
        &self.name
    }

    fn draws(&self) -> FenceUse {
        // A node that may have forgotten numbers has no vote until it has been told the others'.
        FenceUse::None
    }

    fn command<'a>(
        batch: impl ExactSizeIterator<Item = &'a RoomVote> + Clone,
        fences: &str,
    ) -> Cmd {
        let mut command = redis::cmd("EVALSHA");
        command.arg(script::VOTE_ROOM.digest());
        command.arg(1 + 3 * batch.len()).arg(fences);
        for vote in batch.clone() {
            for key in keys::pool(vote.kind, &vote.name) {
                command.arg(key);
            }
        }
        command.arg(batch.clone().filter(|vote| vote.letter == "A").count());
        for vote in batch {
            let front = command.arg(vote.letter).arg(vote.kind.word());
            front.arg(vote.owner.as_str()).arg(&vote.arguments);
        }
        command
    }
}

impl RoomVote {
    pub(super) fn acquire(ask: &AcquireRequest, channel: &str) -> RoomVote {
        let share = ask.share;
        let flags: String = [
            ('q', ask.on_busy == OnBusy::Enqueue),
            ('r', ask.record_now),
            ('b', share.order == Order::Barging),
            ('a', share.on_size_mismatch == OnSizeMismatch::Adopt),
        ]
        .into_iter()
        .filter_map(|(letter, set)| set.then_some(letter))
        .collect();
        RoomVote {
            kind: ask.kind,
            name: ask.name.clone(),
            owner: ask.owner.clone(),
            letter: "A",
            arguments: vec![
                share.weight.to_string(),
                share.size.to_string(),
                millis(ask.ttl).to_string(),
                flags,
                address_and_note(channel, ask.wake, ask.note.as_deref()),
            ],
        }
    }

    pub(super) fn confirm(claim: &Renewal, channel: &str, proposal: Fence) -> RoomVote {
        let arguments = vec![
            millis(claim.ttl).to_string(),
            renewal_flags(claim).to_owned(),
            claim.age.as_millis().to_string(),
            rest(claim, channel),
            proposal.to_string(),
        ];
        RoomVote::of(claim, "D", arguments)
    }

    pub(super) fn line_up_again(
        claim: &Renewal,
        channel: &str,
        number: Fence,
        proposal: Fence,
    ) -> RoomVote {
        let arguments = vec![
            millis(claim.ttl).to_string(),
            number.to_string(),
            rest(claim, channel),
            proposal.to_string(),
        ];
        RoomVote::of(claim, "Y", arguments)
    }

    pub(super) fn renew(claim: &Renewal, channel: &str) -> RoomVote {
        let arguments = vec![
            millis(claim.ttl).to_string(),
            renewal_flags(claim).to_owned(),
            claim.fence.to_string(),
            claim.age.as_millis().to_string(),
            rest(claim, channel),
        ];
        RoomVote::of(claim, "N", arguments)
    }

    pub(super) fn release(
        kind: Kind,
        name: Name,
        owner: Owner,
        claim: Option<WakeAddress>,
        channel: &str,
    ) -> RoomVote {
        let address = claim.map(|c| record::address(channel, c.claim));
        RoomVote {
            kind,
            name,
            owner,
            letter: "R",
            arguments: vec![address.unwrap_or_default()],
        }
    }

    fn of(claim: &Renewal, letter: &'static str, arguments: Vec<String>) -> RoomVote {
        RoomVote {
            kind: claim.kind,
            name: claim.name.clone(),
            owner: claim.owner.clone(),
            letter,
            arguments,
        }
    }
}

fn rest(claim: &Renewal, channel: &str) -> String {
    address_and_note(channel, claim.wake, claim.note.as_deref())
}

fn address_and_note(channel: &str, wake: WakeAddress, note: Option<&str>) -> String {
    let address = record::address(channel, wake.claim);
    format!("{address} {}", note.unwrap_or(""))
}

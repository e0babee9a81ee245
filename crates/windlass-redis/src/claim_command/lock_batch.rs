//! Encodes a batch of decisions on locks as a call of their script: see `scripts/lock/prelude.lua`.
//!
//! Most batches consist of acquisitions that differ only in lock, owner and claim, and of releases
//! of claims that have no record. These have short forms, because Redis spends as much time on four
//! arguments as on a command.

use redis::Cmd;

use super::{ClaimCommand, ClaimFields, ReleasedClaim, Verb, fences};
use crate::keys::Keys;
use crate::script::Script;
use windlass_core::Owner;

impl ClaimCommand {
    /// The time to live, if the request is an acquisition that has a short form.
    fn short_acquisition(&self) -> Option<(&ClaimFields, u8)> {
        let Verb::Acquire(claim, _) = &self.verb else {
            return None;
        };
        let letter = match claim.flags.letters() {
            b"q" => b'a',
            b"" => b't',
            _ => return None,
        };
        claim.note.is_none().then_some((claim, letter))
    }

    fn letter(&self, short: Option<&ClaimFields>) -> u8 {
        match &self.verb {
            Verb::Acquire(..) => match (self.short_acquisition(), short) {
                (Some((claim, letter)), Some(short)) if claim.is_like(short) => letter,
                _ => b'A',
            },
            Verb::Release(ReleasedClaim::Unrecorded) => b'r',
            Verb::Release(_) => b'R',
            Verb::Renew(_) => b'N',
            Verb::Confirm(_) => b'C',
            Verb::Requeue(_) => b'Q',
            Verb::Break => b'B',
            Verb::Shrink { .. } | Verb::Resize { .. } => unreachable!("only on pools"),
        }
    }
}

impl ClaimFields {
    /// Whether both can share what a batch has once for all short forms.
    fn is_like(&self, other: &ClaimFields) -> bool {
        self.ttl_ms == other.ttl_ms && self.channel == other.channel
    }
}

pub(super) fn command<'a>(
    script: &Script,
    batch: impl ExactSizeIterator<Item = &'a ClaimCommand> + Clone,
    keys: &Keys,
    fence_counter: &str,
) -> Cmd {
    let count = batch.len();
    // A cluster has a counter for each slot.
    let declares_records = fence_counter != keys.fence();
    let keys_of_each = if declares_records { 3 } else { 2 };
    let mut command = Cmd::with_capacity(12 + 4 * count, 256 + 160 * count);
    command.arg("EVALSHA").arg(script.digest());
    command.arg(1 + keys_of_each * count).arg(fence_counter);
    for claim in batch.clone() {
        command.arg(&*keys.lock(&claim.name));
    }
    let mut key = String::with_capacity(128);
    for claim in batch.clone() {
        key.clear();
        keys.write_queue(&claim.name, &mut key);
        command.arg(&key);
    }
    if declares_records {
        for claim in batch.clone() {
            command.arg(match &claim.owner {
                Some(owner) => keys.claim(&claim.name, owner),
                None => keys.claim_prefix(&claim.name),
            });
        }
    }
    let short = batch.clone().find_map(ClaimCommand::short_acquisition);
    let short = short.map(|(claim, _)| claim);
    let letters: Vec<u8> = batch.clone().map(|claim| claim.letter(short)).collect();
    command.arg(fences(batch.clone())).arg(&letters[..]);
    match short {
        Some(short) => command.arg(short.ttl_ms).arg(&*short.channel),
        None => command.arg("").arg(""),
    };
    let is_short = |letter: &u8| matches!(letter, b'a' | b't');
    key.clear();
    for (claim, _) in batch.clone().zip(&letters).filter(|(_, l)| is_short(l)) {
        if let Verb::Acquire(claim, _) = &claim.verb {
            if !key.is_empty() {
                key.push(' ');
            }
            key.push_str(&claim.wake.claim.to_string());
        }
    }
    command.arg(&key);
    for claim in batch.clone() {
        command.arg(claim.owner.as_ref().map_or("", Owner::as_str));
    }
    for (claim, letter) in batch.zip(&letters) {
        match (&claim.verb, letter) {
            (Verb::Acquire(claim, _), b'a' | b't') => command.arg(claim.proposal()),
            (_, b'r') => &mut command,
            _ => {
                claim.write_details(&mut command);
                &mut command
            }
        };
    }
    command
}

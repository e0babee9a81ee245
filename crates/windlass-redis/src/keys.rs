//! The keys in Redis. Older and newer versions share them, so their names and formats do not change:
//! `line` in a key is the wait queue, `room` the pool, `reign` the master epoch.
//!
//! | key | type | holds |
//! |---|---|---|
//! | `NAME` | string, PX | the owner, as other libraries write their locks |
//! | `windlass:lock:line:{TAG}` | sorted set, PX | waiting owners, by ticket |
//! | `windlass:lock:claim:{TAG} OWNER` | string, PX | one claim: fence, TTL, since when, wake-up address, note |
//! | `windlass:KIND:room:{TAG}` | hash, PX | a pool: size, used capacity, and one field for each claim; KIND is `sem`, `rw`, `elect`, `barrier` or `once` |
//! | `windlass:KIND:held:{TAG}` | sorted set, PX | holders, by the end of their claims |
//! | `windlass:KIND:line:{TAG}` | sorted set, PX | waiting owners, by ticket |
//! | `windlass:latch:{TAG}` | hash, PX | generation, count, remaining count |
//! | `windlass:latch:counted:{TAG}` | set, PX | the operations counted in this generation |
//! | `windlass:gate:{TAG}` | string, PX | the highest fence admitted |
//! | `windlass:limit:{TAG}` | string, PX | the state of a limiter |
//! | `windlass:hold:{TAG} OWNER` | string, PX | the estimate of a hold of a limiter; `s` once it is settled |
//! | `windlass:counter:{TAG}` | string, or hash with PX | a counter; the slots of a windowed one |
//! | `windlass:counter:op:{TAG} ID` | string, PX | the result of an operation with an id |
//! | `windlass:bloom:{TAG}` | string | a Bloom filter's plan |
//! | `windlass:bloom:made:{TAG}` | string | whether all shards were created (`0` or `1`), and the plan |
//! | `windlass:bloom:bits:{TAG} PLAN:GENERATION:SHARD` | string, PX if it rotates | the plan's fingerprint, then bits |
//! | `windlass:bloom:grown:{TAG} PLAN` | string | the newest generation of a growing filter, and its item count |
//! | `windlass:perm:{TAG}` | string | the head of the schema of a permission space |
//! | `windlass:perm:names:{TAG}` | string | the names of its levels and resources |
//! | `windlass:perm:removed:{TAG}` | set | the ids of removed schemas whose subjects are not deleted yet |
//! | `windlass:perm:{TAG}IDSUBJECT` | string | the bits of a subject; ID is the id of the schema, 4 letters |
//! | `windlass:seen:{TAG} ITEM`, `windlass:seen:{TAG}#DIGEST` | string, PX | exists if the item was seen |
//! | `windlass:once:record:{TAG}` | hash, PX | an idempotent execution: fence, payload, result |
//! | `windlass:wait:{TAG}` | string, PX | empty: written after a grant that replicas acknowledge |
//! | `windlass:fence`, in a cluster `windlass:fence:{N}` | string | the counter that all fences (of a slot) are taken from |
//! | `windlass:reign`, in a cluster `windlass:reign:{N}` | string | the master epoch that the counter was last raised for |
//! | `windlass:quorum:joined` | string | on a node of a quorum: the run of the server that may take part |
//!
//! With `?prefix=P` in the URL, every key and every channel begins with `P:`, and the rest is as if
//! `P:` belonged to the name: a lock's key is `P:NAME`, its queue `P:windlass:lock:line:{P:NAME}`.
//! So one ACL pattern, `P:*`, covers a client. No key or channel is named anywhere else.
//!
//! `{TAG}` is the hash tag that puts a key into the slot of the bare name. It is the name itself,
//! unless the name contains braces; then it is the name's own hash tag, or a number of the same
//! slot, and the name follows: `{TAG}:NAME`.

use std::borrow::Cow;
use std::sync::LazyLock;

use super::slots::{self, SLOTS};
use windlass_core::Owner;
use windlass_core::error::{Error, Result};
use windlass_core::name::Name;
use windlass_core::store::{Channel, DataKind, Kind};

/// What every key and channel begins with, after the prefix. Only a lock's key does not.
const OWN: &str = "windlass:";
const QUEUE: &str = "lock:line:";
const CLAIM: &str = "lock:claim:";
const LIMIT: &str = "limit:";

/// The names of all keys and channels of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    /// Empty, or the prefix of the URL and a colon.
    prefix: String,
    fence: String,
    master_epoch: String,
}

impl Default for Keys {
    fn default() -> Keys {
        Keys::below(String::new())
    }
}

impl Keys {
    const MAX_PREFIX: usize = 64;

    fn below(prefix: String) -> Keys {
        Keys {
            fence: format!("{prefix}{OWN}fence"),
            master_epoch: format!("{prefix}{OWN}reign"),
            prefix,
        }
    }

    /// With the value of the parameter `prefix`.
    ///
    /// It has no colon, so that no pattern `P:*` covers another prefix; no braces, which would be a
    /// hash tag; nothing that has a meaning in a pattern. `windlass` in it would make the names of
    /// one client's locks the keys of another client, and the channels in scripts ambiguous.
    pub(super) fn with_prefix(prefix: Option<&str>) -> Result<Keys> {
        let Some(prefix) = prefix else {
            return Ok(Keys::default());
        };
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if prefix.is_empty()
            || prefix.len() > Keys::MAX_PREFIX
            || !prefix.chars().all(plain)
            || prefix.contains("windlass")
        {
            let message = format!("{prefix:?} is not a prefix of keys");
            return Err(Error::invalid("connect", message).with_hint(
                "a prefix has 1 to 64 letters, digits, '-', '_' and '.', and does not contain \
                 \"windlass\": ?prefix=acme",
            ));
        }
        Ok(Keys::below(format!("{prefix}:")))
    }

    /// The counter that fences are taken from; in a cluster see [`Keys::fences`].
    pub(super) fn fence(&self) -> &str {
        &self.fence
    }

    /// The master epoch that the fence counter was last raised for.
    pub(super) fn master_epoch(&self) -> &str {
        &self.master_epoch
    }

    /// The run of the server that knows the counters of the other nodes of its quorum.
    pub(super) fn joined(&self) -> String {
        format!("{}{OWN}quorum:joined", self.prefix)
    }

    /// The `SCAN` pattern that matches all claims.
    pub(super) fn all_claims(&self) -> String {
        pattern(&format!("{}{OWN}", self.prefix))
    }

    /// A lock's own key.
    pub(super) fn lock<'a>(&self, name: &'a Name) -> Cow<'a, str> {
        match self.prefix.is_empty() {
            true => Cow::Borrowed(name.as_str()),
            false => Cow::Owned(format!("{}{name}", self.prefix)),
        }
    }

    pub(super) fn queue(&self, name: &Name) -> String {
        self.tagged(QUEUE, name)
    }

    /// The same, without an allocation.
    pub(super) fn write_queue(&self, name: &Name, into: &mut String) {
        self.write_tagged(QUEUE, name, into);
    }

    /// The key of a claim record is this prefix, then the owner. The script for locks builds it from
    /// the key of the queue.
    pub(super) fn claim_prefix(&self, name: &Name) -> String {
        let mut key = self.tagged(CLAIM, name);
        key.push(' ');
        key
    }

    pub(super) fn claim(&self, name: &Name, owner: &Owner) -> String {
        let mut key = self.claim_prefix(name);
        key.push_str(owner.as_str());
        key
    }

    pub(super) fn gate(&self, name: &Name) -> String {
        self.tagged("gate:", name)
    }

    pub(super) fn limit(&self, name: &Name) -> String {
        self.tagged(LIMIT, name)
    }

    /// A hold of a limiter.
    pub(super) fn hold(&self, name: &Name, owner: &Owner) -> String {
        let mut key = self.tagged_by_length("hold:", name);
        key.push(' ');
        key.push_str(owner.as_str());
        key
    }

    pub(super) fn counter(&self, name: &Name) -> String {
        self.tagged("counter:", name)
    }

    /// The result of an operation on a counter.
    pub(super) fn counter_op(&self, name: &Name, id: &str) -> String {
        let mut key = self.tagged_by_length("counter:op:", name);
        key.push(' ');
        key.push_str(id);
        key
    }

    /// A Bloom filter's plan.
    pub(super) fn bloom(&self, name: &Name) -> String {
        self.tagged("bloom:", name)
    }

    /// The plan that a Bloom filter was created with, and whether all its shards were created.
    pub(super) fn bloom_made(&self, name: &Name) -> String {
        self.tagged("bloom:made:", name)
    }

    /// The key of a shard is this prefix, then the generation, a colon and the shard. It contains
    /// the fingerprint of the plan: a client that still uses another plan writes other keys.
    pub(super) fn bloom_bits(&self, name: &Name, plan: u64) -> String {
        format!("{} {plan:016x}:", self.tagged("bloom:bits:", name))
    }

    /// The progress of a growing filter.
    pub(super) fn bloom_grown(&self, name: &Name, plan: u64) -> String {
        format!("{} {plan:016x}", self.tagged("bloom:grown:", name))
    }

    /// The schema of a permission space: its head, its names, and the ids of removed schemas.
    pub(super) fn permission_schema(&self, space: &Name) -> [String; 3] {
        ["perm:", "perm:names:", "perm:removed:"].map(|part| self.tagged(part, space))
    }

    /// The key of a subject's bits is this prefix, then the subject. Short, because there are
    /// millions. The id consists of letters, so it is not mistaken for the length of a name.
    pub(super) fn permissions(&self, space: &Name, id: &str) -> String {
        self.tagged_by_length("perm:", space) + id
    }

    /// The key of an item that was seen is this prefix, then the item.
    pub(super) fn seen(&self, name: &Name) -> String {
        self.tagged_by_length("seen:", name)
    }

    /// Written after a grant that replicas acknowledge.
    pub(super) fn wait(&self, name: &Name) -> String {
        self.tagged("wait:", name)
    }

    /// The record of an idempotent execution.
    pub(super) fn once(&self, key: &Name) -> String {
        self.tagged("once:record:", key)
    }

    /// The channel that grants to a client are published on.
    pub(super) fn wake_channel(&self, client: u64) -> String {
        format!("{}{OWN}wake:{client:016x}", self.prefix)
    }

    /// The keys of a pool (any claim that is not a lock): its state, its holders, its wait queue.
    pub(super) fn pool(&self, kind: Kind, name: &Name) -> [String; 3] {
        ["room", "held", "line"].map(|part| self.tagged(&format!("{kind}:{part}:"), name))
    }

    /// The keys of a latch: its state, and the operations counted.
    pub(super) fn latch(&self, name: &Name) -> [String; 2] {
        ["latch:", "latch:counted:"].map(|part| self.tagged(part, name))
    }

    /// The `SCAN` pattern that matches all limiters.
    pub(super) fn all_limits(&self) -> String {
        pattern(&format!("{}{OWN}{LIMIT}", self.prefix))
    }

    /// The name of the limiter that the key belongs to.
    pub(super) fn limiter_of_key<'a>(&self, key: &'a str) -> Option<&'a str> {
        self.untagged(self.own_part(key)?.strip_prefix(LIMIT)?)
    }

    /// The `SCAN` pattern that matches all data of this kind, and possibly more.
    pub(super) fn all_data(&self, kind: DataKind) -> String {
        pattern(&format!("{}{OWN}{}{{", self.prefix, data_part(kind)))
    }

    /// The name that the key belongs to, if it is the main key of data of this kind.
    pub(super) fn data_of_key<'a>(&self, kind: DataKind, key: &'a str) -> Option<&'a str> {
        let part = data_part(kind);
        let name = self.untagged(self.own_part(key)?.strip_prefix(part)?)?;
        // The keys of a space's subjects begin like the space's own.
        let valid = Name::new("list", None, name).ok()?;
        (self.tagged(part, &valid) == key).then_some(name)
    }

    /// The pub/sub channel of notifications. Scripts build it from the key, in `notify.lua`.
    pub(super) fn notifications(&self, channel: &Channel) -> String {
        let name = &channel.name;
        let claimed = Kind::ALL.into_iter().find(|k| k.word() == channel.kind);
        let part = match claimed {
            Some(kind) => format!("news:{OWN}{kind}:room:"),
            None => format!("news:{OWN}{}:", channel.kind),
        };
        self.tagged(&part, name)
    }

    /// The claim that a key belongs to, if it is a lock's claim record or the state of a pool.
    pub(super) fn claim_of_key<'a>(&self, key: &'a str) -> Option<(Kind, &'a str)> {
        let own = self.own_part(key)?;
        if let Some(rest) = own.strip_prefix(CLAIM) {
            // An owner has no spaces; a name may.
            let (rest, _owner) = rest.rsplit_once(' ')?;
            return Some((Kind::Lock, self.untagged(rest)?));
        }
        let (word, rest) = own.split_once(':')?;
        let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
        Some((kind, self.untagged(rest.strip_prefix("room:")?)?))
    }

    /// The keys of one slot of a cluster: its fence counter, and the master epoch it was last
    /// raised for.
    pub(super) fn fences(&self, slot: u16) -> [String; 2] {
        let number = NUMBERS[usize::from(slot)];
        [&self.fence, &self.master_epoch].map(|key| format!("{key}:{{{number}}}"))
    }

    /// The slot of all keys of that name.
    pub(super) fn slot(&self, name: &Name) -> u16 {
        slots::of_key(self.lock(name).as_bytes())
    }

    /// The part of a key after the prefix and `windlass:`.
    fn own_part<'a>(&self, key: &'a str) -> Option<&'a str> {
        key.strip_prefix(&self.prefix)?.strip_prefix(OWN)
    }

    /// The name in `{TAG}` or `{TAG}:NAME`.
    fn untagged<'a>(&self, text: &'a str) -> Option<&'a str> {
        let (tag, after) = text.strip_prefix('{')?.split_once('}')?;
        let name = after.strip_prefix(':').unwrap_or(tag);
        name.strip_prefix(&self.prefix)
    }

    fn tagged(&self, part: &str, name: &Name) -> String {
        let mut key = String::new();
        self.write_tagged(part, name, &mut key);
        key
    }

    fn write_tagged(&self, part: &str, name: &Name, into: &mut String) {
        let name = self.lock(name);
        into.reserve(self.prefix.len() + OWN.len() + part.len() + 2 * name.len() + 8);
        for text in [&*self.prefix, OWN, part, "{"] {
            into.push_str(text);
        }
        match tag(&name) {
            HashTag::Whole => {
                into.push_str(&name);
                into.push('}');
            }
            HashTag::Part(tag) => {
                into.push_str(tag);
                into.push_str("}:");
                into.push_str(&name);
            }
            HashTag::SameSlot(number) => {
                into.push_str(&number.to_string());
                into.push_str("}:");
                into.push_str(&name);
            }
        }
    }

    /// As `tagged`, for keys that continue with arbitrary text: a name that follows its tag comes
    /// with its length, which marks where it ends.
    fn tagged_by_length(&self, part: &str, name: &Name) -> String {
        let (prefix, name) = (&self.prefix, self.lock(name));
        let length = name.len();
        match tag(&name) {
            HashTag::Whole => format!("{prefix}{OWN}{part}{{{name}}}"),
            HashTag::Part(tag) => format!("{prefix}{OWN}{part}{{{tag}}}{length}:{name}"),
            HashTag::SameSlot(number) => {
                format!("{prefix}{OWN}{part}{{{number}}}{length}:{name}")
            }
        }
    }
}

/// What the main key of data of this kind has before its tag.
fn data_part(kind: DataKind) -> &'static str {
    match kind {
        DataKind::Latch => "latch:",
        DataKind::Gate => "gate:",
        DataKind::Counter => "counter:",
        DataKind::Bloom => "bloom:",
        DataKind::Permissions => "perm:",
        DataKind::Once => "once:record:",
        // Found nowhere.
        _ => "unknown:",
    }
}

/// The `SCAN` pattern that matches all keys with this prefix.
pub(super) fn pattern(prefix: &str) -> String {
    let mut pattern = String::with_capacity(prefix.len() + 8);
    for letter in prefix.chars() {
        if matches!(letter, '*' | '?' | '[' | ']' | '\\' | '^') {
            pattern.push('\\');
        }
        pattern.push(letter);
    }
    pattern + "*"
}

static NUMBERS: LazyLock<Vec<u32>> = LazyLock::new(number_for_each_slot);

enum HashTag<'a> {
    Whole,
    Part(&'a str),
    SameSlot(u32),
}

/// The hash tag with the slot of the bare `name`.
fn tag(name: &str) -> HashTag<'_> {
    if !name.contains('}') {
        // Without a closing brace Redis hashes the whole name, which can be a tag.
        return HashTag::Whole;
    }
    if let Some((_, after)) = name.split_once('{')
        && let Some((tag, _)) = after.split_once('}')
        && !tag.is_empty()
    {
        return HashTag::Part(tag);
    }
    HashTag::SameSlot(NUMBERS[usize::from(slots::of_text(name.as_bytes()))])
}

/// For each slot, a number whose digits hash to it.
fn number_for_each_slot() -> Vec<u32> {
    let mut numbers = vec![None; usize::from(SLOTS)];
    let mut missing = numbers.len();
    for n in 0u32.. {
        let entry = &mut numbers[usize::from(slots::of_text(n.to_string().as_bytes()))];
        if entry.is_none() {
            *entry = Some(n);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    numbers.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests;

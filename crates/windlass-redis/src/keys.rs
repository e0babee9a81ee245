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
//! `{TAG}` is the hash tag that puts a key into the slot of the bare name. It is the name itself,
//! unless the name contains braces; then it is the name's own hash tag, or a number of the same
//! slot, and the name follows: `{TAG}:NAME`.

use std::sync::LazyLock;

use super::slots::{self, SLOTS};
use windlass_core::Owner;
use windlass_core::name::Name;
use windlass_core::store::{Channel, Kind};

pub(super) const FENCE: &str = "windlass:fence";
/// The run of the server that knows the counters of the other nodes of its quorum.
pub(super) const JOINED: &str = "windlass:quorum:joined";
/// The master epoch that the fence counter was last raised for.
pub(super) const MASTER_EPOCH: &str = "windlass:reign";
const QUEUE: &str = "windlass:lock:line:";
const CLAIM: &str = "windlass:lock:claim:";
const GATE: &str = "windlass:gate:";
const LATCH: &str = "windlass:latch:";
const LIMIT: &str = "windlass:limit:";
const COUNTER: &str = "windlass:counter:";
const COUNTER_OP: &str = "windlass:counter:op:";
const COUNTED: &str = "windlass:latch:counted:";

/// The `SCAN` pattern that matches all claims.
pub(super) const ALL: &str = "windlass:*";

pub(super) fn queue(name: &Name) -> String {
    tagged(QUEUE, name)
}

/// The key of a claim record is this prefix, then the owner.
pub(super) fn claim_prefix(name: &Name) -> String {
    let mut key = tagged(CLAIM, name);
    key.push(' ');
    key
}

pub(super) fn claim(name: &Name, owner: &Owner) -> String {
    let mut key = claim_prefix(name);
    key.push_str(owner.as_str());
    key
}

pub(super) fn gate(name: &Name) -> String {
    tagged(GATE, name)
}

pub(super) fn limit(name: &Name) -> String {
    tagged(LIMIT, name)
}

pub(super) fn counter(name: &Name) -> String {
    tagged(COUNTER, name)
}

/// The result of an operation on a counter.
pub(super) fn counter_op(name: &Name, id: &str) -> String {
    let mut key = tagged_by_length(COUNTER_OP, name);
    key.push(' ');
    key.push_str(id);
    key
}

/// A Bloom filter's plan.
pub(super) fn bloom(name: &Name) -> String {
    tagged("windlass:bloom:", name)
}

/// The plan that a Bloom filter was created with, and whether all its shards were created.
pub(super) fn bloom_made(name: &Name) -> String {
    tagged("windlass:bloom:made:", name)
}

/// The key of a shard is this prefix, then the generation, a colon and the shard. It contains the
/// fingerprint of the plan: a client that still uses another plan writes other keys.
pub(super) fn bloom_bits(name: &Name, plan: u64) -> String {
    format!("{} {plan:016x}:", tagged("windlass:bloom:bits:", name))
}

/// The progress of a growing filter.
pub(super) fn bloom_grown(name: &Name, plan: u64) -> String {
    format!("{} {plan:016x}", tagged("windlass:bloom:grown:", name))
}

/// The schema of a permission space: its head, its names, and the ids of removed schemas.
pub(super) fn permission_schema(space: &Name) -> [String; 3] {
    ["", "names:", "removed:"].map(|part| tagged(&format!("windlass:perm:{part}"), space))
}

/// The key of a subject's bits is this prefix, then the subject. Short, because there are millions.
/// The id consists of letters, so it is not mistaken for the length of a name.
pub(super) fn permissions(space: &Name, id: &str) -> String {
    tagged_by_length("windlass:perm:", space) + id
}

/// The key of an item that was seen is this prefix, then the item.
pub(super) fn seen(name: &Name) -> String {
    tagged_by_length("windlass:seen:", name)
}

/// Written after a grant that replicas acknowledge.
pub(super) fn wait(name: &Name) -> String {
    tagged("windlass:wait:", name)
}

/// The record of an idempotent execution.
pub(super) fn once(key: &Name) -> String {
    tagged("windlass:once:record:", key)
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

/// The channel that grants to a client are published on.
pub(super) fn wake_channel(client: u64) -> String {
    format!("windlass:wake:{client:016x}")
}

/// The keys of a pool (any claim that is not a lock): its state, its holders, its wait queue.
pub(super) fn pool(kind: Kind, name: &Name) -> [String; 3] {
    ["room", "held", "line"].map(|part| tagged(&format!("windlass:{kind}:{part}:"), name))
}

/// The keys of a latch: its state, and the operations counted.
pub(super) fn latch(name: &Name) -> [String; 2] {
    [LATCH, COUNTED].map(|prefix| tagged(prefix, name))
}

/// The `SCAN` pattern that matches all limiters.
pub(super) fn all_limits() -> String {
    pattern(LIMIT)
}

/// The name of the limiter that the key belongs to.
pub(super) fn limiter_of_key(key: &str) -> Option<&str> {
    untagged(key.strip_prefix(LIMIT)?)
}

/// The pub/sub channel of notifications.
pub(super) fn notifications(channel: &Channel) -> String {
    let name = &channel.name;
    let claimed = Kind::ALL.into_iter().find(|k| k.word() == channel.kind);
    let key = match claimed {
        Some(kind) => tagged(&format!("windlass:{kind}:room:"), name),
        None => tagged(&format!("windlass:{}:", channel.kind), name),
    };
    format!("windlass:news:{key}")
}

/// The claim that a key belongs to, if it is a lock's claim record or the state of a pool.
pub(super) fn claim_of_key(key: &str) -> Option<(Kind, &str)> {
    if let Some(rest) = key.strip_prefix(CLAIM) {
        // An owner has no spaces; a name may.
        let (rest, _owner) = rest.rsplit_once(' ')?;
        return Some((Kind::Lock, untagged(rest)?));
    }
    let (word, rest) = key.strip_prefix("windlass:")?.split_once(':')?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.word() == word)?;
    Some((kind, untagged(rest.strip_prefix("room:")?)?))
}

/// The name in `{TAG}` or `{TAG}:NAME`.
fn untagged(text: &str) -> Option<&str> {
    let (tag, after) = text.strip_prefix('{')?.split_once('}')?;
    Some(after.strip_prefix(':').unwrap_or(tag))
}

fn tagged(prefix: &str, name: &Name) -> String {
    let name = name.as_str();
    match tag(name) {
        HashTag::Whole => format!("{prefix}{{{name}}}"),
        HashTag::Part(tag) => format!("{prefix}{{{tag}}}:{name}"),
        HashTag::SameSlot(number) => format!("{prefix}{{{number}}}:{name}"),
    }
}

/// As `tagged`, for keys that continue with arbitrary text: a name that follows its tag comes with
/// its length, which marks where it ends.
fn tagged_by_length(prefix: &str, name: &Name) -> String {
    let name = name.as_str();
    let length = name.len();
    match tag(name) {
        HashTag::Whole => format!("{prefix}{{{name}}}"),
        HashTag::Part(tag) => format!("{prefix}{{{tag}}}{length}:{name}"),
        HashTag::SameSlot(number) => format!("{prefix}{{{number}}}{length}:{name}"),
    }
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

/// The keys of one slot of a cluster: its fence counter, and the master epoch it was last raised
/// for.
pub(super) fn fences(slot: u16) -> [String; 2] {
    let number = NUMBERS[usize::from(slot)];
    [FENCE, MASTER_EPOCH].map(|key| format!("{key}:{{{number}}}"))
}

/// The slot of all keys of that name.
pub(super) fn slot(name: &Name) -> u16 {
    slots::of_key(name.as_str().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new("test", None, text).unwrap()
    }

    fn slot(key: &str) -> u16 {
        slots::of_key(key.as_bytes())
    }

    const NAMES: [&str; 11] = [
        "invoice/42",
        "a b c",
        "{user}:1",
        "x{user}y}z",
        "{}abc",
        "a}b",
        "}{",
        "{",
        "{{x}}",
        "foo{bar",
        "foo{}{bar}",
    ];

    #[test]
    fn every_key_has_the_slot_of_the_bare_name() {
        for text in NAMES {
            let n = name(text);
            let owner = Owner::random();
            let pools = Kind::ALL.into_iter().flat_map(|kind| pool(kind, &n));
            let keys = [
                queue(&n),
                claim(&n, &owner),
                gate(&n),
                limit(&n),
                counter(&n),
                counter_op(&n, "{x}"),
            ];
            let data = [
                bloom(&n),
                bloom_bits(&n, 7),
                bloom_made(&n),
                bloom_grown(&n, 7),
                permissions(&n, "aBcD"),
                seen(&n) + " item",
                once(&n),
                wait(&n),
            ];
            let keys = keys.into_iter().chain(latch(&n)).chain(pools);
            let keys = keys.chain(permission_schema(&n));
            for key in keys.chain(data) {
                assert_eq!(slot(&key), slot(text), "{key} for {text}");
            }
        }
    }

    #[test]
    fn names_are_parsed_from_keys_and_keys_differ() {
        let owner = Owner::new("host:1:{x}:}").unwrap();
        let mut seen = std::collections::HashSet::new();
        for text in NAMES {
            let key = claim(&name(text), &owner);
            assert_eq!(claim_of_key(&key), Some((Kind::Lock, text)));
            for kind in &Kind::ALL[1..] {
                let [state, holders, queue_key] = pool(*kind, &name(text));
                assert_eq!(claim_of_key(&state), Some((*kind, text)));
                assert_eq!(
                    (claim_of_key(&holders), claim_of_key(&queue_key)),
                    (None, None)
                );
            }
            assert_eq!(limiter_of_key(&limit(&name(text))), Some(text));
            assert!(seen.insert(queue(&name(text))));
        }
    }

    #[test]
    fn each_slot_has_its_own_fence_counter() {
        for number in [0, 1, 4711, SLOTS - 1] {
            for key in fences(number) {
                assert_eq!(slot(&key), number, "{key}");
            }
        }
        assert_eq!(super::slot(&name("x{user}y")), slot("user"));
    }
}

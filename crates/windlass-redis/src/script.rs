//! The scripts, and how they are called.

use std::sync::LazyLock;

/// A Lua script and the digest that Redis knows it by.
pub(super) struct Script(redis::Script, &'static str);

impl Script {
    fn new(source: &'static str) -> Script {
        Script(redis::Script::new(source), source)
    }

    pub(super) fn digest(&self) -> &str {
        self.0.get_hash()
    }

    /// Whether it asks for keys that could not be declared: those of whom it finds in line. Where a slot is on its way
    /// to, they may be missing although they exist; so it is not run there before all have come.
    pub(super) fn reaches_further(&self) -> bool {
        [&LOCK, &LOCK_ALL, &LOCK_INSPECT]
            .into_iter()
            .any(|script| std::ptr::eq(&**script, self))
    }

    pub(super) fn source(&self) -> &'static str {
        self.1
    }
}

/// The script of that digest.
pub(super) fn by_digest(digest: &[u8]) -> Option<&'static Script> {
    let all: [&'static LazyLock<Script>; 21] = [
        &LOCK,
        &LIMIT,
        &COUNTER_ADD,
        &COUNTER_RESET,
        &LOCK_INSPECT,
        &LOCK_ALL,
        &ROOM,
        &ROOM_INSPECT,
        &LATCH,
        &MASTER_EPOCH,
        &REPLICA_ACK,
        &GATE_ADMIT,
        &BLOOM_CREATE,
        &BLOOM_MEND,
        &BLOOM_MERGE,
        &BLOOM_GENERATIONS,
        &BLOOM_UNION,
        &BLOOM_REMOVE,
        &PERM_DEFINE,
        &PERM_WRITE,
        &ONCE,
    ];
    let mut all = all.into_iter().map(|script| &**script);
    all.find(|script| script.digest().as_bytes() == digest)
}

/// Acquire, renew, release and break, in batches.
pub(super) static LOCK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/lock/prelude.lua"),
        include_str!("scripts/lock/lone.lua"),
        include_str!("scripts/lock/hand_over.lua"),
        include_str!("scripts/lock/common.lua"),
        include_str!("scripts/fences.lua"),
        include_str!("scripts/lock/shared.lua"),
        include_str!("scripts/lock/acquire.lua"),
        include_str!("scripts/lock/renew.lua"),
        include_str!("scripts/lock/release.lua"),
        include_str!("scripts/lock/break.lua"),
        include_str!("scripts/lock/dispatch.lua"),
    ))
});

/// All decisions on limiters, in batches.
pub(super) static LIMIT: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/limit/common.lua"),
        include_str!("scripts/limit/states.lua"),
        include_str!("scripts/limit/rest.lua"),
    ))
});

pub(super) static COUNTER_ADD: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/counter_add.lua")));

pub(super) static COUNTER_RESET: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/counter_reset.lua")));

pub(super) static LOCK_INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/lock_inspect.lua")));

pub(super) static LOCK_ALL: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/lock/prelude.lua"),
        include_str!("scripts/lock/hand_over.lua"),
        include_str!("scripts/lock_all.lua"),
    ))
});

/// Acquire, renew, release, shrink and resize, in batches, for all that is not a lock.
pub(super) static ROOM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/room/common.lua"),
        include_str!("scripts/fences.lua"),
        include_str!("scripts/room/sitting.lua"),
        include_str!("scripts/room/decisions.lua"),
        include_str!("scripts/room/dispatch.lua"),
    ))
});

pub(super) static ROOM_INSPECT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/room_inspect.lua")));

pub(super) static LATCH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/latch.lua")));

pub(super) static MASTER_EPOCH: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/master_epoch.lua")));

pub(super) static REPLICA_ACK: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/replica_ack.lua")));

pub(super) static GATE_ADMIT: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/gate_admit.lua")));

pub(super) static BLOOM_CREATE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/bloom_create.lua")));

pub(super) static BLOOM_MEND: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/bloom_mend.lua")));

pub(super) static BLOOM_MERGE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/bloom_merge.lua")));

pub(super) static BLOOM_GENERATIONS: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/bloom_generations.lua")));

pub(super) static BLOOM_UNION: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/bloom_union.lua")));

pub(super) static BLOOM_REMOVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/bloom_remove.lua")));

pub(super) static PERM_DEFINE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/perm_define.lua")));

pub(super) static PERM_REMOVE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/perm_remove.lua")));

pub(super) static PERM_READ: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/perm_read.lua")));

pub(super) static PERM_WRITE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/perm_write.lua")));

pub(super) static ONCE: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/once.lua")));

/// The decisions on locks, for a node of a quorum: they propose numbers, and there are two more.
pub(super) static VOTE_LOCK: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/lock/prelude.lua"),
        include_str!("scripts/lock/hand_over.lua"),
        include_str!("scripts/vote/lock_common.lua"),
        include_str!("scripts/vote/fences.lua"),
        include_str!("scripts/lock/shared.lua"),
        include_str!("scripts/lock/acquire.lua"),
        include_str!("scripts/lock/renew.lua"),
        include_str!("scripts/lock/release.lua"),
        include_str!("scripts/lock/break.lua"),
        include_str!("scripts/vote/lock_more.lua"),
        include_str!("scripts/vote/lock_dispatch.lua"),
    ))
});

/// The same for all that is not a lock.
pub(super) static VOTE_ROOM: LazyLock<Script> = LazyLock::new(|| {
    Script::new(concat!(
        include_str!("scripts/room/common.lua"),
        include_str!("scripts/vote/fences.lua"),
        include_str!("scripts/room/sitting.lua"),
        include_str!("scripts/room/decisions.lua"),
        include_str!("scripts/vote/room_more.lua"),
        include_str!("scripts/vote/room_dispatch.lua"),
    ))
});

/// Tells a node of a quorum the counters of the others.
pub(super) static VOTE_JOIN: LazyLock<Script> =
    LazyLock::new(|| Script::new(include_str!("scripts/vote/join.lua")));

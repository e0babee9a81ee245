//! The tables, their versions, and the encoding of times in columns.

use std::time::Duration;

use windlass_core::Moment;

/// Marks the file as a Windlass database in SQLite's header: "WNDL".
pub(super) const APPLICATION_ID: i32 = 0x574e_444c;
/// The format that this program writes; raised with every change of the tables.
pub(super) const VERSION: i32 = 4;
/// In place of the version: the file is damaged, and no program may use it.
pub(super) const DAMAGED: i32 = -1;

/// The changes from each version to the next. A new file gets all of them, an older one those it
/// lacks.
///
/// - `claims`: one row for each holder and waiter of a lock; `place` is the ticket or fence. Times
///   are in nanoseconds of the boot clock.
/// - `shares`: the same for every other kind of claim, by `KIND:NAME`.
/// - `rooms`: the pools of these: size, and the weight in use.
/// - `gates`: the highest fence admitted, and its retention.
/// - `latches`, `latch_operations`: a latch's current generation, and the operations counted in it.
/// - `watchers`: which clients subscribe to which channels.
/// - `fences`: one row: the last fence taken, the ceiling that is synced to disk, and the boot in
///   which claims are valid.
///
/// The tables of the other primitives are documented in their modules. Names of tables and columns
/// are part of the stored format and do not change.
pub(super) const MIGRATIONS: [&[&str]; VERSION as usize] = [
    &[LOCKS],
    &[
        POOLS,
        super::limit::TABLE,
        super::counter::TABLE,
        super::window_clock::TABLES,
        super::bloom::TABLES,
        super::permissions::TABLES,
        super::seen::TABLES,
        super::once::TABLES,
        super::topic::TABLES,
    ],
    &[
        super::counter::ADD_NUMBERS,
        super::limit::RESET_STATES,
        super::permissions::RENAME_FORMAT,
    ],
    &[super::limit::HOLDS],
];

const LOCKS: &str = "
    CREATE TABLE claims (
        name        TEXT NOT NULL,
        place       INTEGER NOT NULL,
        held        INTEGER NOT NULL,
        owner       TEXT NOT NULL,
        ttl         INTEGER NOT NULL,
        expires     INTEGER NOT NULL,
        since       INTEGER NOT NULL,
        note        TEXT,
        wake_client INTEGER NOT NULL,
        wake_claim  INTEGER NOT NULL,
        PRIMARY KEY (name, place)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX claims_by_owner ON claims (name, owner);
    CREATE TABLE gates (
        name     TEXT PRIMARY KEY,
        highest  INTEGER NOT NULL,
        remember INTEGER NOT NULL,
        until    INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE fences (
        last    INTEGER NOT NULL,
        ceiling INTEGER NOT NULL,
        boot    TEXT NOT NULL
    );
    INSERT INTO fences
    SELECT start, start, '' FROM (SELECT CAST(unixepoch('subsec') * 1000000 AS INTEGER) AS start);
";

const POOLS: &str = "
    CREATE TABLE shares (
        name        TEXT NOT NULL,
        place       INTEGER NOT NULL,
        held        INTEGER NOT NULL,
        owner       TEXT NOT NULL,
        weight      INTEGER NOT NULL,
        ttl         INTEGER NOT NULL,
        expires     INTEGER NOT NULL,
        since       INTEGER NOT NULL,
        note        TEXT,
        wake_client INTEGER NOT NULL,
        wake_claim  INTEGER NOT NULL,
        PRIMARY KEY (name, place)
    ) WITHOUT ROWID;
    CREATE UNIQUE INDEX shares_by_owner ON shares (name, owner);
    CREATE INDEX shares_by_end ON shares (name, expires) WHERE held;
    CREATE INDEX shares_waiting ON shares (name, place) WHERE NOT held;
    CREATE TABLE rooms (
        name     TEXT PRIMARY KEY,
        size     INTEGER NOT NULL,
        used     INTEGER NOT NULL,
        overtook INTEGER NOT NULL,
        open     INTEGER,
        until    INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE latches (
        name       TEXT PRIMARY KEY,
        generation TEXT NOT NULL,
        count      INTEGER NOT NULL,
        remaining  INTEGER NOT NULL,
        past       TEXT NOT NULL,
        keep       INTEGER NOT NULL,
        until      INTEGER NOT NULL
    ) WITHOUT ROWID;
    CREATE TABLE latch_operations (
        name      TEXT NOT NULL,
        operation BLOB NOT NULL,
        PRIMARY KEY (name, operation)
    ) WITHOUT ROWID;
    CREATE TABLE watchers (
        channel TEXT NOT NULL,
        client  INTEGER NOT NULL,
        PRIMARY KEY (channel, client)
    ) WITHOUT ROWID;
";

pub(super) fn nanos(d: Duration) -> i64 {
    i64::try_from(d.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn moment(moment: Moment) -> i64 {
    moment.as_nanos().min(i64::MAX as u64) as i64
}

//! What the file holds, and how it is told from anybody else's.

/// Marks the file as ours in SQLite's header: "WNDL".
pub(super) const APPLICATION_ID: i32 = 0x574e_444c;
/// Raised with every change of the tables.
pub(super) const VERSION: i32 = 3;

/// What each version added to the one before. A new file gets all of it, an old one what it lacks.
///
/// `claims`: one row for each holder of a lock and each waiter, times in nanoseconds of the boot clock.
/// `shares`: the same for all that is not a lock, by `KIND:NAME`.
/// `rooms`: for these, how much room there is and how much of it is taken.
/// `gates`: the highest fence admitted, and for how long it is remembered.
/// `latches`, `latch_operations`: a latch's present generation, and what has been counted in it.
/// `watchers`: which clients want to hear of what.
/// `fences`: one row: the last fence drawn, the ceiling that is safely on disk, and the boot in
/// which claims are valid.
///
/// What is kept for data is described where it is used.
pub(super) const STEPS: [&[&str]; VERSION as usize] = [
    &[FIRST],
    &[
        ROOMS,
        super::limit::TABLE,
        super::counter::TABLE,
        super::age::TABLES,
        super::bloom::TABLES,
        super::permissions::TABLES,
        super::seen::TABLES,
        super::once::TABLES,
        super::topic::TABLES,
    ],
    &[
        super::counter::NUMBERED,
        super::limit::BEGIN_ANEW,
        super::permissions::RENAMED,
    ],
];

const FIRST: &str = "
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

const ROOMS: &str = "
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

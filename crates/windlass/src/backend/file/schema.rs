//! What the file holds, and how it is told from anybody else's.

/// Marks the file as ours in SQLite's header: "WNDL".
pub(super) const APPLICATION_ID: i32 = 0x574e_444c;
/// Raised with every change of the tables.
pub(super) const VERSION: i32 = 1;

/// `claims`: one row for each holder and waiter, times in nanoseconds of the boot clock.
/// `gates`: the highest fence admitted, and for how long it is remembered.
/// `fences`: one row: the last fence drawn, the ceiling that is safely on disk, and the boot in
/// which claims are valid.
pub(super) const TABLES: &str = "
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
    INSERT INTO fences VALUES (0, 0, '');
";

/// The tables of the other primitives.
pub(super) const MORE_TABLES: &[&str] = &[super::limit::TABLE, super::counter::TABLE];

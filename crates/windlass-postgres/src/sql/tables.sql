-- Times are microseconds since 1970 of the server's clock. Names sort by bytes, as clients sort them.

CREATE TABLE @schema@.schema_version (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    version integer NOT NULL
);

-- Fences: see next_fence().
CREATE SEQUENCE @schema@.fence AS bigint MINVALUE 1 MAXVALUE 9007194959773696 CACHE 1;
SELECT setval('@schema@.fence', (extract(epoch FROM clock_timestamp()) * 1000000)::bigint);
CREATE TABLE @schema@.fence_epoch (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    server_start timestamptz NOT NULL
);
INSERT INTO @schema@.fence_epoch (server_start) VALUES (pg_postmaster_start_time());

-- Locks, elections and the leases of `once`: one holder. A row without an owner is free and has no
-- waiters; it stays for a minute, so that a lock that is used again is updated in place.
CREATE TABLE @schema@.lock (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    owner text COLLATE "C",
    fence bigint NOT NULL DEFAULT 0,
    ttl bigint NOT NULL DEFAULT 0,
    expires bigint NOT NULL DEFAULT 0,
    since bigint NOT NULL DEFAULT 0,
    note text,
    client bigint NOT NULL DEFAULT 0,
    claim bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (name, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

-- Semaphores, read-write locks and barriers: capacity that holders share by weight.
CREATE TABLE @schema@.pool (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    size bigint NOT NULL DEFAULT 0,
    used bigint NOT NULL DEFAULT 0,
    overtook bigint NOT NULL DEFAULT 0,
    open bigint,
    until bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (name, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE @schema@.holder (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    owner text COLLATE "C" NOT NULL,
    fence bigint NOT NULL,
    weight bigint NOT NULL,
    ttl bigint NOT NULL,
    expires bigint NOT NULL,
    since bigint NOT NULL,
    note text,
    client bigint NOT NULL,
    claim bigint NOT NULL,
    PRIMARY KEY (name, kind, owner)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);
CREATE INDEX holder_expires ON @schema@.holder (name, kind, expires, fence);

-- The wait queues of all of them.
CREATE TABLE @schema@.waiter (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    ticket bigint NOT NULL,
    owner text COLLATE "C" NOT NULL,
    weight bigint NOT NULL,
    ttl bigint NOT NULL,
    expires bigint NOT NULL,
    since bigint NOT NULL,
    note text,
    client bigint NOT NULL,
    claim bigint NOT NULL,
    PRIMARY KEY (name, kind, ticket),
    UNIQUE (name, kind, owner)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE @schema@.gate (
    name text COLLATE "C" PRIMARY KEY,
    highest bigint NOT NULL,
    until bigint NOT NULL
) WITH (fillfactor = 70);

CREATE TABLE @schema@.latch (
    name text COLLATE "C" PRIMARY KEY,
    generation text NOT NULL,
    count bigint NOT NULL,
    remaining bigint NOT NULL,
    past text NOT NULL,
    until bigint NOT NULL
) WITH (fillfactor = 70);
CREATE TABLE @schema@.latch_operation (
    name text COLLATE "C" NOT NULL,
    operation bytea NOT NULL,
    PRIMARY KEY (name, operation)
);

-- When expired rows were removed last.
CREATE TABLE @schema@.last_sweep (
    single boolean PRIMARY KEY DEFAULT true CHECK (single),
    at bigint NOT NULL
);
INSERT INTO @schema@.last_sweep (at) VALUES (0);

-- The outcome of a decision about a claim.
CREATE TYPE @schema@.decided AS (
    outcome text,
    fence bigint,
    recheck bigint,
    size bigint,
    owner text,
    weight bigint,
    remaining bigint,
    age bigint,
    note text
);

-- Limiters and their holds, counters, outcomes of counter operations and records of `once`, as the
-- rules of the client write them.
CREATE TABLE @schema@.state (
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    value bytea,
    until bigint NOT NULL DEFAULT 0,
    written bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (name, kind)
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.1, autovacuum_vacuum_cost_delay = 0);

CREATE TABLE @schema@.seen (
    name text COLLATE "C" NOT NULL,
    item bytea NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (name, item)
);
CREATE INDEX seen_until ON @schema@.seen (until);

-- Permission spaces, and the bits of each subject. Rows of a removed space keep its id.
CREATE TABLE @schema@.space (
    name text COLLATE "C" PRIMARY KEY,
    id text COLLATE "C" NOT NULL,
    schema text NOT NULL
);
CREATE TABLE @schema@.permission (
    space text COLLATE "C" NOT NULL,
    id text COLLATE "C" NOT NULL,
    subject text COLLATE "C" NOT NULL,
    bits bytea NOT NULL,
    PRIMARY KEY (space, id, subject)
) WITH (fillfactor = 70);

-- Bloom filters, and their bits in pages; a page without a set bit is not stored.
CREATE TABLE @schema@.bloom (
    name text COLLATE "C" PRIMARY KEY,
    plan text NOT NULL,
    newest bigint NOT NULL DEFAULT 0,
    counted bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
CREATE TABLE @schema@.bloom_page (
    name text COLLATE "C" NOT NULL,
    generation bigint NOT NULL,
    page bigint NOT NULL,
    bits bytea NOT NULL,
    PRIMARY KEY (name, generation, page)
) WITH (fillfactor = 70);

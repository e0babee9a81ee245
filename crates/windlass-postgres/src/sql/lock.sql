-- Locks, elections and the leases of `once`.
--
-- Every decision locks the name's row first. Two modes of row locks tell decisions from pins:
-- * FOR NO KEY UPDATE serializes decisions. It does not wait for pins.
-- * FOR UPDATE is needed to take the lock from its holder. hold() pins a holder with FOR KEY SHARE
--   until its transaction ends, and that excludes FOR UPDATE alone: the holder can be renewed, and
--   nobody else can be granted. It is requested with SKIP LOCKED, so a decision never waits for a
--   transaction of a user: an expired claim that is pinned counts as held.

-- Gives a row that is locked FOR UPDATE to the first waiter that has not expired, or frees it.
CREATE OR REPLACE FUNCTION @schema@.lock_hand_over(INOUT l @schema@.lock, _now bigint)
LANGUAGE plpgsql AS $$
DECLARE
    w @schema@.waiter;
    -- Where the queue begins. Without it, each look would pass over all rows removed before.
    _after bigint := 0;
BEGIN
    LOOP
        SELECT * INTO w FROM @schema@.waiter
        WHERE name = l.name AND kind = l.kind AND ticket > _after ORDER BY ticket LIMIT 1;
        EXIT WHEN NOT FOUND;
        _after := w.ticket;
        DELETE FROM @schema@.waiter
        WHERE name = w.name AND kind = w.kind AND ticket = w.ticket;
        IF w.expires > _now THEN
            -- Its expiry stays: the waiter may have died together with the holder before it.
            UPDATE @schema@.lock
            SET owner = w.owner, fence = w.ticket, ttl = w.ttl, expires = w.expires, since = _now,
                note = w.note, client = w.client, claim = w.claim
            WHERE name = l.name AND kind = l.kind RETURNING * INTO l;
            PERFORM @schema@.wake(w.client, w.claim, w.ticket);
            RETURN;
        END IF;
    END LOOP;
    UPDATE @schema@.lock SET owner = NULL, expires = _now, note = NULL
    WHERE name = l.name AND kind = l.kind RETURNING * INTO l;
END $$;

-- Takes the row from its holder if its claim has expired. If it is pinned, it stays as it is.
CREATE OR REPLACE FUNCTION @schema@.lock_expire(INOUT l @schema@.lock, _now bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF l.owner IS NULL OR l.expires > _now THEN
        RETURN;
    END IF;
    PERFORM FROM @schema@.lock WHERE name = l.name AND kind = l.kind FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    l := @schema@.lock_hand_over(l, _now);
    PERFORM @schema@.lock_notify(l.kind, l.name);
END $$;

-- When a waiter should check by itself: when the holder's claim expires, or soon if it has expired
-- and is pinned.
CREATE OR REPLACE FUNCTION @schema@.lock_recheck(l @schema@.lock, _now bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN (l).expires > _now THEN (l).expires - _now ELSE 50000 END
$$;

-- Elections have observers.
CREATE OR REPLACE FUNCTION @schema@.lock_notify(_kind text, _name text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF _kind = 'elect' THEN
        PERFORM pg_notify(@schema@.channel(_kind, _name), '');
    END IF;
END $$;


CREATE OR REPLACE FUNCTION @schema@.lock_acquire(
    _kind text, _name text, _owner text, _ttl bigint, _note text, _client bigint, _claim bigint,
    _enqueue boolean
) RETURNS @schema@.decided LANGUAGE plpgsql AS $$
DECLARE
    d @schema@.decided;
    l @schema@.lock;
    _now bigint;
BEGIN
    d.outcome := 'granted';
    LOOP
        -- The fence is drawn for the version of the row that is replaced: if another grant comes
        -- in between, PostgreSQL evaluates the row again, with a new fence.
        UPDATE @schema@.lock
        SET owner = _owner, fence = nextval('@schema@.fence'), ttl = _ttl,
            expires = @schema@.clock_micros() + _ttl, since = @schema@.clock_micros(),
            note = _note, client = _client, claim = _claim
        WHERE name = _name AND kind = _kind AND owner IS NULL
        RETURNING fence INTO d.fence;
        IF FOUND THEN
            IF _kind = 'elect' THEN
                PERFORM @schema@.lock_notify(_kind, _name);
            END IF;
            RETURN d;
        END IF;
        -- A fence of a row that is inserted would be drawn before the row is locked. So a free row
        -- comes first.
        INSERT INTO @schema@.lock (name, kind) VALUES (_name, _kind) ON CONFLICT DO NOTHING;
        CONTINUE WHEN FOUND;
        SELECT * INTO l FROM @schema@.lock WHERE name = _name AND kind = _kind FOR NO KEY UPDATE;
        -- Removed or freed in between: again.
        EXIT WHEN FOUND AND l.owner IS NOT NULL;
    END LOOP;
    _now := @schema@.clock_micros();
    l := @schema@.lock_expire(l, _now);
    IF l.owner IS NULL THEN
        UPDATE @schema@.lock
        SET owner = _owner, fence = nextval('@schema@.fence'), ttl = _ttl, expires = _now + _ttl,
            since = _now, note = _note, client = _client, claim = _claim
        WHERE name = _name AND kind = _kind RETURNING fence INTO d.fence;
        PERFORM @schema@.lock_notify(_kind, _name);
        RETURN d;
    END IF;
    IF l.owner = _owner THEN
        -- Never earlier than promised to the earlier claim of this owner.
        UPDATE @schema@.lock
        SET ttl = _ttl, expires = greatest(l.expires, _now + _ttl), note = _note,
            client = _client, claim = _claim
        WHERE name = _name AND kind = _kind RETURNING fence INTO d.fence;
        PERFORM @schema@.lock_notify(_kind, _name);
        RETURN d;
    END IF;
    IF NOT _enqueue THEN
        d.outcome := 'busy';
        d.owner := l.owner;
        d.fence := l.fence;
        d.weight := 1;
        d.remaining := greatest(l.expires - _now, 0);
        d.age := greatest(_now - l.since, 0);
        d.note := l.note;
        RETURN d;
    END IF;
    d.outcome := 'queued';
    UPDATE @schema@.waiter
    SET ttl = _ttl, expires = _now + _ttl, since = _now, note = _note, client = _client,
        claim = _claim
    WHERE name = _name AND kind = _kind AND owner = _owner RETURNING ticket INTO d.fence;
    IF NOT FOUND THEN
        INSERT INTO @schema@.waiter
        VALUES (_name, _kind, nextval('@schema@.fence'), _owner, 1, _ttl, _now + _ttl, _now, _note,
                _client, _claim)
        RETURNING ticket INTO d.fence;
    END IF;
    d.recheck := @schema@.lock_recheck(l, _now);
    RETURN d;
END $$;

CREATE OR REPLACE FUNCTION @schema@.lock_renew(
    _kind text, _name text, _owner text, _ttl bigint, _note text, _client bigint, _claim bigint,
    _respect boolean
) RETURNS @schema@.decided LANGUAGE plpgsql AS $$
DECLARE
    d @schema@.decided;
    l @schema@.lock;
    w @schema@.waiter;
    _now bigint;
BEGIN
    d.outcome := 'held';
    UPDATE @schema@.lock
    SET ttl = _ttl, expires = @schema@.clock_micros() + _ttl, note = _note, client = _client,
        claim = _claim
    WHERE name = _name AND kind = _kind AND owner = _owner AND expires > @schema@.clock_micros()
      AND (NOT _respect OR (client = _client AND claim = _claim))
    RETURNING fence INTO d.fence;
    IF FOUND THEN
        RETURN d;
    END IF;
    SELECT * INTO l FROM @schema@.lock WHERE name = _name AND kind = _kind FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        d.outcome := 'gone';
        RETURN d;
    END IF;
    _now := @schema@.clock_micros();
    l := @schema@.lock_expire(l, _now);
    IF l.owner = _owner THEN
        IF _respect AND NOT (l.client = _client AND l.claim = _claim) THEN
            d.outcome := 'gone';
            RETURN d;
        END IF;
        UPDATE @schema@.lock
        SET ttl = _ttl, expires = _now + _ttl, note = _note, client = _client, claim = _claim
        WHERE name = _name AND kind = _kind;
        d.fence := l.fence;
        RETURN d;
    END IF;
    UPDATE @schema@.waiter
    SET ttl = _ttl, expires = _now + _ttl, note = _note, client = _client, claim = _claim
    WHERE name = _name AND kind = _kind AND owner = _owner
      AND (NOT _respect OR (client = _client AND claim = _claim) OR expires <= _now);
    IF NOT FOUND THEN
        d.outcome := 'gone';
        RETURN d;
    END IF;
    d.outcome := 'waiting';
    d.recheck := @schema@.lock_recheck(l, _now);
    RETURN d;
END $$;

-- Ends the holder's claim; the row is locked FOR NO KEY UPDATE at least.
CREATE OR REPLACE FUNCTION @schema@.lock_take(l @schema@.lock, _now bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM @schema@.lock WHERE name = l.name AND kind = l.kind FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        PERFORM @schema@.lock_hand_over(l, _now);
    ELSE
        -- Pinned: whoever comes after the end of that transaction finds an expired claim.
        UPDATE @schema@.lock SET expires = 0 WHERE name = l.name AND kind = l.kind;
    END IF;
    PERFORM @schema@.lock_notify(l.kind, l.name);
END $$;

CREATE OR REPLACE FUNCTION @schema@.lock_release(
    _kind text, _name text, _owner text, _client bigint, _claim bigint, _any_claim boolean
) RETURNS @schema@.decided LANGUAGE plpgsql AS $$
DECLARE
    d @schema@.decided;
    l @schema@.lock;
    _now bigint;
BEGIN
    -- Mostly it is held and nothing is in the way.
    SELECT * INTO l FROM @schema@.lock
    WHERE name = _name AND kind = _kind AND owner = _owner AND expires > @schema@.clock_micros()
      AND (_any_claim OR (client = _client AND claim = _claim))
    FOR UPDATE SKIP LOCKED;
    IF FOUND THEN
        d.outcome := 'held';
        PERFORM @schema@.lock_hand_over(l, @schema@.clock_micros());
        IF _kind = 'elect' THEN
            PERFORM @schema@.lock_notify(_kind, _name);
        END IF;
        RETURN d;
    END IF;
    d.outcome := 'gone';
    SELECT * INTO l FROM @schema@.lock WHERE name = _name AND kind = _kind FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN d;
    END IF;
    _now := @schema@.clock_micros();
    IF l.owner = _owner AND l.expires > _now THEN
        IF _any_claim OR (l.client = _client AND l.claim = _claim) THEN
            PERFORM @schema@.lock_take(l, _now);
            d.outcome := 'held';
        END IF;
        RETURN d;
    END IF;
    -- Before the lock is handed over: a leaving waiter must not be granted.
    DELETE FROM @schema@.waiter
    WHERE name = _name AND kind = _kind AND owner = _owner
      AND (_any_claim OR (client = _client AND claim = _claim) OR expires <= _now);
    IF FOUND THEN
        d.outcome := 'waiting';
    END IF;
    PERFORM @schema@.lock_expire(l, _now);
    RETURN d;
END $$;

CREATE OR REPLACE FUNCTION @schema@.lock_break(_name text) RETURNS @schema@.decided
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    d @schema@.decided;
    l @schema@.lock;
    _now bigint;
BEGIN
    d.outcome := 'gone';
    SELECT * INTO l FROM @schema@.lock WHERE name = _name AND kind = 'lock' FOR NO KEY UPDATE;
    IF NOT FOUND OR l.owner IS NULL THEN
        RETURN d;
    END IF;
    _now := @schema@.clock_micros();
    IF l.expires <= _now THEN
        PERFORM @schema@.lock_expire(l, _now);
        RETURN d;
    END IF;
    d.outcome := 'held';
    d.owner := l.owner;
    d.fence := l.fence;
    d.weight := 1;
    d.remaining := l.expires - _now;
    d.age := greatest(_now - l.since, 0);
    d.note := l.note;
    PERFORM @schema@.lock_take(l, _now);
    RETURN d;
END $$;

-- Grants several free locks, or none. Names are locked in their order, so that two requests never
-- wait for each other. `which` is the position of the first that is not free, from 1.
CREATE OR REPLACE FUNCTION @schema@.lock_acquire_all(
    _names text[], _owners text[], _ttls bigint[], _notes text[], _clients bigint[],
    _claims bigint[]
) RETURNS TABLE (which integer, fence bigint, owner text, remaining bigint, age bigint, note text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    r record;
    l @schema@.lock;
    d @schema@.decided;
    _now bigint;
    first integer;
BEGIN
    PERFORM @schema@.check_fence_epoch();
    FOR r IN SELECT u.name, u.ord FROM unnest(_names) WITH ORDINALITY AS u(name, ord)
             ORDER BY u.name COLLATE "C", u.ord LOOP
        LOOP
            SELECT * INTO l FROM @schema@.lock k
            WHERE k.name = r.name AND k.kind = 'lock' FOR NO KEY UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO @schema@.lock (name, kind) VALUES (r.name, 'lock') ON CONFLICT DO NOTHING;
        END LOOP;
        _now := @schema@.clock_micros();
        l := @schema@.lock_expire(l, _now);
        IF l.owner IS NOT NULL AND (first IS NULL OR r.ord < first) THEN
            first := r.ord;
            which := r.ord;
            fence := l.fence;
            owner := l.owner;
            remaining := greatest(l.expires - _now, 0);
            age := greatest(_now - l.since, 0);
            note := l.note;
        END IF;
    END LOOP;
    IF first IS NOT NULL THEN
        RETURN NEXT;
        RETURN;
    END IF;
    FOR r IN SELECT * FROM unnest(_names, _owners, _ttls, _notes, _clients, _claims)
             WITH ORDINALITY AS u(name, owner, ttl, note, client, claim, ord) LOOP
        d := @schema@.lock_acquire(
            'lock', r.name, r.owner, r.ttl, r.note, r.client, r.claim, false);
        which := NULL;
        fence := d.fence;
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION @schema@.lock_is_held(
    _kind text, _name text, _owner text, _client bigint, _claim bigint
) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT EXISTS (
        SELECT FROM @schema@.lock
        WHERE name = _name AND kind = _kind AND owner = _owner AND client = _client
          AND claim = _claim AND expires > @schema@.clock_micros()
    )
$$;

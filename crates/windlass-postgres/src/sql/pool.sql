-- Semaphores, read-write locks and barriers. Every decision locks the row of the pool first.

-- Whether this weight is free.
CREATE OR REPLACE FUNCTION @schema@.pool_fits(p @schema@.pool, _weight bigint) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$ SELECT (p).open IS NULL AND (p).used + _weight <= (p).size $$;

-- Locks the row of a pool. Without one, returns null, or creates one.
CREATE OR REPLACE FUNCTION @schema@.pool_lock(_kind text, _name text, _create boolean)
RETURNS @schema@.pool LANGUAGE plpgsql AS $$
DECLARE
    p @schema@.pool;
BEGIN
    LOOP
        SELECT * INTO p FROM @schema@.pool WHERE name = _name AND kind = _kind FOR UPDATE;
        IF FOUND OR NOT _create THEN
            RETURN p;
        END IF;
        INSERT INTO @schema@.pool (name, kind) VALUES (_name, _kind) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- Writes the pool, and notifies the parties of a barrier if its holders have changed.
CREATE OR REPLACE FUNCTION @schema@.pool_end(p @schema@.pool, _changed boolean) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    UPDATE @schema@.pool
    SET size = p.size, used = p.used, overtook = p.overtook, open = p.open, until = p.until
    WHERE name = p.name AND kind = p.kind
      AND (size, used, overtook, open, until)
          IS DISTINCT FROM (p.size, p.used, p.overtook, p.open, p.until);
    IF _changed AND p.kind = 'barrier' THEN
        PERFORM pg_notify(@schema@.channel(p.kind, p.name), '');
    END IF;
END $$;

-- Removes expired holders, and grants the free weight to the queue: to its first waiters that have
-- not expired, in order, for as long as the next one fits.
CREATE OR REPLACE FUNCTION @schema@.pool_expire_and_grant(
    INOUT p @schema@.pool, _now bigint, INOUT changed boolean
) LANGUAGE plpgsql AS $$
DECLARE
    w @schema@.waiter;
    _fence bigint;
    _dead bigint;
    -- Where the queue begins. Without it, each look would pass over all rows removed before.
    _after bigint := 0;
BEGIN
    WITH dead AS (
        DELETE FROM @schema@.holder WHERE name = p.name AND kind = p.kind AND expires <= _now
        RETURNING weight
    )
    SELECT sum(weight) INTO _dead FROM dead;
    IF _dead IS NOT NULL THEN
        p.used := greatest(p.used - _dead, 0);
        changed := true;
    END IF;
    IF (p.used > 0 OR p.open IS NOT NULL) AND NOT EXISTS (
        SELECT FROM @schema@.holder WHERE name = p.name AND kind = p.kind
    ) THEN
        p.used := 0;
    END IF;
    IF p.used = 0 THEN
        p.open := NULL;
    END IF;
    LOOP
        SELECT * INTO w FROM @schema@.waiter
        WHERE name = p.name AND kind = p.kind AND ticket > _after ORDER BY ticket LIMIT 1;
        EXIT WHEN NOT FOUND;
        _after := w.ticket;
        IF w.weight > p.size THEN
            -- It would block the queue for ever. Woken without a grant, its client requests again
            -- and is refused.
            PERFORM @schema@.wake(w.client, w.claim, 0);
        ELSIF NOT @schema@.pool_fits(p, 1) THEN
            EXIT;
        ELSIF w.expires > _now THEN
            EXIT WHEN NOT @schema@.pool_fits(p, w.weight);
            _fence := w.ticket;
            IF _fence <= p.overtook THEN
                _fence := nextval('@schema@.fence');
                p.overtook := _fence;
            END IF;
            PERFORM @schema@.wake(w.client, w.claim, _fence);
            -- Its expiry stays: the waiter may have died together with the holder before it.
            INSERT INTO @schema@.holder
            VALUES (w.name, w.kind, w.owner, _fence, w.weight, w.ttl, w.expires, _now, w.note,
                    w.client, w.claim);
            p.used := p.used + w.weight;
            IF p.kind = 'barrier' AND p.used = p.size THEN
                p.open := nextval('@schema@.fence');
            END IF;
            changed := true;
        END IF;
        DELETE FROM @schema@.waiter
        WHERE name = w.name AND kind = w.kind AND ticket = w.ticket;
    END LOOP;
END $$;

-- Forgets the size of an idle pool once its retention is over.
CREATE OR REPLACE FUNCTION @schema@.pool_forget_size(INOUT p @schema@.pool, _now bigint)
LANGUAGE plpgsql AS $$
BEGIN
    IF p.used = 0 AND p.until <= _now AND p.size > 0 AND NOT EXISTS (
        SELECT FROM @schema@.waiter WHERE name = p.name AND kind = p.kind
    ) THEN
        p.size := 0;
        p.overtook := 0;
        p.open := NULL;
        p.until := 0;
    END IF;
END $$;

-- When a waiter should check by itself: when the first holder's claim expires. If its weight fits
-- and only earlier waiters are in its way, also when the first of them expires.
CREATE OR REPLACE FUNCTION @schema@.pool_recheck(
    p @schema@.pool, _owner text, _weight bigint, _now bigint
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    _end bigint;
    w @schema@.waiter;
BEGIN
    SELECT min(expires) INTO _end FROM @schema@.holder WHERE name = p.name AND kind = p.kind;
    IF @schema@.pool_fits(p, _weight) THEN
        SELECT * INTO w FROM @schema@.waiter
        WHERE name = p.name AND kind = p.kind ORDER BY ticket LIMIT 1;
        IF FOUND AND w.owner <> _owner THEN
            _end := least(_end, w.expires);
        END IF;
    END IF;
    RETURN greatest(_end - _now, 0);
END $$;

CREATE OR REPLACE FUNCTION @schema@.pool_acquire(
    _kind text, _name text, _owner text, _ttl bigint, _note text, _client bigint, _claim bigint,
    _enqueue boolean, _weight bigint, _size bigint, _adopt boolean, _barging boolean
) RETURNS @schema@.decided LANGUAGE plpgsql AS $$
DECLARE
    d @schema@.decided;
    p @schema@.pool;
    h @schema@.holder;
    w @schema@.waiter;
    _now bigint;
    _stored bigint;
    _waits boolean;
    changed boolean := false;
    x record;
BEGIN
    p := @schema@.pool_lock(_kind, _name, true);
    _now := @schema@.clock_micros();
    SELECT * INTO x FROM @schema@.pool_expire_and_grant(p, _now, changed);
    p := x.p;
    changed := x.changed;
    p := @schema@.pool_forget_size(p, _now);
    SELECT * INTO h FROM @schema@.holder
    WHERE name = _name AND kind = _kind AND owner = _owner;
    SELECT * INTO w FROM @schema@.waiter
    WHERE name = _name AND kind = _kind AND owner = _owner;
    _stored := CASE p.size WHEN 0 THEN _size ELSE p.size END;
    IF _stored <> _size AND NOT _adopt THEN
        d.outcome := 'other size';
    ELSIF _weight > _stored THEN
        d.outcome := 'too heavy';
    ELSIF h.weight <> _weight OR (h.owner IS NULL AND w.expires > _now AND w.weight <> _weight) THEN
        d.outcome := 'other weight';
        _stored := coalesce(h.weight, w.weight);
    END IF;
    IF d.outcome IS NOT NULL THEN
        d.size := _stored;
        PERFORM @schema@.pool_end(p, changed);
        RETURN d;
    END IF;
    p.size := _stored;
    p.until := _now + CASE _kind WHEN 'sem' THEN 86400000000 ELSE 0 END;
    d.outcome := 'granted';
    IF h.owner IS NOT NULL THEN
        -- Never earlier than promised to the earlier claim of this owner.
        UPDATE @schema@.holder
        SET ttl = _ttl, expires = greatest(expires, _now + _ttl), note = _note, client = _client,
            claim = _claim
        WHERE name = _name AND kind = _kind AND owner = _owner;
        d.fence := h.fence;
        PERFORM @schema@.pool_end(p, true);
        RETURN d;
    END IF;
    _waits := EXISTS (SELECT FROM @schema@.waiter WHERE name = _name AND kind = _kind);
    IF @schema@.pool_fits(p, _weight) AND (NOT _waits OR _barging) THEN
        IF w.owner IS NOT NULL THEN
            DELETE FROM @schema@.waiter
            WHERE name = _name AND kind = _kind AND owner = _owner;
        END IF;
        d.fence := nextval('@schema@.fence');
        IF _waits THEN
            p.overtook := d.fence;
        END IF;
        INSERT INTO @schema@.holder
        VALUES (_name, _kind, _owner, d.fence, _weight, _ttl, _now + _ttl, _now, _note, _client,
                _claim);
        p.used := p.used + _weight;
        IF _kind = 'barrier' AND p.used = p.size THEN
            p.open := nextval('@schema@.fence');
        END IF;
        PERFORM @schema@.pool_end(p, true);
        RETURN d;
    END IF;
    PERFORM @schema@.pool_end(p, changed);
    IF NOT _enqueue THEN
        d.outcome := 'busy';
        SELECT * INTO h FROM @schema@.holder WHERE name = _name AND kind = _kind
        ORDER BY expires, fence LIMIT 1;
        d.owner := h.owner;
        d.fence := h.fence;
        d.weight := h.weight;
        d.remaining := h.expires - _now;
        d.age := greatest(_now - h.since, 0);
        d.note := h.note;
        RETURN d;
    END IF;
    d.outcome := 'queued';
    IF w.owner IS NOT NULL THEN
        UPDATE @schema@.waiter
        SET weight = _weight, ttl = _ttl, expires = _now + _ttl, since = _now, note = _note,
            client = _client, claim = _claim
        WHERE name = _name AND kind = _kind AND owner = _owner RETURNING ticket INTO d.fence;
    ELSE
        INSERT INTO @schema@.waiter
        VALUES (_name, _kind, nextval('@schema@.fence'), _owner, _weight, _ttl, _now + _ttl, _now,
                _note, _client, _claim)
        RETURNING ticket INTO d.fence;
    END IF;
    d.recheck := @schema@.pool_recheck(p, _owner, _weight, _now);
    RETURN d;
END $$;

CREATE OR REPLACE FUNCTION @schema@.pool_renew(
    _kind text, _name text, _owner text, _ttl bigint, _note text, _client bigint, _claim bigint,
    _respect boolean
) RETURNS @schema@.decided LANGUAGE plpgsql AS $$
DECLARE
    d @schema@.decided;
    p @schema@.pool;
    w @schema@.waiter;
    _now bigint;
    changed boolean := false;
    x record;
BEGIN
    d.outcome := 'gone';
    p := @schema@.pool_lock(_kind, _name, false);
    IF p.name IS NULL THEN
        RETURN d;
    END IF;
    _now := @schema@.clock_micros();
    SELECT * INTO x FROM @schema@.pool_expire_and_grant(p, _now, changed);
    p := x.p;
    changed := x.changed;
    UPDATE @schema@.holder
    SET ttl = _ttl, expires = _now + _ttl, note = _note, client = _client, claim = _claim
    WHERE name = _name AND kind = _kind AND owner = _owner
      AND (NOT _respect OR (client = _client AND claim = _claim))
    RETURNING fence INTO d.fence;
    IF FOUND THEN
        d.outcome := 'held';
    ELSE
        UPDATE @schema@.waiter
        SET ttl = _ttl, expires = _now + _ttl, note = _note, client = _client, claim = _claim
        WHERE name = _name AND kind = _kind AND owner = _owner
          AND (NOT _respect OR (client = _client AND claim = _claim) OR expires <= _now)
        RETURNING * INTO w;
        IF FOUND THEN
            d.outcome := 'waiting';
            d.recheck := @schema@.pool_recheck(p, _owner, w.weight, _now);
        END IF;
    END IF;
    PERFORM @schema@.pool_end(p, changed);
    RETURN d;
END $$;

CREATE OR REPLACE FUNCTION @schema@.pool_release(
    _kind text, _name text, _owner text, _client bigint, _claim bigint, _any_claim boolean
) RETURNS @schema@.decided LANGUAGE plpgsql AS $$
DECLARE
    d @schema@.decided;
    p @schema@.pool;
    h @schema@.holder;
    _now bigint;
    changed boolean := false;
    x record;
BEGIN
    d.outcome := 'gone';
    p := @schema@.pool_lock(_kind, _name, false);
    IF p.name IS NULL THEN
        RETURN d;
    END IF;
    _now := @schema@.clock_micros();
    SELECT * INTO h FROM @schema@.holder
    WHERE name = _name AND kind = _kind AND owner = _owner AND expires > _now;
    IF FOUND THEN
        IF _any_claim OR (h.client = _client AND h.claim = _claim) THEN
            DELETE FROM @schema@.holder
            WHERE name = _name AND kind = _kind AND owner = _owner;
            p.used := greatest(p.used - h.weight, 0);
            changed := true;
            d.outcome := 'held';
        END IF;
    ELSE
        -- Before weight is granted: a leaving waiter must not be granted.
        DELETE FROM @schema@.waiter
        WHERE name = _name AND kind = _kind AND owner = _owner
          AND (_any_claim OR (client = _client AND claim = _claim) OR expires <= _now);
        IF FOUND THEN
            d.outcome := 'waiting';
        END IF;
    END IF;
    SELECT * INTO x FROM @schema@.pool_expire_and_grant(p, _now, changed);
    p := x.p;
    changed := x.changed;
    PERFORM @schema@.pool_end(p, changed);
    RETURN d;
END $$;

CREATE OR REPLACE FUNCTION @schema@.pool_shrink(
    _kind text, _name text, _owner text, _client bigint, _claim bigint, _weight bigint
) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    p @schema@.pool;
    h @schema@.holder;
    _now bigint;
    changed boolean := false;
    x record;
    shrunk boolean;
BEGIN
    PERFORM @schema@.check_fence_epoch();
    p := @schema@.pool_lock(_kind, _name, false);
    IF p.name IS NULL THEN
        RETURN false;
    END IF;
    _now := @schema@.clock_micros();
    SELECT * INTO x FROM @schema@.pool_expire_and_grant(p, _now, changed);
    p := x.p;
    changed := x.changed;
    SELECT * INTO h FROM @schema@.holder
    WHERE name = _name AND kind = _kind AND owner = _owner AND client = _client
      AND claim = _claim AND weight >= _weight;
    shrunk := FOUND;
    IF shrunk THEN
        UPDATE @schema@.holder SET weight = _weight
        WHERE name = _name AND kind = _kind AND owner = _owner;
        p.used := greatest(p.used - (h.weight - _weight), 0);
        SELECT * INTO x FROM @schema@.pool_expire_and_grant(p, _now, changed);
        p := x.p;
        changed := x.changed;
    END IF;
    PERFORM @schema@.pool_end(p, changed);
    RETURN shrunk;
END $$;

CREATE OR REPLACE FUNCTION @schema@.pool_resize(_kind text, _name text, _size bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    p @schema@.pool;
    _now bigint;
    _before bigint;
    changed boolean := false;
    x record;
BEGIN
    PERFORM @schema@.check_fence_epoch();
    p := @schema@.pool_lock(_kind, _name, true);
    _now := @schema@.clock_micros();
    SELECT * INTO x FROM @schema@.pool_expire_and_grant(p, _now, changed);
    p := x.p;
    changed := x.changed;
    p := @schema@.pool_forget_size(p, _now);
    _before := nullif(p.size, 0);
    p.size := _size;
    p.until := _now + CASE _kind WHEN 'sem' THEN 86400000000 ELSE 0 END;
    SELECT * INTO x FROM @schema@.pool_expire_and_grant(p, _now, changed);
    p := x.p;
    changed := x.changed;
    PERFORM @schema@.pool_end(p, changed);
    RETURN _before;
END $$;

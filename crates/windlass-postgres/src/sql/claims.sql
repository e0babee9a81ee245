-- A batch of decisions about claims, in one transaction. Clients sort them by the bytes of name and
-- kind, so that two batches never wait for each other; decisions about one name keep their order.
-- Flags: 1 enqueue, 2 adopt the stored size, 4 barging, 8 any claim of the owner, 16 respect a later
-- claim of the owner.
CREATE OR REPLACE FUNCTION @schema@.claims(
    _op text[], _kind text[], _name text[], _owner text[], _ttl bigint[], _note text[],
    _client bigint[], _claim bigint[], _weight bigint[], _size bigint[], _flags integer[]
) RETURNS SETOF @schema@.decided
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    d @schema@.decided;
    kind text;
    flags integer;
BEGIN
    PERFORM @schema@.check_fence_epoch();
    FOR i IN 1..cardinality(_op) LOOP
        kind := _kind[i];
        flags := _flags[i];
        IF kind IN ('lock', 'elect', 'once') THEN
            CASE _op[i]
            WHEN 'acquire' THEN
                d := @schema@.lock_acquire(
                    kind, _name[i], _owner[i], _ttl[i], _note[i], _client[i], _claim[i],
                    flags & 1 > 0);
            WHEN 'renew' THEN
                d := @schema@.lock_renew(
                    kind, _name[i], _owner[i], _ttl[i], _note[i], _client[i], _claim[i],
                    flags & 16 > 0);
            WHEN 'release' THEN
                d := @schema@.lock_release(
                    kind, _name[i], _owner[i], _client[i], _claim[i], flags & 8 > 0);
            END CASE;
        ELSE
            CASE _op[i]
            WHEN 'acquire' THEN
                d := @schema@.pool_acquire(
                    kind, _name[i], _owner[i], _ttl[i], _note[i], _client[i], _claim[i],
                    flags & 1 > 0, _weight[i], _size[i], flags & 2 > 0, flags & 4 > 0);
            WHEN 'renew' THEN
                d := @schema@.pool_renew(
                    kind, _name[i], _owner[i], _ttl[i], _note[i], _client[i], _claim[i],
                    flags & 16 > 0);
            WHEN 'release' THEN
                d := @schema@.pool_release(
                    kind, _name[i], _owner[i], _client[i], _claim[i], flags & 8 > 0);
            END CASE;
        END IF;
        RETURN NEXT d;
    END LOOP;
END $$;

-- The state of several names: one row for each of up to `_most` holders, and at least one.
CREATE OR REPLACE FUNCTION @schema@.inspect(_kinds text[], _names text[], _most bigint)
RETURNS TABLE (
    "position" bigint, size bigint, used bigint, waiters bigint, open bigint, owner text,
    fence bigint, weight bigint, remaining bigint, age bigint, note text
) LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    r record;
    h record;
    p @schema@.pool;
    _now bigint := @schema@.clock_micros();
    _single boolean;
BEGIN
    FOR r IN SELECT * FROM unnest(_kinds, _names) WITH ORDINALITY AS u(kind, name, ord) LOOP
        _single := r.kind IN ('lock', 'elect', 'once');
        "position" := r.ord;
        SELECT count(*) INTO waiters FROM @schema@.waiter w
        WHERE w.name = r.name AND w.kind = r.kind AND w.expires > _now;
        IF _single THEN
            SELECT count(*) INTO used FROM @schema@.lock l
            WHERE l.name = r.name AND l.kind = r.kind AND l.owner IS NOT NULL AND l.expires > _now;
            open := NULL;
            size := CASE WHEN r.kind = 'lock' OR used + waiters > 0 THEN 1 ELSE 0 END;
        ELSE
            SELECT * INTO p FROM @schema@.pool q WHERE q.name = r.name AND q.kind = r.kind;
            SELECT greatest(coalesce(p.used, 0) - coalesce(sum(k.weight), 0), 0)::bigint INTO used
            FROM @schema@.holder k
            WHERE k.name = r.name AND k.kind = r.kind AND k.expires <= _now;
            open := p.open;
            size := coalesce(p.size, 0);
            IF coalesce(p.until, 0) <= _now AND used = 0 AND waiters = 0 THEN
                size := 0;
            END IF;
        END IF;
        owner := NULL;
        FOR h IN
            SELECT l.owner, l.fence, 1::bigint AS weight, l.expires, l.since, l.note
            FROM @schema@.lock l
            WHERE _single AND l.name = r.name AND l.kind = r.kind AND l.owner IS NOT NULL
              AND l.expires > _now AND _most > 0
            UNION ALL
            (SELECT k.owner, k.fence, k.weight, k.expires, k.since, k.note
             FROM @schema@.holder k
             WHERE NOT _single AND k.name = r.name AND k.kind = r.kind AND k.expires > _now
             ORDER BY k.expires, k.fence LIMIT _most)
        LOOP
            owner := h.owner;
            fence := h.fence;
            weight := h.weight;
            remaining := h.expires - _now;
            age := greatest(_now - h.since, 0);
            note := h.note;
            RETURN NEXT;
        END LOOP;
        IF owner IS NULL THEN
            fence := NULL;
            RETURN NEXT;
        END IF;
    END LOOP;
END $$;

-- The names of these kinds that have a holder or a waiter.
CREATE OR REPLACE FUNCTION @schema@.names_in_use(_kinds text[])
RETURNS TABLE (kind text, name text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH t AS (SELECT @schema@.clock_micros() AS now)
    SELECT l.kind, l.name FROM @schema@.lock l, t
    WHERE l.kind = ANY (_kinds) AND l.owner IS NOT NULL AND l.expires > t.now
    UNION
    SELECT h.kind, h.name FROM @schema@.holder h, t WHERE h.kind = ANY (_kinds) AND h.expires > t.now
    UNION
    SELECT w.kind, w.name FROM @schema@.waiter w, t WHERE w.kind = ANY (_kinds) AND w.expires > t.now
$$;

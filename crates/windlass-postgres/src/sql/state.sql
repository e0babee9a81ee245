-- States that the client's rules decide on, within a transaction of two round trips: the rows are
-- locked and read, then written. Clients name them in the order of their bytes, so that two
-- transactions never wait for each other.

CREATE OR REPLACE FUNCTION @schema@.states_lock(_kinds text[], _names text[])
RETURNS TABLE (now bigint, value bytea, until bigint, written bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    FOR i IN 1..cardinality(_names) LOOP
        LOOP
            SELECT s.value, s.until, s.written INTO value, until, written FROM @schema@.state s
            WHERE s.name = _names[i] AND s.kind = _kinds[i] FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO @schema@.state (name, kind) VALUES (_names[i], _kinds[i])
            ON CONFLICT DO NOTHING;
        END LOOP;
        -- After the lock: the time of this decision is later than that of the one before.
        now := @schema@.clock_micros();
        RETURN NEXT;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION @schema@.states_read(_kinds text[], _names text[])
RETURNS TABLE (now bigint, value bytea, until bigint, written bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT @schema@.clock_micros(), s.value, coalesce(s.until, 0), coalesce(s.written, 0)
    FROM unnest(_kinds, _names) WITH ORDINALITY AS u(kind, name, ord)
    LEFT JOIN @schema@.state s ON s.name = u.name AND s.kind = u.kind
    ORDER BY u.ord
$$;

CREATE OR REPLACE FUNCTION @schema@.states_write(
    _kinds text[], _names text[], _values bytea[], _until bigint[], _written bigint[]
) RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    FOR i IN 1..cardinality(_names) LOOP
        UPDATE @schema@.state
        SET value = _values[i], until = _until[i], written = _written[i]
        WHERE name = _names[i] AND kind = _kinds[i];
    END LOOP;
END $$;

-- Up to `_most` states of a kind whose names start with the prefix, in the order of their names.
CREATE OR REPLACE FUNCTION @schema@.states_list(_kind text, _prefix text, _most bigint)
RETURNS TABLE (now bigint, name text, value bytea)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT @schema@.clock_micros(), s.name, s.value FROM @schema@.state s
    WHERE s.kind = _kind AND s.name >= _prefix AND starts_with(s.name, _prefix)
      AND s.until > @schema@.clock_micros() AND s.value IS NOT NULL
    ORDER BY s.name LIMIT _most
$$;

CREATE OR REPLACE FUNCTION @schema@.seen_first(_name text, _items bytea[], _window bigint)
RETURNS SETOF bytea LANGUAGE plpgsql
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _now bigint := @schema@.clock_micros();
BEGIN
    -- In one order everywhere, so that two calls never wait for each other.
    RETURN QUERY
    INSERT INTO @schema@.seen AS known
    SELECT _name, i.item, _now + _window
    FROM (SELECT DISTINCT u.item FROM unnest(_items) AS u(item) ORDER BY u.item) AS i
    ON CONFLICT (name, item) DO UPDATE SET until = excluded.until WHERE known.until <= _now
    RETURNING known.item;
    -- Removes more expired items than this call adds, so that they do not pile up.
    DELETE FROM @schema@.seen s WHERE (s.name, s.item) IN (
        SELECT x.name, x.item FROM @schema@.seen x WHERE x.until <= _now
        LIMIT cardinality(_items) + 8 FOR UPDATE SKIP LOCKED
    );
END $$;

CREATE OR REPLACE FUNCTION @schema@.seen_contains(_name text, _items bytea[])
RETURNS SETOF boolean LANGUAGE sql VOLATILE
SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT EXISTS (
        SELECT FROM @schema@.seen s
        WHERE s.name = _name AND s.item = u.item AND s.until > @schema@.clock_micros()
    )
    FROM unnest(_items) WITH ORDINALITY AS u(item, ord) ORDER BY u.ord
$$;

CREATE OR REPLACE FUNCTION @schema@.seen_forget(_name text, _item bytea) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    WITH gone AS (
        DELETE FROM @schema@.seen WHERE name = _name AND item = _item RETURNING until
    )
    SELECT EXISTS (SELECT FROM gone WHERE until > @schema@.clock_micros())
$$;

-- Publishes a message in parts that fit a notification: the id, the part, the number of parts.
CREATE OR REPLACE FUNCTION @schema@.topic_publish(_name text, _id text, _message bytea)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _part constant integer := 3800;
    _parts integer := greatest(1, (length(_message) + 3799) / 3800);
    _channel text := @schema@.channel('topic', _name);
BEGIN
    FOR i IN 1.._parts LOOP
        PERFORM pg_notify(_channel, _id || ' ' || i || ' ' || _parts || ' '
            || encode(substr(_message, (i - 1) * _part + 1, _part), 'hex'));
    END LOOP;
END $$;

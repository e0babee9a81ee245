CREATE OR REPLACE FUNCTION @schema@.space_schema(_space text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT schema FROM @schema@.space WHERE name = _space
$$;

-- Stores a schema if the stored one is still `_before`, and no data is left over under its id.
CREATE OR REPLACE FUNCTION @schema@.space_define(
    _space text, _before text, _id text, _schema text
) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    IF _before IS NOT NULL THEN
        UPDATE @schema@.space SET id = _id, schema = _schema
        WHERE name = _space AND schema = _before;
        RETURN FOUND;
    END IF;
    IF EXISTS (SELECT FROM @schema@.permission WHERE space = _space AND id = _id) THEN
        RETURN false;
    END IF;
    INSERT INTO @schema@.space VALUES (_space, _id, _schema) ON CONFLICT DO NOTHING;
    RETURN FOUND;
END $$;

-- The bits of subjects, in order; no row if the space has another schema.
CREATE OR REPLACE FUNCTION @schema@.permission_read(_space text, _id text, _subjects text[])
RETURNS SETOF bytea
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT coalesce(p.bits, '') FROM @schema@.space s
    CROSS JOIN unnest(_subjects) WITH ORDINALITY AS u(subject, ord)
    LEFT JOIN @schema@.permission p
        ON p.space = _space AND p.id = _id AND p.subject = u.subject
    WHERE s.name = _space AND s.id = _id ORDER BY u.ord
$$;

-- The same, with the rows locked; clients sort subjects by their bytes.
CREATE OR REPLACE FUNCTION @schema@.permission_lock(_space text, _id text, _subjects text[])
RETURNS SETOF bytea
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _bits bytea;
BEGIN
    PERFORM FROM @schema@.space WHERE name = _space AND id = _id FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR i IN 1..cardinality(_subjects) LOOP
        LOOP
            SELECT bits INTO _bits FROM @schema@.permission
            WHERE space = _space AND id = _id AND subject = _subjects[i] FOR UPDATE;
            EXIT WHEN FOUND;
            INSERT INTO @schema@.permission VALUES (_space, _id, _subjects[i], '')
            ON CONFLICT DO NOTHING;
        END LOOP;
        RETURN NEXT _bits;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION @schema@.permission_write(
    _space text, _id text, _subjects text[], _bits bytea[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    FOR i IN 1..cardinality(_subjects) LOOP
        UPDATE @schema@.permission SET bits = _bits[i]
        WHERE space = _space AND id = _id AND subject = _subjects[i];
    END LOOP;
END $$;

-- Removes subjects; one row for each, and none if the space has another schema.
CREATE OR REPLACE FUNCTION @schema@.permission_clear(_space text, _id text, _subjects text[])
RETURNS TABLE (subject text, existed boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    PERFORM FROM @schema@.space s WHERE s.name = _space AND s.id = _id FOR KEY SHARE;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    FOR i IN 1..cardinality(_subjects) LOOP
        DELETE FROM @schema@.permission p
        WHERE p.space = _space AND p.id = _id AND p.subject = _subjects[i];
        subject := _subjects[i];
        existed := FOUND;
        RETURN NEXT;
    END LOOP;
END $$;

-- A page of subjects, after the total number; no row if the space has another schema.
CREATE OR REPLACE FUNCTION @schema@.permission_scan(
    _space text, _id text, _after text, _most bigint
) RETURNS TABLE (total bigint, subject text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    IF NOT EXISTS (SELECT FROM @schema@.space s WHERE s.name = _space AND s.id = _id) THEN
        RETURN;
    END IF;
    SELECT count(*) INTO total FROM @schema@.permission p WHERE p.space = _space AND p.id = _id;
    RETURN NEXT;
    RETURN QUERY SELECT NULL::bigint, p.subject FROM @schema@.permission p
        WHERE p.space = _space AND p.id = _id AND p.subject > _after
        ORDER BY p.subject LIMIT _most;
END $$;

CREATE OR REPLACE FUNCTION @schema@.permission_sizes(_space text, _id text, _subjects text[])
RETURNS SETOF bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT pg_column_size(p.*)::bigint
    FROM @schema@.space s
    CROSS JOIN unnest(_subjects) WITH ORDINALITY AS u(subject, ord)
    JOIN @schema@.permission p ON p.space = _space AND p.id = _id AND p.subject = u.subject
    WHERE s.name = _space AND s.id = _id ORDER BY u.ord
$$;

CREATE OR REPLACE FUNCTION @schema@.space_remove(_space text, _id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    DELETE FROM @schema@.space WHERE name = _space AND id = _id;
    RETURN FOUND;
END $$;

CREATE OR REPLACE FUNCTION @schema@.permission_leftovers(_space text) RETURNS SETOF text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT DISTINCT p.id FROM @schema@.permission p
    WHERE p.space = _space
      AND NOT EXISTS (SELECT FROM @schema@.space s WHERE s.name = _space AND s.id = p.id)
    ORDER BY p.id
$$;

-- Deletes up to `_most` subjects of a space that does not exist. Returns how many.
CREATE OR REPLACE FUNCTION @schema@.permission_sweep(_space text, _id text, _most bigint)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _gone bigint;
BEGIN
    IF EXISTS (SELECT FROM @schema@.space s WHERE s.name = _space AND s.id = _id) THEN
        RETURN 0;
    END IF;
    -- In one order everywhere: another client may continue the same removal.
    DELETE FROM @schema@.permission p WHERE p.ctid = ANY (ARRAY(
        SELECT x.ctid FROM @schema@.permission x
        WHERE x.space = _space AND x.id = _id ORDER BY x.subject LIMIT _most FOR UPDATE
    ));
    GET DIAGNOSTICS _gone = ROW_COUNT;
    RETURN _gone;
END $$;

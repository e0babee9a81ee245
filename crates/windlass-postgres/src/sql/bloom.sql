-- Creates a filter unless the name has one. Returns the plan that the name has.
CREATE OR REPLACE FUNCTION @schema@.bloom_create(_name text, _plan text) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    _known text;
BEGIN
    LOOP
        SELECT plan INTO _known FROM @schema@.bloom WHERE name = _name;
        IF FOUND THEN
            RETURN _known;
        END IF;
        INSERT INTO @schema@.bloom (name, plan) VALUES (_name, _plan) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION @schema@.bloom_plan(_name text) RETURNS text
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT plan FROM @schema@.bloom WHERE name = _name
$$;

-- The progress of the filter of this plan; locked for a change, or for the time of a look.
CREATE OR REPLACE FUNCTION @schema@.bloom_lock(_name text, _plan text, _change boolean)
RETURNS TABLE (newest bigint, counted bigint, now bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    IF _change THEN
        SELECT b.newest, b.counted INTO newest, counted FROM @schema@.bloom b
        WHERE b.name = _name AND b.plan = _plan FOR UPDATE;
    ELSE
        SELECT b.newest, b.counted INTO newest, counted FROM @schema@.bloom b
        WHERE b.name = _name AND b.plan = _plan FOR SHARE;
    END IF;
    IF FOUND THEN
        now := @schema@.clock_micros();
        RETURN NEXT;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION @schema@.bloom_pages(_name text, _generations bigint[], _pages bigint[])
RETURNS TABLE (generation bigint, page bigint, bits bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT p.generation, p.page, p.bits FROM unnest(_generations, _pages) AS u(generation, page)
    JOIN @schema@.bloom_page p
        ON p.name = _name AND p.generation = u.generation AND p.page = u.page
$$;

CREATE OR REPLACE FUNCTION @schema@.bloom_range(
    _name text, _generation bigint, _first bigint, _end bigint
) RETURNS TABLE (generation bigint, page bigint, bits bytea)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT p.generation, p.page, p.bits FROM @schema@.bloom_page p
    WHERE p.name = _name AND p.generation = _generation AND p.page >= _first AND p.page < _end
$$;

CREATE OR REPLACE FUNCTION @schema@.bloom_count(
    _name text, _plan text, _generation bigint, _first bigint, _end bigint
) RETURNS bigint
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT (SELECT coalesce(sum(bit_count(p.bits)), 0)::bigint FROM @schema@.bloom_page p
            WHERE p.name = _name AND p.generation = _generation
              AND p.page >= _first AND p.page < _end)
    FROM @schema@.bloom b WHERE b.name = _name AND b.plan = _plan
$$;

-- Writes pages and the progress of a filter that is locked, and removes generations before
-- `_oldest`.
CREATE OR REPLACE FUNCTION @schema@.bloom_write(
    _name text, _newest bigint, _counted bigint, _oldest bigint,
    _generations bigint[], _pages bigint[], _bits bytea[]
) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    INSERT INTO @schema@.bloom_page AS known
    SELECT _name, u.generation, u.page, u.bits
    FROM unnest(_generations, _pages, _bits) AS u(generation, page, bits)
    ON CONFLICT (name, generation, page) DO UPDATE SET bits = excluded.bits;
    UPDATE @schema@.bloom SET newest = _newest, counted = _counted
    WHERE name = _name AND (newest, counted) IS DISTINCT FROM (_newest, _counted);
    IF _oldest > 0 THEN
        DELETE FROM @schema@.bloom_page WHERE name = _name AND generation < _oldest;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION @schema@.bloom_remove(_name text, _plan text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
BEGIN
    DELETE FROM @schema@.bloom WHERE name = _name AND plan = _plan;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    DELETE FROM @schema@.bloom_page WHERE name = _name;
    RETURN true;
END $$;

-- Locks the row of a latch. A latch whose retention is over has no generation.
CREATE OR REPLACE FUNCTION @schema@.latch_lock(_name text, _create boolean)
RETURNS @schema@.latch LANGUAGE plpgsql AS $$
DECLARE
    l @schema@.latch;
BEGIN
    LOOP
        SELECT * INTO l FROM @schema@.latch WHERE name = _name FOR UPDATE;
        IF FOUND THEN
            IF l.until <= @schema@.clock_micros() THEN
                l.generation := NULL;
            END IF;
            RETURN l;
        END IF;
        IF NOT _create THEN
            RETURN NULL;
        END IF;
        INSERT INTO @schema@.latch VALUES (_name, '', 0, 0, '', 0) ON CONFLICT DO NOTHING;
    END LOOP;
END $$;

-- Starts a generation. Past generations are lines: + and the name if it opened, or - and the name.
CREATE OR REPLACE FUNCTION @schema@.latch_reset(
    _name text, _generation text, _count bigint, _keep bigint,
    OUT outcome text, OUT number bigint, OUT present text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    l @schema@.latch;
    _past text[] := '{}';
BEGIN
    l := @schema@.latch_lock(_name, true);
    IF l.generation = _generation THEN
        IF l.count = _count THEN
            outcome := 'known';
            number := l.remaining;
        ELSE
            outcome := 'other count';
            number := l.count;
        END IF;
        RETURN;
    END IF;
    IF l.generation IS NOT NULL THEN
        IF l.past <> '' THEN
            _past := string_to_array(l.past, E'\n');
        END IF;
        IF ('+' || _generation) = ANY (_past) OR ('-' || _generation) = ANY (_past) THEN
            outcome := 'over';
            present := l.generation;
            RETURN;
        END IF;
        _past := ((CASE l.remaining WHEN 0 THEN '+' ELSE '-' END || l.generation) || _past)[1:16];
    END IF;
    DELETE FROM @schema@.latch_operation WHERE name = _name;
    UPDATE @schema@.latch
    SET generation = _generation, count = _count, remaining = _count,
        past = array_to_string(_past, E'\n'), until = @schema@.clock_micros() + _keep
    WHERE name = _name;
    PERFORM pg_notify(@schema@.channel('latch', _name), '');
    outcome := 'begun';
END $$;

CREATE OR REPLACE FUNCTION @schema@.latch_count_down(
    _name text, _generation text, _by bigint, _operation bytea, _keep bigint,
    OUT outcome text, OUT number bigint, OUT present text
) LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    l @schema@.latch;
BEGIN
    l := @schema@.latch_lock(_name, false);
    IF l.generation IS DISTINCT FROM _generation THEN
        outcome := 'other generation';
        present := l.generation;
        RETURN;
    END IF;
    outcome := 'to';
    number := l.remaining;
    IF EXISTS (
        SELECT FROM @schema@.latch_operation WHERE name = _name AND operation = _operation
    ) THEN
        RETURN;
    END IF;
    IF l.remaining < _by THEN
        outcome := 'below zero';
        RETURN;
    END IF;
    number := l.remaining - _by;
    INSERT INTO @schema@.latch_operation VALUES (_name, _operation);
    UPDATE @schema@.latch
    SET remaining = number, until = @schema@.clock_micros() + _keep
    WHERE name = _name;
    IF number = 0 THEN
        PERFORM pg_notify(@schema@.channel('latch', _name), '');
    END IF;
END $$;

CREATE OR REPLACE FUNCTION @schema@.latch_inspect(_name text)
RETURNS TABLE (generation text, count bigint, remaining bigint, past text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
    SELECT generation, count, remaining, past FROM @schema@.latch
    WHERE name = _name AND until > @schema@.clock_micros()
$$;

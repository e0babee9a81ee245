-- Admits a fence unless a higher one was admitted: then returns that one.
CREATE OR REPLACE FUNCTION @schema@.gate_admit(_name text, _fence bigint, _remember bigint)
RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    g @schema@.gate;
BEGIN
    LOOP
        INSERT INTO @schema@.gate AS known
        VALUES (_name, _fence, @schema@.clock_micros() + _remember)
        ON CONFLICT (name) DO UPDATE SET highest = excluded.highest, until = excluded.until
        WHERE known.highest <= excluded.highest OR known.until <= @schema@.clock_micros();
        IF FOUND THEN
            RETURN NULL;
        END IF;
        SELECT * INTO g FROM @schema@.gate WHERE name = _name;
        IF g.highest > _fence THEN
            RETURN g.highest;
        END IF;
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION @schema@.gate_inspect(_name text)
RETURNS TABLE (highest bigint, remaining bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT highest, until - @schema@.clock_micros() FROM @schema@.gate
    WHERE name = _name AND until > @schema@.clock_micros()
$$;

CREATE OR REPLACE FUNCTION @schema@.gate_reset(_name text) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    WITH gone AS (DELETE FROM @schema@.gate WHERE name = _name RETURNING highest, until)
    SELECT highest FROM gone WHERE until > @schema@.clock_micros()
$$;

-- The highest fence that the store can have issued by now.
CREATE OR REPLACE FUNCTION @schema@.highest_fence() RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT greatest(last_value, @schema@.clock_micros()) FROM @schema@.fence
$$;

-- The names under which data of a kind is kept.
CREATE OR REPLACE FUNCTION @schema@.names(_kind text) RETURNS TABLE (name text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT l.name FROM @schema@.latch l
    WHERE _kind = 'latch' AND l.until > @schema@.clock_micros()
    UNION ALL
    SELECT g.name FROM @schema@.gate g
    WHERE _kind = 'gate' AND g.until > @schema@.clock_micros()
    UNION ALL
    SELECT s.name FROM @schema@.state s
    WHERE _kind IN ('counter', 'once') AND s.kind = _kind AND s.value IS NOT NULL
      AND s.until > @schema@.clock_micros()
    UNION ALL
    SELECT b.name FROM @schema@.bloom b WHERE _kind = 'bloom'
    UNION ALL
    SELECT p.name FROM @schema@.space p WHERE _kind = 'perm'
$$;

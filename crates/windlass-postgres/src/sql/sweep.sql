-- Removes up to `_most` rows of each table that have been of no use for a minute, unless that was
-- done within the last ten seconds. Returns how many.
CREATE OR REPLACE FUNCTION @schema@.sweep(_most bigint) RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
    r record;
    _now bigint := @schema@.clock_micros();
    _old bigint := @schema@.clock_micros() - 60000000;
    _gone bigint := 0;
    _more bigint;
BEGIN
    PERFORM FROM @schema@.last_sweep WHERE at < _now - 10000000 OR at > _now
    FOR UPDATE SKIP LOCKED;
    IF NOT FOUND THEN
        RETURN 0;
    END IF;
    UPDATE @schema@.last_sweep SET at = _now;
    DELETE FROM @schema@.waiter w WHERE (w.name, w.kind, w.ticket) IN (
        SELECT x.name, x.kind, x.ticket FROM @schema@.waiter x WHERE x.expires < _old
        LIMIT _most FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS _gone = ROW_COUNT;
    FOR r IN SELECT l.name, l.kind FROM @schema@.lock l WHERE l.expires < _old LIMIT _most LOOP
        -- Locked first, then looked at: a claim may have joined meanwhile.
        PERFORM FROM @schema@.lock l WHERE l.name = r.name AND l.kind = r.kind
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM @schema@.lock l
        WHERE l.name = r.name AND l.kind = r.kind AND l.expires < _old AND NOT EXISTS (
            SELECT FROM @schema@.waiter w WHERE w.name = r.name AND w.kind = r.kind
        );
        GET DIAGNOSTICS _more = ROW_COUNT;
        _gone := _gone + _more;
    END LOOP;
    FOR r IN SELECT p.name, p.kind FROM @schema@.pool p
             WHERE p.until < _old AND NOT EXISTS (
                 SELECT FROM @schema@.holder h
                 WHERE h.name = p.name AND h.kind = p.kind AND h.expires >= _old
             ) AND NOT EXISTS (
                 SELECT FROM @schema@.waiter w WHERE w.name = p.name AND w.kind = p.kind
             ) LIMIT _most LOOP
        PERFORM FROM @schema@.pool p WHERE p.name = r.name AND p.kind = r.kind
        FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        DELETE FROM @schema@.holder h
        WHERE h.name = r.name AND h.kind = r.kind AND h.expires < _old;
        DELETE FROM @schema@.pool p
        WHERE p.name = r.name AND p.kind = r.kind AND p.until < _old AND NOT EXISTS (
            SELECT FROM @schema@.waiter w WHERE w.name = r.name AND w.kind = r.kind
        ) AND NOT EXISTS (
            SELECT FROM @schema@.holder h WHERE h.name = r.name AND h.kind = r.kind
        );
        GET DIAGNOSTICS _more = ROW_COUNT;
        _gone := _gone + _more;
    END LOOP;
    DELETE FROM @schema@.gate g WHERE g.name IN (
        SELECT x.name FROM @schema@.gate x WHERE x.until < _old LIMIT _most FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS _more = ROW_COUNT;
    _gone := _gone + _more;
    DELETE FROM @schema@.state s WHERE (s.name, s.kind) IN (
        SELECT x.name, x.kind FROM @schema@.state x WHERE x.until < _old
        LIMIT _most FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS _more = ROW_COUNT;
    _gone := _gone + _more;
    DELETE FROM @schema@.seen s WHERE (s.name, s.item) IN (
        SELECT x.name, x.item FROM @schema@.seen x WHERE x.until < _old
        LIMIT _most FOR UPDATE SKIP LOCKED
    );
    GET DIAGNOSTICS _more = ROW_COUNT;
    _gone := _gone + _more;
    FOR r IN SELECT l.name FROM @schema@.latch l WHERE l.until < _old
             LIMIT _most FOR UPDATE SKIP LOCKED LOOP
        DELETE FROM @schema@.latch_operation o WHERE o.name = r.name;
        DELETE FROM @schema@.latch l WHERE l.name = r.name;
        _gone := _gone + 1;
    END LOOP;
    RETURN _gone;
END $$;

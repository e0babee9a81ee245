-- For the transaction of a user: fails unless this fence holds the lock now, and pins the holder
-- until the transaction ends, so that the lock is granted to nobody else before.
CREATE OR REPLACE FUNCTION @schema@.hold(_name text, _fence bigint, _kind text DEFAULT 'lock')
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off AS $$
DECLARE
    l @schema@.lock;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        -- The row would be read as of the start of the transaction.
        RAISE EXCEPTION 'windlass: hold() needs the isolation level READ COMMITTED'
            USING ERRCODE = 'feature_not_supported',
                  HINT = 'Compare the fence with one that is stored beside the data instead.';
    END IF;
    SELECT * INTO l FROM @schema@.lock WHERE name = _name AND kind = _kind FOR KEY SHARE;
    IF NOT FOUND OR l.owner IS NULL OR l.fence <> _fence OR l.expires <= @schema@.clock_micros()
    THEN
        RAISE EXCEPTION 'windlass: fence % does not hold % "%"', _fence, _kind, _name
            USING ERRCODE = 'WL001',
                  HINT = 'The lease was lost: roll back, and acquire the lock again.';
    END IF;
END $$;

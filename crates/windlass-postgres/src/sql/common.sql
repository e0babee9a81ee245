-- Functions that clients call run with the rights of their owner (SECURITY DEFINER), so that a role
-- needs no right on the tables; hence the fixed search_path. They plan index scans only: a session
-- keeps the plans of its first calls, when the tables may have been empty, and a plan that scans
-- the whole table would be kept while it grows. The penalty on such plans must not start the JIT.

-- Microseconds since 1970: never now(), which stands still within a transaction.
-- Double precision is exact to the microsecond for centuries to come.
CREATE OR REPLACE FUNCTION @schema@.clock_micros() RETURNS bigint LANGUAGE sql VOLATILE
AS $$ SELECT (date_part('epoch', clock_timestamp()) * 1000000)::bigint $$;

-- Raises the fence sequence to the clock when the server has started since the last raise: a server
-- that lost commits in a crash, a promoted standby and a restored backup may have a sequence that
-- lags behind the fences that were issued. Those never exceed the clock at the time, because a
-- sequence that starts at the clock counts more slowly than a million a second.
-- Called before a decision locks anything, so that no two transactions wait for each other.
CREATE OR REPLACE FUNCTION @schema@.check_fence_epoch() RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    known timestamptz;
BEGIN
    SELECT server_start INTO known FROM @schema@.fence_epoch WHERE single;
    IF known = pg_postmaster_start_time() THEN
        RETURN;
    END IF;
    SELECT server_start INTO known FROM @schema@.fence_epoch WHERE single FOR UPDATE;
    IF known = pg_postmaster_start_time() THEN
        RETURN;
    END IF;
    PERFORM setval('@schema@.fence', greatest(last_value, @schema@.clock_micros()))
    FROM @schema@.fence;
    UPDATE @schema@.fence_epoch SET server_start = pg_postmaster_start_time()
    WHERE single;
END $$;

-- Wakes one waiter. Fence 0: it was removed without a grant.
CREATE OR REPLACE FUNCTION @schema@.wake(_client bigint, _claim bigint, _fence bigint) RETURNS void
LANGUAGE sql VOLATILE AS $$
    SELECT pg_notify('windlass_' || lpad(to_hex(_client), 16, '0'),
                     lpad(to_hex(_claim), 16, '0') || ' ' || _fence)
$$;

-- The channel of the subscribers to a name. Channel names are short, names may be long.
CREATE OR REPLACE FUNCTION @schema@.channel(_kind text, _name text) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT 'windlass_' || left(encode(sha256(convert_to(
        '@schema_name@' || ' ' || _kind || ' ' || _name, 'UTF8')), 'hex'), 40)
$$;

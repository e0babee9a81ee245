-- What windlass doctor reports, as name and value.
CREATE OR REPLACE FUNCTION @schema@.diagnose() RETURNS TABLE (topic text, value text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT s.name, s.setting FROM pg_settings s WHERE s.name IN (
        'server_version', 'server_version_num', 'fsync', 'synchronous_commit', 'full_page_writes',
        'default_transaction_isolation', 'autovacuum', 'statement_timeout', 'lock_timeout')
    UNION ALL SELECT 'clock', @schema@.clock_micros()::text
    UNION ALL SELECT 'in recovery', pg_is_in_recovery()::text
    UNION ALL SELECT 'last fence', last_value::text FROM @schema@.fence
    UNION ALL SELECT 'unlogged', count(*)::text FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = '@schema_name@' AND c.relpersistence = 'u'
    UNION ALL SELECT 'bytes', coalesce(sum(pg_total_relation_size(c.oid)), 0)::text FROM pg_class c
        JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname = '@schema_name@' AND c.relkind = 'r'
    UNION ALL SELECT 'dead rows', coalesce(sum(t.n_dead_tup), 0)::text FROM pg_stat_user_tables t
        WHERE t.schemaname = '@schema_name@'
    UNION ALL SELECT 'live rows', coalesce(sum(t.n_live_tup), 0)::text FROM pg_stat_user_tables t
        WHERE t.schemaname = '@schema_name@'
$$;

-- The version of this schema.
CREATE OR REPLACE FUNCTION @schema@.version() RETURNS integer
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    SELECT version FROM @schema@.schema_version
$$;

-- sweep: remove what the dead left where nobody comes by any more.
--
-- Gives  now
-- Effect What expired a minute ago keeps nobody waiting: whoever waits looks more often than that, and removes it.

CREATE OR REPLACE FUNCTION {schema}.dibs_1_sweep() RETURNS text LANGUAGE plpgsql {settings} AS $dibs$
#variable_conflict use_column
DECLARE
  long_ago_ CONSTANT bigint := (date_part('epoch', clock_timestamp()) - 60) * 1000000;
  k record;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  DELETE FROM {schema}.dibs_claims WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_tombs WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_outsiders WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_watchers WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_writes WHERE until < long_ago_;
  -- A key that nobody has needs no row: the next one writes it. Under both locks, so that nobody finds the key taken.
  FOR k IN SELECT key, name FROM {schema}.dibs_keys AS k
           WHERE NOT EXISTS (SELECT FROM {schema}.dibs_1_locks() AS l WHERE l.key = k.key) LIMIT 100 LOOP
    IF pg_try_advisory_xact_lock({schema}.dibs_1_key('line', k.name)) AND pg_try_advisory_xact_lock(k.key) THEN
      DELETE FROM {schema}.dibs_keys WHERE key = k.key;
    END IF;
  END LOOP;
  RETURN long_ago_ + 60000000;
END $dibs$;

-- sweep: remove what the dead left where nobody comes by any more.
--
-- Gives  now
-- Effect What expired a minute ago keeps nobody waiting: whoever waits looks more often than that, and removes it.

CREATE OR REPLACE FUNCTION {schema}.dibs_1_sweep() RETURNS text LANGUAGE plpgsql {settings} AS $dibs$
DECLARE
  long_ago_ CONSTANT bigint := (date_part('epoch', clock_timestamp()) - 60) * 1000000;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  DELETE FROM {schema}.dibs_claims WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_tombs WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_outsiders WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_watchers WHERE until < long_ago_;
  DELETE FROM {schema}.dibs_writes WHERE until < long_ago_;
  RETURN long_ago_ + 60000000;
END $dibs$;

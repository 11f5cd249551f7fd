-- What the verbs share: the lock of a name, and who is told of a change.

-- Two names that meet in one key share a lock for the length of a verb, and nothing else.
CREATE OR REPLACE FUNCTION {schema}.dibs_1_key(space_ text, name_ text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$dibs$ SELECT hashtextextended(name_, hashtextextended(space_, {seed})) $dibs$;

-- Those who watch are told once, and watch no longer.
CREATE OR REPLACE FUNCTION {schema}.dibs_1_tell(space_ text, name_ text) RETURNS void
LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  w record;
BEGIN
  FOR w IN DELETE FROM {schema}.dibs_watchers WHERE space = space_ AND name = name_ RETURNING client, key LOOP
    PERFORM pg_notify('dibs_' || encode(w.client, 'hex'), encode(w.key, 'hex') || 'l');
  END LOOP;
END $dibs$;

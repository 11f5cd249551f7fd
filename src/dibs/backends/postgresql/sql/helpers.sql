-- Shared by the verbs: the lock of a name, messages about changes, and checks for tables that somebody replaced.

-- Two names that meet in one key share a lock for the length of a verb, and nothing else.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_key(space_ text, name_ text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$dibs$ SELECT pg_catalog.hashtextextended(name_, pg_catalog.hashtextextended(space_, {seed})) $dibs$;

-- A message to a client, about a claim or a key. None is sent while the server's queue is half full, because some session
-- does not read: a full one would fail the verb. Waiters look now and then.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_send(client_ bytea, id_ bytea, what_ text) RETURNS void
LANGUAGE plpgsql AS $dibs$
BEGIN
  IF pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('dibs_' || encode(client_, 'hex'), encode(id_, 'hex') || what_);
  END IF;
END $dibs$;

-- Watchers are told once, and watch no longer.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_tell(space_ text, name_ text) RETURNS void
LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  w record;
BEGIN
  FOR w IN DELETE FROM {schema}.dibs_watchers WHERE space = space_ AND name = name_ RETURNING client, key LOOP
    PERFORM {schema}.dibs_2_send(w.client, w.key, 'l');
  END LOOP;
END $dibs$;

-- Refuse a client that knows this store under another id, or another layout. Claims that are not this store's make it
-- another store.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_known(store_ text) RETURNS text
LANGUAGE plpgsql {path} AS $dibs$
DECLARE
  here record;
BEGIN
  IF {schema}.dibs_layout() <> {layout} THEN
    RAISE EXCEPTION 'dibs: the tables have layout %', {schema}.dibs_layout() USING ERRCODE = 'DB004';
  END IF;
  SELECT id, claims INTO here FROM {schema}.dibs_store;
  IF here.claims IS DISTINCT FROM '{schema}.dibs_claims'::regclass THEN
    RAISE EXCEPTION 'dibs: the claims are those of another store' USING ERRCODE = 'undefined_table';
  ELSIF store_ NOT IN (here.id, '') THEN
    RAISE EXCEPTION 'dibs: this is another store than before' USING ERRCODE = 'DB003';
  END IF;
  RETURN '';
END $dibs$;

-- Write down for others where a queue begins: done by who came new and had to walk over many pages, and now and then by who
-- comes often.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_begins(name_ text, ticket_ bigint) RETURNS void
LANGUAGE sql AS $dibs$
  INSERT INTO {schema}.dibs_floors AS f VALUES (name_, ticket_)
    ON CONFLICT (name) DO UPDATE SET ticket = excluded.ticket WHERE f.ticket < excluded.ticket
$dibs$;

-- Raise the sequence of tickets, by one session at a time. The lock is the session's, and held for a moment only: until the
-- end of the transaction it would make others wait for a commit. What was set is durable with the next commit.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_raise(least_ bigint) RETURNS void
LANGUAGE plpgsql {path} AS $dibs$
DECLARE
  key_ CONSTANT bigint := {schema}.dibs_2_key('tickets', '');
BEGIN
  PERFORM set_config('lock_timeout', '1500ms', true);
  BEGIN
    PERFORM pg_advisory_lock(key_);
    IF (SELECT last_value FROM {schema}.dibs_tickets) < least_ THEN
      PERFORM setval('{schema}.dibs_tickets', least_);
    END IF;
  EXCEPTION WHEN query_canceled OR OTHERS THEN
    PERFORM pg_advisory_unlock(key_);
    RAISE;
  END;
  PERFORM pg_advisory_unlock(key_);
END $dibs$;

CREATE OR REPLACE FUNCTION {schema}.dibs_2_truncated() RETURNS trigger LANGUAGE plpgsql AS $dibs$
BEGIN
  RAISE EXCEPTION 'dibs: locks may be held by what stands here'
    USING HINT = 'Stop all clients, then drop the schema; or take single locks away with "dibs break".';
END $dibs$;
DO $dibs$
DECLARE
  table_ regclass;
BEGIN
  FOR table_ IN SELECT c.oid FROM pg_class AS c
                WHERE c.relnamespace = to_regnamespace('{schema}') AND c.relkind = 'r' AND starts_with(c.relname, 'dibs_')
                  AND NOT EXISTS (SELECT FROM pg_trigger WHERE tgrelid = c.oid AND tgname = 'dibs_truncated') LOOP
    EXECUTE format('CREATE TRIGGER dibs_truncated BEFORE TRUNCATE ON %s EXECUTE PROCEDURE {schema}.dibs_2_truncated()',
                   table_);
  END LOOP;
END $dibs$;

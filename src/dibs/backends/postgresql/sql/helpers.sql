-- Helpers of the routines: the lock of a name, messages, and checks for replaced tables.

-- The key of a name's lock. Two names with the same key only wait for each other, for the length of a routine.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_key(space_ text, name_ text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$dibs$ SELECT pg_catalog.hashtextextended(name_, pg_catalog.hashtextextended(space_, {seed})) $dibs$;

-- Send a message to a client, about a claim or a key. Nothing is sent while the server's queue of notifications is half
-- full because a session does not read: a full queue would fail the routine. Waiters also poll.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_send(client_ bytea, id_ bytea, what_ text) RETURNS void
LANGUAGE plpgsql AS $dibs$
BEGIN
  IF pg_notification_queue_usage() < 0.5 THEN
    PERFORM pg_notify('dibs_' || encode(client_, 'hex'), encode(id_, 'hex') || what_);
  END IF;
END $dibs$;

-- Tell all watchers, once.
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

-- Refuse a client that knows another store id or another layout. A replaced table of claims is another store, too.
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

-- Record where a queue begins, for other clients. Called after a first join that read many pages, and by every 1024th
-- ticket.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_begins(name_ text, ticket_ bigint) RETURNS void
LANGUAGE sql AS $dibs$
  INSERT INTO {schema}.dibs_floors AS f VALUES (name_, ticket_)
    ON CONFLICT (name) DO UPDATE SET ticket = excluded.ticket WHERE f.ticket < excluded.ticket
$dibs$;

-- Raise the sequence of tickets, one session at a time. The lock is released at once: a transaction lock would make
-- others wait for the commit. The new value is durable with the next commit.
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

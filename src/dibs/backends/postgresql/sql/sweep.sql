-- sweep: remove expired rows of queues that nobody uses any more.
--
-- Gives  now
-- Effect Removes rows that expired a minute ago; waiters remove those of their own queues earlier. A locked row is left
--        to the next sweep.
-- Cost   64 random pages of each table, because tables grow while a transaction stays open elsewhere.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_sweep() RETURNS text LANGUAGE plpgsql {path} {settings} AS $dibs$
#variable_conflict use_column
DECLARE
  now_ CONSTANT bigint := {clock};
  t record;
  k record;
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  FOR t IN SELECT * FROM (VALUES ('dibs_claims', 'until', 60), ('dibs_tombs', 'until', 60), ('dibs_outsiders', 'until', 60),
             ('dibs_watchers', 'until', 60), ('dibs_writes', 'until', 60), ('dibs_floors', 'ticket', 86400)
           ) AS t (of, age, seconds), {schema}.dibs_2_window(of) AS p LOOP
    EXECUTE format(
      'DELETE FROM {schema}.%1$s WHERE ctid = ANY (ARRAY(SELECT ctid FROM {schema}.%1$s '
      'WHERE ctid >= $1 AND ctid < $2 AND %2$s < $3 FOR UPDATE SKIP LOCKED))', t.of, t.age
    ) USING t.first, t.last, now_ - t.seconds * 1000000::bigint;
  END LOOP;
  -- A free key needs no row: the next holder writes it. Take both locks, so that nobody finds the key taken meanwhile.
  FOR k IN SELECT key, name FROM {schema}.dibs_keys AS k, {schema}.dibs_2_window('dibs_keys') AS p
           WHERE k.ctid >= p.first AND k.ctid < p.last
             AND NOT EXISTS (SELECT FROM {schema}.dibs_2_locks() AS l WHERE l.key = k.key) LIMIT 100 LOOP
    IF pg_try_advisory_xact_lock({schema}.dibs_2_key('line', k.name)) AND pg_try_advisory_xact_lock(k.key) THEN
      DELETE FROM {schema}.dibs_keys WHERE key = k.key;
    END IF;
  END LOOP;
  RETURN now_;
END $dibs$;

-- A random window of 64 pages of a table.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_window(of_ text, OUT first tid, OUT last tid) LANGUAGE plpgsql {path} AS $dibs$
DECLARE
  pages_ CONSTANT bigint := pg_relation_size('{schema}.' || of_) / current_setting('block_size')::int;
  at_ CONSTANT bigint := floor(random() * greatest(pages_ - 63, 1));
BEGIN
  first := format('(%s,0)', at_);
  last := format('(%s,0)', at_ + 64);
END $dibs$;

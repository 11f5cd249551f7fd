-- leave: a claim goes, and whoever holds because of that is told.
--
-- Gives  now floor stood                                 stood: 1, or 0 if it did not stand any more
-- Effect Idempotent. A leave that follows an unanswered join leaves a tombstone until `by_`, and a copy of that join
--        which comes later does nothing. It is not waited for until it is on the disk: a crash may forget it, and the
--        successor then waits until the lease is over.
-- Cost   as the walk.

CREATE OR REPLACE FUNCTION {schema}.dibs_1_leave(
  name_ text, since_ bigint, id_ bytea, ticket_ bigint, answered_ boolean, by_ bigint
) RETURNS text LANGUAGE plpgsql {settings} AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
  done_ text;
BEGIN
  -- (begin.sql)
  done_ := set_config('synchronous_commit', 'off', true);
  own_ := id_;
  leaver_ := id_;
  -- (walk.sql)
  IF NOT stood_ THEN
    DELETE FROM {schema}.dibs_claims
      WHERE name = name_ AND ticket >= since_ AND (ticket_ = 0 OR ticket = ticket_) AND id = id_;
    stood_ := FOUND;
    IF ticket_ = 0 THEN
      DELETE FROM {schema}.dibs_outsiders WHERE name = name_ AND id = id_;
    END IF;
  END IF;
  IF NOT answered_ AND now_ <= by_ THEN
    DELETE FROM {schema}.dibs_tombs WHERE until < now_;
    INSERT INTO {schema}.dibs_tombs VALUES (id_, by_) ON CONFLICT DO NOTHING;
  END IF;
  RETURN concat_ws(' ', now_, CASE floor_ WHEN 0 THEN greatest(since_, ticket_) ELSE floor_ END, stood_::int);
END $dibs$;

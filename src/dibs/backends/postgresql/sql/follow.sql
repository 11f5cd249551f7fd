-- follow: read the first holder, for followers of a leader. If it is the known one, the client gets a message about the
-- next change.
--
-- Gives  now ticket left                                 ticket 0: nobody holds
-- Effect Without a client nobody gets a message.
-- Cost   One read, and one for each expired claim in front.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_follow(
  name_ text, since_ bigint, seen_ bigint, key_ bytea, client_ bytea, patience_ bigint
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  space_ CONSTANT text := 'line';
  now_ bigint;
  ticket_ bigint;
  until_ bigint;
BEGIN
  -- (begin.sql)
  -- (since.sql)
  SELECT ticket, until INTO ticket_, until_ FROM {schema}.dibs_claims
    WHERE name = name_ AND ticket >= since_ AND until > now_ ORDER BY ticket LIMIT 1;
  IF coalesce(ticket_, 0) = seen_ AND client_ <> '' THEN
    DELETE FROM {schema}.dibs_watchers WHERE space = space_ AND name = name_ AND until < now_;
    INSERT INTO {schema}.dibs_watchers VALUES (space_, name_, key_, client_, now_ + patience_)
      ON CONFLICT (space, name, key) DO UPDATE SET until = now_ + patience_;
  END IF;
  RETURN concat_ws(' ', now_, coalesce(ticket_, 0), coalesce(until_ - now_, 0));
END $dibs$;

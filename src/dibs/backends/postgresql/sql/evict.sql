-- evict: remove a holder by its ticket, never a waiter. revoke: ask a holder to release.
--
-- Gives  now floor done                                  done 0: no holder has that ticket
-- Effect Evict leaves a tombstone, so a late copy of the join does nothing.
-- Cost   Two walks.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_evict(name_ text, since_ bigint, token_ bigint)
RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
  waiting_ bigint;
BEGIN
  -- (begin.sql)
  -- (since.sql)
  FOR turn_ IN 1..2 LOOP
    -- (walk.sql)
    EXIT WHEN turn_ = 2;
    SELECT id, waiting INTO own_, waiting_ FROM {schema}.dibs_claims
      WHERE name = name_ AND ticket = token_ AND ticket <= last_;
    EXIT WHEN NOT FOUND;
    leavers_ := ARRAY[own_];
    INSERT INTO {schema}.dibs_tombs VALUES (own_, now_ + waiting_) ON CONFLICT DO NOTHING;
  END LOOP;
  RETURN concat_ws(' ', now_, floor_, (own_ IS NOT NULL)::int);
END $dibs$;

CREATE OR REPLACE FUNCTION {schema}.dibs_2_revoke(name_ text, since_ bigint, token_ bigint)
RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
BEGIN
  -- (begin.sql)
  -- (since.sql)
  -- (walk.sql)
  UPDATE {schema}.dibs_claims SET revoked = true WHERE name = name_ AND ticket = token_ AND ticket <= last_;
  RETURN concat_ws(' ', now_, floor_, FOUND::int);
END $dibs$;

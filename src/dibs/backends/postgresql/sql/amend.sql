-- amend: make one's own claim lighter; claims that fit beside it now are told.
--
-- Gives  now floor
-- Effect Idempotent; a claim that is as light already, or gone, stays as it is.
-- Cost   as the walk.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_amend(name_ text, since_ bigint, id_ bytea, weight_ bigint)
RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
BEGIN
  -- (begin.sql)
  -- (since.sql)
  SELECT ticket, weight INTO amended_, weighed_ FROM {schema}.dibs_claims
    WHERE name = name_ AND ticket >= since_ AND id = id_ AND weight > weight_;
  IF NOT FOUND THEN
    RETURN now_ || ' 0';
  END IF;
  UPDATE {schema}.dibs_claims SET weight = weight_ WHERE name = name_ AND ticket = amended_;
  -- (walk.sql)
  RETURN concat_ws(' ', now_, floor_);
END $dibs$;

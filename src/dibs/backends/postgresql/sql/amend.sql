-- amend: lower the weight of a claim, and tell the claims that fit now.
--
-- Gives  now floor
-- Effect Idempotent. A claim that is light enough or gone does not change.
-- Cost   The walk.

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

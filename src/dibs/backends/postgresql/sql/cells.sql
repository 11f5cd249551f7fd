-- put: change a value if it still has the expected version.
--
-- Gives  now v                                           void: the request came too late
--        now version done                                done 0: the value has this version instead
-- Effect Tells the watchers. Until `by_`, a repeated request with the same id reports the first success.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_put(
  space_ text, name_ text, value_ bytea, version_ bigint, id_ bytea, by_ bigint, again_ boolean
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  now_ bigint;
  there_ bigint;
BEGIN
  -- (begin.sql)
  IF now_ > by_ THEN
    RETURN now_ || ' v';
  END IF;
  IF again_ THEN
    SELECT version INTO there_ FROM {schema}.dibs_writes WHERE id = id_;
    IF FOUND THEN
      RETURN concat_ws(' ', now_, there_, 1);
    END IF;
  END IF;
  SELECT version INTO there_ FROM {schema}.dibs_cells WHERE space = space_ AND name = name_;
  IF coalesce(there_, 0) <> version_ THEN
    RETURN concat_ws(' ', now_, coalesce(there_, 0), 0);
  END IF;
  IF there_ IS NULL THEN
    INSERT INTO {schema}.dibs_cells VALUES (space_, name_, value_, 1);
  ELSE
    UPDATE {schema}.dibs_cells SET value = value_, version = version_ + 1 WHERE space = space_ AND name = name_;
  END IF;
  IF now_ % 256 = 0 THEN
    PERFORM {schema}.dibs_2_sweep();
  END IF;
  INSERT INTO {schema}.dibs_writes VALUES (id_, version_ + 1, by_);
  PERFORM {schema}.dibs_2_tell(space_, name_);
  -- (durable.sql)
  RETURN concat_ws(' ', now_, version_ + 1, 1);
END $dibs$;

-- watch: read the version of a value. If it is the known one, the client gets a message about the next change.
--
-- Gives  now version

CREATE OR REPLACE FUNCTION {schema}.dibs_2_watch(
  space_ text, name_ text, version_ bigint, key_ bytea, client_ bytea, patience_ bigint
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  now_ bigint;
  there_ bigint;
BEGIN
  -- (begin.sql)
  SELECT version INTO there_ FROM {schema}.dibs_cells WHERE space = space_ AND name = name_;
  IF coalesce(there_, 0) = version_ AND client_ <> '' THEN
    DELETE FROM {schema}.dibs_watchers WHERE space = space_ AND name = name_ AND until < now_;
    INSERT INTO {schema}.dibs_watchers VALUES (space_, name_, key_, client_, now_ + patience_)
      ON CONFLICT (space, name, key) DO UPDATE SET until = now_ + patience_;
  END IF;
  RETURN concat_ws(' ', now_, coalesce(there_, 0));
END $dibs$;

-- admit: compare a token with the highest one that a fence has admitted, and record a higher one.
--
-- Gives  now highest                                     the highest exclusive token before; "-": the record is damaged
-- Effect A higher exclusive token replaces the record. Tokens of other stores have up to 20 digits.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_admit(name_ text, token_ numeric, shared_ boolean)
RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  space_ CONSTANT text := 'fence';
  now_ bigint;
  value_ text;
  version_ bigint;
BEGIN
  -- (begin.sql)
  SELECT encode(value, 'escape'), version INTO value_, version_ FROM {schema}.dibs_cells
    WHERE space = space_ AND name = name_;
  IF value_ !~ '^[0-9]{1,20}$' THEN
    RETURN now_ || ' -';
  END IF;
  IF NOT shared_ AND (value_ IS NULL OR token_ > value_::numeric) THEN
    INSERT INTO {schema}.dibs_cells VALUES (space_, name_, convert_to(token_::text, 'UTF8'), 1)
      ON CONFLICT (space, name) DO UPDATE SET value = excluded.value, version = version_ + 1;
    -- (durable.sql)
  END IF;
  RETURN concat_ws(' ', now_, coalesce(value_, '0'));
END $dibs$;

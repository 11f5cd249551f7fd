-- renew: extend many claims, each by its lease if it holds, else by its waiting lease, and report their standing.
--
-- Gives  now answers                                     "ticket:holds:left:next:revoked" for each, or "-" if it is gone;
--                                                        separated by commas
-- Effect Locks the rows of the claims in the order of (name, ticket), and waits for no name's lock. An old snapshot can
--        delay a grant but never invent one. If a claim in front has expired, the walk runs, unless another session has
--        the name's lock. Never revives a claim. Without `extends_` nothing is extended.
-- Cost   The walk of each name, and one row for each claim.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_renew(
  names_ text[], sinces_ bigint[], tickets_ bigint[], ids_ bytea[], extends_ boolean
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
  c record;
  r record;
  name_ text;
  since_ bigint;
  expired_ boolean;
  found_ text[];
BEGIN
  -- (guard.sql)
  -- (durable.sql)
  now_ := {clock};
  found_ := array_fill('-'::text, ARRAY[cardinality(names_)]);
  FOR c IN SELECT * FROM unnest(names_, sinces_, tickets_, ids_) WITH ORDINALITY AS t (name, since, ticket, id, at)
           ORDER BY name COLLATE "C", ticket LOOP
    IF name_ IS DISTINCT FROM c.name THEN
      name_ := c.name; since_ := c.since; used_ := 0; last_ := 0; next_ := 0; expired_ := false;
      -- (since.sql)
      FOR w IN SELECT ticket, capacity, weight, until FROM {schema}.dibs_claims
               WHERE name = name_ AND ticket >= since_ ORDER BY ticket LOOP
        expired_ := expired_ OR w.until <= now_;
        next_ := CASE next_ WHEN 0 THEN w.until ELSE least(next_, w.until) END;
        EXIT WHEN used_ + w.weight > w.capacity;
        used_ := used_ + w.weight;
        last_ := w.ticket;
      END LOOP;
      IF expired_ THEN
        IF pg_try_advisory_xact_lock({schema}.dibs_2_key(space_, name_)) THEN
          -- (walk.sql)
        ELSE
          next_ := now_ + 50000;
        END IF;
      END IF;
    END IF;
    IF NOT extends_ THEN
      SELECT ticket, until, revoked INTO r FROM {schema}.dibs_claims
        WHERE name = name_ AND ticket >= since_ AND (c.ticket = 0 OR ticket = c.ticket) AND id = c.id AND until > now_;
    ELSE
      UPDATE {schema}.dibs_claims SET
        until = greatest(least(until, now_ + lease), now_ + CASE WHEN ticket <= last_ THEN lease ELSE waiting END),
        held = CASE WHEN ticket <= last_ THEN coalesce(held, now_) ELSE held END
        WHERE name = name_ AND ticket >= since_ AND (c.ticket = 0 OR ticket = c.ticket) AND id = c.id AND until > now_
        RETURNING ticket, until, revoked INTO r;
    END IF;
    IF FOUND THEN
      found_[c.at] := concat_ws(':', r.ticket, (r.ticket <= last_)::int, r.until - now_, next_ - now_, r.revoked::int);
    END IF;
  END LOOP;
  RETURN now_ || ' ' || array_to_string(found_, ',');
END $dibs$;

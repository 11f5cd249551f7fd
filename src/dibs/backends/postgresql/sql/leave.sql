-- leave: remove a claim, and tell the claims that hold now.
--
-- Gives  now floor stood                                 stood 0: the claim was not there
-- Effect Idempotent. After an unanswered join it leaves a tombstone until `by_`, so a late copy of that join does
--        nothing. The commit does not wait for the disk: after a crash the successor may wait until the lease ends. One
--        call in 4096 also sweeps.
-- Cost   A claim that is alone: one statement. A claim whose successor takes all: three. Else the walk.
--        `store_`: as for `join`.

CREATE OR REPLACE FUNCTION {schema}.dibs_2_leave(
  name_ text, since_ bigint, id_ bytea, ticket_ bigint, answered_ boolean, by_ bigint, store_ text
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
  done_ text;
BEGIN
  -- (begin.sql)
  done_ := set_config('synchronous_commit', 'off', true);
  IF now_ % 4096 = 0 THEN
    done_ := {schema}.dibs_2_sweep();
  END IF;
  -- The claim is alone, so no message is needed.
  IF since_ > 0 AND ticket_ > 0 AND answered_ THEN
    DELETE FROM {schema}.dibs_claims WHERE name = name_ AND ticket = ticket_ AND id = id_ AND kind <> 'election'
      AND EXISTS (SELECT FROM {schema}.dibs_store WHERE id = store_ AND claims = '{schema}.dibs_claims'::regclass)
      AND NOT EXISTS (SELECT FROM {schema}.dibs_claims WHERE name = name_ AND ticket >= since_ AND ticket <> ticket_)
      AND NOT EXISTS (SELECT FROM {schema}.dibs_outsiders WHERE name = name_);
    IF FOUND THEN
      RETURN concat_ws(' ', now_, greatest(since_, ticket_), 1);
    END IF;
    -- The claim is the only holder, and its successor takes all, so no other claim changes.
    SELECT ticket, id, client INTO w FROM {schema}.dibs_claims
      WHERE name = name_ AND ticket >= since_ AND ticket <> ticket_ ORDER BY ticket LIMIT 1;
    DELETE FROM {schema}.dibs_claims AS c USING {schema}.dibs_claims AS n
      WHERE c.name = name_ AND c.ticket = ticket_ AND c.id = id_ AND c.weight = c.capacity AND c.kind <> 'election'
        AND n.name = name_ AND n.ticket = w.ticket AND n.ticket > ticket_ AND n.weight = n.capacity
        AND n.until > now_ AND n.until <= now_ + n.lease
        AND EXISTS (SELECT FROM {schema}.dibs_store WHERE id = store_ AND claims = '{schema}.dibs_claims'::regclass);
    IF FOUND THEN
      IF w.client <> '' THEN
        PERFORM {schema}.dibs_2_send(w.client, w.id, 'y');
      END IF;
      RETURN concat_ws(' ', now_, w.ticket, 1);
    END IF;
  END IF;
  -- (store.sql)
  -- (since.sql)
  own_ := id_;
  leavers_ := ARRAY[id_];
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
    INSERT INTO {schema}.dibs_tombs VALUES (id_, by_) ON CONFLICT DO NOTHING;
  END IF;
  RETURN concat_ws(' ', now_, CASE floor_ WHEN 0 THEN greatest(since_, ticket_) ELSE floor_ END, stood_::int);
END $dibs$;

-- leave_all: remove many claims, as `leave` does.
--
-- Gives  now 1
-- Effect `lefts_`: microseconds that each tombstone lasts; 0: none. All claims of a name leave in one walk, so a
--        leaving claim gets no message. Names are locked in order, as `renew` locks rows.
-- Cost   A walk of each name; of the whole queue if one of its claims does not hold.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_leave_all(
  names_ text[], sinces_ bigint[], ids_ bytea[], lefts_ bigint[]
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
  n record;
  name_ text;
  since_ bigint;
BEGIN
  -- (guard.sql)
  PERFORM set_config('synchronous_commit', 'off', true);
  FOR n IN SELECT name COLLATE "C" AS name, max(since) AS since, array_agg(id) AS ids
           FROM unnest(names_, sinces_, ids_) AS t (name, since, id) GROUP BY 1 ORDER BY 1 LOOP
    name_ := n.name; since_ := n.since; leavers_ := n.ids;
    -- (lock.sql)
    -- (since.sql)
    -- (walk.sql)
    DELETE FROM {schema}.dibs_claims WHERE name = name_ AND ticket >= since_ AND id = ANY (leavers_);
    DELETE FROM {schema}.dibs_outsiders WHERE name = name_ AND id = ANY (leavers_);
  END LOOP;
  INSERT INTO {schema}.dibs_tombs SELECT id, now_ + lasts FROM unnest(ids_, lefts_) AS t (id, lasts) WHERE lasts > 0
    ON CONFLICT DO NOTHING;
  IF now_ % 256 = 0 THEN
    PERFORM {schema}.dibs_2_sweep();
  END IF;
  RETURN now_ || ' 1';
END $dibs$;

-- join: enter the queue, or hold, or neither.
--
-- Gives  now floor v                                     void: too late, given up before, or expired
--        now floor s ticket holds left next revoked      the standing; ticket 0: not in the queue, as asked
--        now 0 f                                         `since_` is wrong
--        now 0 r                                         tickets were set back: everything that clients know is wrong
--        now floor m capacity kind                       the queue has another kind or size; kind "session": the name is
--                                                        held by a connection (see session.sql)
-- Effect A claim that fits holds. Another one waits in the queue ("line"), outside of it ("outside": the next leave
--        tells it), or nowhere. A repeated id only reports its standing; nothing is moved or extended.
-- Cost   An empty queue: one statement. Else the walk, one read of tombstones, one row.
--        `since_`: no ticket below it is in this queue. `seen_`: the highest ticket that this client was given.
--        `store_`: the id of the store that the client knows; empty: none yet, or already compared (see `_verb`).

CREATE OR REPLACE FUNCTION {schema}.dibs_2_join(
  name_ text, since_ bigint, id_ bytea, client_ bytea, kind_ text, capacity_ bigint, weight_ bigint, lease_ bigint,
  waiting_ bigint, place_ text, about_ text, session_ bigint, by_ bigint, seen_ bigint, store_ text
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  -- (walk_declare.sql)
  r record;
  ticket_ bigint;
  holds_ boolean;
  left_ bigint;
  above_ bigint;
  pages_ bigint;
BEGIN
  -- (begin.sql)
  -- (durable.sql)
  -- An empty queue. In any unusual case a condition fails, and the general part decides: an expired claim, a first use
  -- by this client, another store, a tombstone, a session, a sequence that was set back.
  IF since_ > 0 AND place_ <> 'outside' AND kind_ <> 'election' AND weight_ <= capacity_ AND now_ <= by_ THEN
    INSERT INTO {schema}.dibs_claims
      SELECT name_, t, id_, client_, kind_, capacity_, weight_, lease_, waiting_, now_ + lease_, now_, now_, false, about_
      FROM (
        SELECT nextval('{schema}.dibs_tickets') AS t FROM {schema}.dibs_store
        WHERE id = store_ AND claims = '{schema}.dibs_claims'::regclass
          AND NOT EXISTS (SELECT FROM {schema}.dibs_claims WHERE name = name_ AND ticket >= since_)
          AND NOT EXISTS (SELECT FROM {schema}.dibs_tombs WHERE id = id_)
          AND pg_try_advisory_xact_lock_shared(session_)
        OFFSET 0
      ) AS next
      WHERE t > greatest(since_, seen_) AND t >= now_ - 100000
      RETURNING ticket INTO ticket_;
    IF FOUND THEN
      IF ticket_ % 1024 = 0 THEN
        PERFORM {schema}.dibs_2_begins(name_, ticket_);
      END IF;
      RETURN concat_ws(' ', now_, ticket_, 's', ticket_, 1, lease_, -1, 0);
    END IF;
  END IF;
  -- (store.sql)
  IF now_ > by_ OR EXISTS (SELECT FROM {schema}.dibs_tombs WHERE id = id_) THEN
    RETURN now_ || ' 0 v';
  END IF;
  own_ := id_;
  IF since_ = 0 THEN
    pages_ := pg_stat_get_xact_blocks_fetched('{schema}.dibs_claims'::regclass);
    -- (since.sql)
  END IF;
  -- (walk.sql)
  IF pages_ IS NOT NULL THEN
    pages_ := pg_stat_get_xact_blocks_fetched('{schema}.dibs_claims'::regclass) - pages_;
    IF pages_ > 64 AND floor_ > 0 THEN
      PERFORM {schema}.dibs_2_begins(name_, floor_);
    END IF;
  END IF;
  IF stood_ THEN
    RETURN now_ || ' 0 v';
  END IF;
  IF floor_ > 0 THEN
    SELECT ticket, until, revoked INTO r FROM {schema}.dibs_claims
      WHERE name = name_ AND ticket >= since_ AND id = id_;
    IF FOUND AND r.until <= now_ THEN
      RETURN now_ || ' 0 v';
    ELSIF FOUND THEN
      RETURN concat_ws(' ', now_, floor_, 's', r.ticket, (r.ticket <= last_)::int, r.until - now_, next_ - now_,
                       r.revoked::int);
    END IF;
  END IF;
  IF floor_ > 0 AND (first_kind_ <> kind_ OR first_capacity_ <> capacity_) THEN
    RETURN concat_ws(' ', now_, floor_, 'm', first_capacity_, first_kind_);
  END IF;
  IF floor_ = 0 AND NOT pg_try_advisory_xact_lock_shared(session_) THEN
    RETURN concat_ws(' ', now_, 0, 'm', 1, 'session');
  END IF;
  holds_ := NOT blocked_ AND used_ + weight_ <= capacity_;
  IF NOT holds_ AND place_ <> 'line' THEN
    IF place_ = 'outside' AND client_ <> '' THEN
      INSERT INTO {schema}.dibs_outsiders VALUES (name_, id_, client_, now_ + waiting_)
        ON CONFLICT (name, id) DO UPDATE SET client = client_, until = now_ + waiting_;
    END IF;
    RETURN concat_ws(' ', now_, floor_, 's 0 0 0', next_ - now_, 0);
  END IF;
  IF place_ = 'outside' THEN
    DELETE FROM {schema}.dibs_outsiders WHERE name = name_ AND id = id_;
  END IF;
  -- (ticket.sql)
  IF ticket_ <= seen_ THEN
    -- The sequence was set back. Raise it, and give the store a new id, because all that clients know is wrong.
    PERFORM {schema}.dibs_2_raise(seen_);
    UPDATE {schema}.dibs_store SET id = {fresh};
    DELETE FROM {schema}.dibs_floors;
    RETURN now_ || ' 0 r';
  ELSIF ticket_ <= since_ THEN
    DELETE FROM {schema}.dibs_floors WHERE name = name_;
    RETURN now_ || ' 0 f';
  ELSIF floor_ > 0 THEN
    -- A new claim must not get a ticket below an existing one. Tickets decades ahead are not ours, and are ignored.
    SELECT max(ticket) INTO above_ FROM {schema}.dibs_claims
      WHERE name = name_ AND ticket >= ticket_ AND ticket < now_ + 1000000000000000;
    IF above_ IS NOT NULL THEN
      PERFORM {schema}.dibs_2_raise(above_);
      ticket_ := nextval('{schema}.dibs_tickets');
    END IF;
  END IF;
  IF (pages_ > 64 AND floor_ = 0) OR (pages_ IS NULL AND ticket_ % 1024 = 0 AND floor_ < ticket_) THEN
    PERFORM {schema}.dibs_2_begins(name_, CASE floor_ WHEN 0 THEN ticket_ ELSE floor_ END);
  END IF;
  left_ := CASE WHEN holds_ THEN lease_ ELSE waiting_ END;
  INSERT INTO {schema}.dibs_claims VALUES (name_, ticket_, id_, client_, kind_, capacity_, weight_, lease_, waiting_,
    now_ + left_, now_, CASE WHEN holds_ THEN now_ END, false, about_);
  IF holds_ AND kind_ = 'election' THEN
    PERFORM {schema}.dibs_2_tell('line', name_);
  END IF;
  RETURN concat_ws(' ', now_, CASE floor_ WHEN 0 THEN ticket_ ELSE floor_ END, 's', ticket_, holds_::int, left_,
                   next_ - now_, 0);
END $dibs$;

-- Session mode: a connection's session holds a name as an advisory lock on its key, and waiters queue in the server.
-- Inside a transaction of the caller (within), that transaction locks the same key.
--
-- There are two locks. K1 is the lock of the name, which every routine of lease mode takes first (begin.sql), for the
-- length of the routine. K2 is the key of the session: 64 bits of SHA-256 over schema and name, from the client. The
-- holder of K1 only tries K2, and the holder of K2 may wait for K1, so there is no deadlock.
--
-- Leases and sessions exclude each other:
-- - A join of lease mode finds an empty queue under K1, and tries K2 (shared) until its claim is committed. If a
--   session has K2 or waits for it, the join is refused.
-- - A session looks for claims after it has K2, in a later statement, and releases K2 if there are any. So if the join
--   had K2 first, the session finds the claim or does not get K2.
-- - A session that does not get K2 tries again under K1, where no join runs. If that fails, another session has K2, and
--   this one waits. Between two sessions a name is never free for a join: the server passes K2 on in one step.
--
-- The row of a key names its user. It is written under K2, once, and again for another kind or size, or when another
-- name with the same key takes the free key. It is committed before the reply. A session that is refused because of it
-- asks again: the new holder may not have written it yet.

-- claimed: whether the queue has claims with a lease. A row that is being renewed is waited for, and counts.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_claimed(name_ text, now_ bigint) RETURNS boolean
LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  since_ bigint := 0;
BEGIN
  -- (since.sql)
  DELETE FROM {schema}.dibs_claims WHERE name = name_ AND ticket >= since_ AND until <= now_;
  RETURN EXISTS (SELECT FROM {schema}.dibs_claims WHERE name = name_ AND ticket >= since_);
END $dibs$;

-- locks: the sessions that have a key or wait for it, in this database. `since` needs PostgreSQL 14.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_locks() RETURNS TABLE (
  pid integer, key bigint, granted boolean, exclusive boolean, since text
) LANGUAGE sql {path} AS $dibs$
  SELECT pid, classid::bigint << 32 | objid::bigint, bool_and(granted), bool_or(mode = 'ExclusiveLock'),
    min(to_jsonb(pg_locks) ->> 'waitstart')
  FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  GROUP BY 1, 2
$dibs$;

-- take: take the key if it is free, or wait for it with `waits_`. All reads come after the lock, in later statements
-- with their own snapshots.
--
-- Gives  now s token                                     this session holds
--        now b                                           another session holds
--        now m capacity kind                             in use with another kind or size; kind "lease": by claims
--        now x name                                      in use by another name with the same key
-- Effect The key is released with every reply but s. After an error the session may still have it.
-- Cost   If the row of the key is right and there is no lease: one read by two keys.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_take(
  name_ text, key_ bigint, kind_ text, capacity_ bigint, shared_ boolean, about_ text, waits_ boolean
) RETURNS text LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  space_ CONSTANT text := 'line';
  now_ bigint;
  ticket_ bigint;
  k record;
  has_ boolean := true;
  ours_ boolean;
  no_ text;
  done_ text;
BEGIN
  -- The connection has set its search_path, isolation and planner options (see session_connection.py).
  -- First remove the token of the session's last lock.
  done_ := set_config('application_name', CASE WHEN waits_ THEN
    concat_ws(' ', 'dibs', 0, {clock} / 1000, to_hex(key_ & 65535), about_) ELSE 'dibs' END, false);
  IF waits_ THEN
    IF shared_ THEN
      PERFORM pg_advisory_lock_shared(key_);
    ELSE
      PERFORM pg_advisory_lock(key_);
    END IF;
  ELSIF shared_ THEN
    has_ := pg_try_advisory_lock_shared(key_);
  ELSE
    has_ := pg_try_advisory_lock(key_);
  END IF;
  IF has_ THEN
    SELECT {clock}, nextval('{schema}.dibs_tickets') INTO now_, ticket_ FROM {schema}.dibs_keys
      WHERE key = key_ AND name = name_ AND kind = kind_ AND capacity = capacity_ AND kind_ <> 'election'
        AND NOT EXISTS (SELECT FROM {schema}.dibs_claims WHERE name = name_);
    IF ticket_ >= now_ - 100000 THEN
      done_ := set_config('application_name',
        concat_ws(' ', 'dibs', ticket_, (now_ - ticket_) / 1000, to_hex(key_ & 65535), about_), false);
      RETURN concat_ws(' ', now_, 's', ticket_);
    END IF;
    now_ := {clock};
  ELSE
    -- (begin.sql)
    has_ := CASE WHEN shared_ THEN pg_try_advisory_lock_shared(key_) ELSE pg_try_advisory_lock(key_) END;
  END IF;
  SELECT name, kind, capacity, EXISTS (SELECT FROM {schema}.dibs_claims WHERE name = name_) AS claims INTO k
    FROM (SELECT) AS one LEFT JOIN {schema}.dibs_keys ON key = key_;
  ours_ := k.name = name_ AND k.kind = kind_ AND k.capacity = capacity_;
  IF k.claims AND {schema}.dibs_2_claimed(name_, now_) THEN
    no_ := 'm 1 lease';
  ELSIF NOT ours_ AND (NOT has_ OR (shared_ AND EXISTS (
      SELECT FROM {schema}.dibs_2_locks() AS l WHERE l.key = key_ AND l.pid <> pg_backend_pid()))) THEN
    no_ := CASE WHEN k.name <> name_ THEN 'x ' || k.name ELSE concat_ws(' ', 'm', k.capacity, k.kind) END;
  ELSIF NOT has_ THEN
    no_ := 'b';
  END IF;
  IF no_ IS NOT NULL THEN
    IF has_ AND shared_ THEN
      PERFORM pg_advisory_unlock_shared(key_);
    ELSIF has_ THEN
      PERFORM pg_advisory_unlock(key_);
    END IF;
    RETURN now_ || ' ' || no_;
  END IF;
  -- (durable.sql)
  IF ours_ IS NOT TRUE THEN
    INSERT INTO {schema}.dibs_keys VALUES (key_, name_, kind_, capacity_, '{}', 0, 0, '')
      ON CONFLICT (key) DO UPDATE SET name = name_, kind = kind_, capacity = capacity_, revoked = '{}', pid = 0;
  END IF;
  -- (ticket.sql)
  done_ := set_config('application_name',
    concat_ws(' ', 'dibs', ticket_, (now_ - ticket_) / 1000, to_hex(key_ & 65535), about_), false);
  IF kind_ = 'election' THEN
    PERFORM {schema}.dibs_2_tell('line', name_);
  END IF;
  RETURN concat_ws(' ', now_, 's', ticket_);
END $dibs$;

-- lighten: change the lock from exclusive to shared without releasing it in between.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_lighten(key_ bigint) RETURNS text LANGUAGE plpgsql {path} AS $dibs$
BEGIN
  PERFORM pg_advisory_lock_shared(key_);
  PERFORM pg_advisory_unlock(key_);
  RETURN {clock} || ' 1';
END $dibs$;

-- resign: release the key of an election, and tell its followers.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_resign(name_ text, key_ bigint) RETURNS text LANGUAGE plpgsql {path} AS $dibs$
DECLARE
  had_ CONSTANT boolean := pg_advisory_unlock(key_);
BEGIN
  PERFORM {schema}.dibs_2_tell('line', name_);
  RETURN {clock} || ' ' || had_::int;
END $dibs$;

-- seen: the holders and waiters of `name_`, or of all names that begin with `prefix_`.
--
-- Gives  Rows in the order of the queues: holders by token, then waiters as they came (in any order before PostgreSQL
--        14). A session of ours has in its application_name: its token, the milliseconds from the token to the grant
--        (or to the wait, if the token is 0), the end of its key, and its owner. That is read after the locks, so a
--        session that has moved on to another key is recognised. A session with its key and no token does not hold yet.
--        A transaction is described by the row of the key. The short lock of a join is not shown.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_seen(name_ text, prefix_ text, after_ text) RETURNS TABLE (
  name text, kind text, capacity bigint, granted boolean, exclusive boolean, pid integer, token bigint, said text,
  since bigint, about text, login text, quiet bigint
) LANGUAGE sql {path} AS $dibs$
  SELECT k.name, k.kind, k.capacity, l.granted, l.exclusive, l.pid, t.token, a.said[4],
    coalesce(t.token + a.said[2]::bigint * 1000, t.token),
    CASE WHEN a.said IS NULL AND k.pid = l.pid THEN k.about ELSE '' END, a.login,
    (date_part('epoch', clock_timestamp() - a.state_change) * 1000000)::bigint
  FROM {schema}.dibs_2_locks() AS l
  JOIN {schema}.dibs_keys AS k ON k.key = l.key
  LEFT JOIN LATERAL (
    SELECT pg_get_userbyid(usesysid) AS login, state_change, regexp_match(
      application_name, '^dibs ([0-9]{1,18}) (-?[0-9]{1,15}) ([0-9a-f]{1,4}) (.*)$') AS said
    FROM pg_stat_get_activity(l.pid)
  ) AS a ON true
  CROSS JOIN LATERAL (
    SELECT CASE WHEN a.said IS NOT NULL THEN a.said[1]::bigint WHEN k.pid = l.pid THEN k.token ELSE 0 END AS token
  ) AS t
  WHERE CASE WHEN name_ <> '' THEN k.name = name_ ELSE starts_with(k.name, prefix_) AND k.name > after_ END
    AND CASE WHEN a.said IS NULL THEN k.pid = l.pid OR NOT l.granted
        ELSE a.said[3] = to_hex(k.key & 65535) AND l.granted = (t.token > 0) END
  ORDER BY k.name, l.granted DESC, CASE WHEN l.granted THEN t.token END, l.since, l.pid
$dibs$;

-- ask: ask the holder with this token to release; its next renewal tells it.
--
-- Gives  now done                                        done 0: no holder has that token
CREATE OR REPLACE FUNCTION {schema}.dibs_2_ask(name_ text, key_ bigint, token_ bigint) RETURNS text
LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  space_ CONSTANT text := 'line';
  now_ bigint;
  holding_ bigint[];
BEGIN
  -- (begin.sql)
  holding_ := ARRAY(SELECT token FROM {schema}.dibs_2_seen(name_, '', '') WHERE granted);
  IF NOT token_ = ANY (holding_) OR token_ = 0 THEN
    RETURN now_ || ' 0';
  END IF;
  UPDATE {schema}.dibs_keys SET revoked = ARRAY(
      SELECT DISTINCT one FROM unnest(revoked || token_) AS one WHERE one = ANY (holding_)
    ) WHERE key = key_ AND name = name_;
  RETURN now_ || ' 1';
END $dibs$;

-- oust: end the session that holds with this token, by itself or in a transaction.
--
-- Gives  now done                                        done 0: no holder has that token
-- Effect Waits up to a second for the session to end. In the microseconds between the check and the end, the session
--        could release and take another token; then its client sees the loss.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_oust(name_ text, token_ bigint) RETURNS text LANGUAGE plpgsql {path} AS $dibs$
#variable_conflict use_column
DECLARE
  pid_ integer;
BEGIN
  SELECT pid INTO pid_ FROM {schema}.dibs_2_seen(name_, '', '') WHERE granted AND token = token_ AND token_ > 0;
  IF FOUND THEN
    PERFORM pg_terminate_backend(pid_);
    FOR turn_ IN 1..200 LOOP
      EXIT WHEN NOT EXISTS (SELECT FROM {schema}.dibs_2_locks() AS l WHERE l.pid = pid_);
      PERFORM pg_sleep(0.005);
    END LOOP;
  END IF;
  RETURN {clock} || ' ' || (pid_ IS NOT NULL)::int;
END $dibs$;

-- within: check from outside whether the transaction in the session `pid_` has the key.
--
-- Gives  now s token                                     it has the key, and there is no lease
--        now b                                           another session has the key
--        now f                                           nobody has the key
--        now m 1 lease                                   the queue has claims with a lease
-- Effect With s the row of the key describes the transaction, for inspection.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_within(name_ text, key_ bigint, pid_ integer, about_ text) RETURNS text
LANGUAGE plpgsql AS $dibs$
#variable_conflict use_column
DECLARE
  space_ CONSTANT text := 'line';
  now_ bigint;
  ticket_ bigint;
BEGIN
  -- (begin.sql)
  IF {schema}.dibs_2_claimed(name_, now_) THEN
    RETURN now_ || ' m 1 lease';
  ELSIF NOT EXISTS (SELECT FROM {schema}.dibs_2_locks() AS l WHERE l.key = key_ AND l.pid = pid_ AND l.granted) THEN
    RETURN now_ || CASE WHEN pg_try_advisory_xact_lock_shared(key_) THEN ' f' ELSE ' b' END;
  END IF;
  -- (durable.sql)
  -- (ticket.sql)
  INSERT INTO {schema}.dibs_keys VALUES (key_, name_, 'mutex', 1, '{}', pid_, ticket_, about_)
    ON CONFLICT (key) DO UPDATE SET name = name_, kind = 'mutex', capacity = 1, revoked = '{}', pid = pid_,
      token = ticket_, about = about_;
  RETURN concat_ws(' ', now_, 's', ticket_);
END $dibs$;

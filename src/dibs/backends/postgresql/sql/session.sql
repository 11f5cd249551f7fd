-- Session mode: a name is held by the session of a connection, as an advisory lock on its key, and the server's own queue
-- is its queue. Inside a transaction of the caller's own (within) the same key is locked by that transaction.
--
-- Two locks. K1 is the lock of the name, which every verb of lease mode takes first (begin.sql), for the length of the
-- verb. K2 is the key of the session: 64 bits of SHA-256 over schema and name, made by the client. The holder of K1
-- only ever tries K2, and the holder of K2 may wait for K1: there is no circle.
--
-- Claims with a lease, and sessions, exclude each other. A join finds an empty queue under K1 and tries K2, shared, which
-- it has until its claim is committed: if somebody has K2 or waits for it, the join is refused. A session looks for
-- claims once it has K2, in a later statement, and lets go of K2 if there are any. So either the session had K2 first,
-- and the join is refused; or the join had it first, and the session finds the claim, or does not get K2 yet. A session
-- that does not get K2 tries again under K1, where no join is under way: then another session has it, and is waited for.
-- A name between two sessions is never free for a join: the server gives K2 to the next in its queue in the same step.
--
-- The row of a key says whose it is. It is written under K2, once, and again when the name has another kind or size, or
-- when another name meets in the key while the key is free. It is committed before the answer goes out. A session
-- that is refused because of it asks again: the one that has just taken the key may not have written it yet.

-- claimed: whether claims with a lease stand there. One that is renewed at this moment is waited for, and then stands.
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

-- locks: the sessions that have a key or wait for it, in this database. Since when is known from PostgreSQL 14 on.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_locks() RETURNS TABLE (
  pid integer, key bigint, granted boolean, exclusive boolean, since text
) LANGUAGE sql {path} AS $dibs$
  SELECT pid, classid::bigint << 32 | objid::bigint, bool_and(granted), bool_or(mode = 'ExclusiveLock'),
    min(to_jsonb(pg_locks) ->> 'waitstart')
  FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
  GROUP BY 1, 2
$dibs$;

-- take: get the key, if it is free; with `waits_` once its turn has come. Everything is read behind the lock, in a later
-- statement with a snapshot of its own.
--
-- Gives  now s token                                     it is had
--        now b                                           somebody else has it
--        now m capacity kind                             it is busy as another kind or size; kind "lease": by claims
--        now x name                                      it is busy under another name that has the same key
-- Effect The key is given back with every answer but s; an error may leave it with the session.
-- Cost   The usual case, a key whose row is as it should be and no lease: one read by two keys.
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
  -- The connection has its search_path, isolation and plans set for good (see session_connection.py).
  -- First: the token that the session says it has is that of its last lock.
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
  IF current_setting('synchronous_commit') = 'off' THEN
    done_ := set_config('synchronous_commit', 'on', true);
  END IF;
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

-- lighten: from exclusive to shared; nobody comes between.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_lighten(key_ bigint) RETURNS text LANGUAGE plpgsql {path} AS $dibs$
BEGIN
  PERFORM pg_advisory_lock_shared(key_);
  PERFORM pg_advisory_unlock(key_);
  RETURN {clock} || ' 1';
END $dibs$;

-- resign: give the key of an election back, and tell its followers.
CREATE OR REPLACE FUNCTION {schema}.dibs_2_resign(name_ text, key_ bigint) RETURNS text LANGUAGE plpgsql {path} AS $dibs$
DECLARE
  had_ CONSTANT boolean := pg_advisory_unlock(key_);
BEGIN
  PERFORM {schema}.dibs_2_tell('line', name_);
  RETURN {clock} || ' ' || had_::int;
END $dibs$;

-- seen: the queues of the names that begin with `prefix_`, and of `name_`, if it is given, only that one.
--
-- Gives  rows in the order of the queues: those who hold by their tokens, those who wait as they came (before PostgreSQL
--        14 nobody knows that). A session of ours says in its application_name its token, how many milliseconds later it
--        came to hold (or to wait, if the token is 0), the end of its key, and who it is. It is read after the locks, so
--        that who has gone on to another key in between is told apart; who has its key and no token yet, does not hold
--        yet. Of a transaction the row says who it is, once it has the key. What a join has for a moment is not shown.
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

-- ask: request that the holder with this token lets go; it hears of that when it next renews.
--
-- Gives  now done                                        done: 0 if nobody holds with that token
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

-- oust: end the session that holds with this token, or the one whose transaction does.
--
-- Gives  now done                                        done: 0 if nobody holds with that token
-- Effect Waits a second for that session to be gone. Between the look and the end a session could give back, and take
--        again under another token: a matter of microseconds, and its client is told.
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

-- within: what a transaction of the caller's own, in the session `pid_`, has taken is looked at from outside.
--
-- Gives  now s token                                     it has the key, and nothing stands in its way
--        now b                                           it has not: somebody else has
--        now f                                           it has not, and nobody else has
--        now m 1 lease                                   claims stand there
-- Effect With s the row says whose the key is, for onlookers.
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
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'on', true);
  END IF;
  -- (ticket.sql)
  INSERT INTO {schema}.dibs_keys VALUES (key_, name_, 'mutex', 1, '{}', pid_, ticket_, about_)
    ON CONFLICT (key) DO UPDATE SET name = name_, kind = 'mutex', capacity = 1, revoked = '{}', pid = pid_,
      token = ticket_, about = about_;
  RETURN concat_ws(' ', now_, 's', ticket_);
END $dibs$;

-- join: stand in the queue, or hold, or neither.
--
-- Gives  words with blanks between them, bytes in hexadecimal: (now, what, ticket, holds, left, next, revoked, mine, kind, capacity)
--        holds 2: in the head. what 0: void, it came too late, was given up before, or has expired; 1: how it stands, ticket 0: it does not,
--        and is not to; 2: what is there is of another kind or size, or mode (kind
--        'session' or 'within'). `mine`: ids of this client that hold from now on. And, in a column of its own, which
--        store this is: see `Epoch` of answers.py.
-- Effect A claim that fits holds, one that does not waits: in the queue (place 0), outside (1), nowhere (2). The same id
--        again is told how it stands; nothing is moved or extended.
CREATE PROCEDURE dibs_2_join(
  IN p_name VARBINARY(2048), IN p_id BINARY(16), IN p_client BINARY(16), IN p_kind VARBINARY(64),
  IN p_capacity BIGINT, IN p_weight BIGINT, IN p_lease BIGINT, IN p_waiting BIGINT, IN p_place TINYINT,
  IN p_about BLOB, IN p_by BIGINT
)
SQL SECURITY INVOKER
verb: BEGIN
  DECLARE v_floor, v_top, v_ticket, v_own, v_last, v_least BIGINT UNSIGNED;
  DECLARE v_first BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_head VARBINARY(16);
  DECLARE v_special TINYINT;
  DECLARE v_outside, v_tombs, v_apart, v_now, v_used, v_capacity, v_until, v_left BIGINT;
  DECLARE v_next BIGINT DEFAULT -1;
  DECLARE v_kind VARBINARY(64);
  DECLARE v_key VARBINARY(64);
  DECLARE v_blocked, v_revoked TINYINT DEFAULT 0;
  DECLARE v_holds TINYINT DEFAULT p_weight <= p_capacity; -- 2: in the head
  DECLARE v_mine, v_wakes MEDIUMBLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  -- (lock.sql)
  IF v_head <> '' THEN
    CALL dibs_2_move(p_name);
    SET v_special = 1;
  END IF;
  IF v_now > p_by OR (v_tombs > v_now AND EXISTS (SELECT 1 FROM dibs_tombs WHERE id = p_id)) THEN
    COMMIT;
    SELECT CONCAT_WS(' ', v_now, 0), (SELECT id FROM dibs_store WHERE one = 1);
    LEAVE verb;
  END IF;
  IF v_special THEN
    IF v_top = 0 THEN -- the row is new: the one before was forgotten, or somebody removed it
      SELECT IFNULL(MAX(ticket), 0) INTO v_top FROM dibs_claims WHERE name = p_name;
    END IF;
    SELECT ticket INTO v_own FROM dibs_claims WHERE id = p_id AND name = p_name LIMIT 1;
    CALL dibs_2_settle(
      p_name, v_floor, v_outside, v_now, 0, p_client, v_mine, v_wakes,
      v_used, v_last, v_first, v_blocked, v_next, v_kind, v_capacity
    );
    SET v_next = IF(v_first = 0, -1, v_next - v_now);
    IF v_own IS NOT NULL THEN
      SELECT until - v_now, revoked INTO v_left, v_revoked FROM dibs_claims WHERE name = p_name AND ticket = v_own;
      IF v_left <= 0 THEN
        DELETE FROM dibs_claims WHERE name = p_name AND ticket = v_own;
      END IF;
      COMMIT;
      IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
      IF v_left > 0 THEN
        SELECT CONCAT_WS(' ', v_now, 1, v_own, v_own <= v_last, v_left, v_next, v_revoked, HEX(v_mine)),
          (SELECT id FROM dibs_store WHERE one = 1);
      ELSE
        SELECT CONCAT_WS(' ', v_now, 0, 0, 0, 0, 0, 0, HEX(v_mine)), (SELECT id FROM dibs_store WHERE one = 1);
      END IF;
      LEAVE verb;
    END IF;
    IF v_first > 0 AND (v_kind <> p_kind OR v_capacity <> p_capacity) THEN
      COMMIT;
      IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
      SELECT CONCAT_WS(' ', v_now, 2, 0, 0, 0, 0, 0, HEX(v_mine), HEX(v_kind), v_capacity),
        (SELECT id FROM dibs_store WHERE one = 1);
      LEAVE verb;
    END IF;
    SET v_holds = NOT v_blocked AND v_used + p_weight <= p_capacity;
  END IF;
  SET v_least = v_top + 1;
  IF NOT v_holds AND p_place > 0 THEN
    IF p_place = 1 THEN
      INSERT INTO dibs_watchers VALUES (p_id, 'outside', p_name, p_client, NULL, v_now + p_waiting)
        ON DUPLICATE KEY UPDATE told = NULL, until = v_now + p_waiting;
      IF v_outside < v_now + p_waiting THEN
        UPDATE dibs_queues SET outside = v_now + p_waiting, special = 1 WHERE name = p_name;
      END IF;
    END IF;
    COMMIT;
    IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
    SELECT CONCAT_WS(' ', v_now, 1, 0, 0, 0, v_next, 0, HEX(v_mine)), (SELECT id FROM dibs_store WHERE one = 1);
    LEAVE verb;
  END IF;
  IF v_apart AND v_first = 0 THEN
    CALL dibs_2_apart(p_name, v_apart, v_key, v_kind);
    IF v_key IS NULL THEN
      COMMIT;
      IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
      SELECT CONCAT_WS(' ', v_now, 2, 0, 0, 0, 0, 0, HEX(v_mine), HEX(v_kind), 1),
        (SELECT id FROM dibs_store WHERE one = 1);
      LEAVE verb;
    END IF;
  END IF;
  SET v_left = IF(v_holds, p_lease, p_waiting);
  IF v_apart THEN
    -- (ticket.sql)
    SET v_ticket = GREATEST(v_ticket, v_now);
  ELSE
    SET v_ticket = GREATEST(v_least, v_now);
  END IF;
  SET v_apart = IF(v_key IS NULL, v_apart, 0);
  IF v_holds AND v_first = 0 AND NOT v_apart AND v_outside <= v_now AND v_tombs <= v_now
    AND p_kind <> 'election' THEN
    UPDATE dibs_queues SET
      apart = 0, special = 0, ticket = v_ticket, id = p_id, client = p_client, kind = p_kind, capacity = p_capacity,
      weight = p_weight, lease = p_lease, waiting = p_waiting, until = v_now + p_lease, asked = v_now, revoked = 0,
      about = p_about
      WHERE name = p_name;
    SET v_holds = 2;
  ELSE
    UPDATE dibs_queues SET apart = v_apart, special = 1, ticket = v_ticket WHERE name = p_name;
    INSERT INTO dibs_claims (
      name, ticket, id, client, kind, capacity, weight, lease, waiting, until, asked, held, freed, revoked, about
    ) VALUES (
      p_name, v_ticket, p_id, p_client, p_kind, p_capacity, p_weight, p_lease, p_waiting, v_now + v_left, v_now,
      IF(v_holds, v_now, NULL), NULL, 0, p_about
    );
  END IF;
  IF p_place = 1 AND v_outside > v_now THEN
    DELETE FROM dibs_watchers WHERE id = p_id;
  END IF;
  IF v_holds AND p_kind = 'election' THEN
    CALL dibs_2_tell('line', p_name, 1000000, v_wakes);
  END IF;
  COMMIT;
  IF v_key IS NOT NULL THEN DO RELEASE_LOCK(v_key); END IF;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT CONCAT_WS(' ', v_now, 1, v_ticket, v_holds, v_left, IF(v_holds, -1, v_next), 0, HEX(v_mine)),
    (SELECT id FROM dibs_store WHERE one = 1);
END

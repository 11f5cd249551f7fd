-- leave: a claim goes, and whoever holds because of that is told.
--
-- Gives  words, as join: (now, 1 if it stood, else 0, mine)
-- Effect Idempotent. If its join was not answered (p_doubt) a copy of it may still come: until `p_by` the id is
--        remembered, and that one does nothing.
CREATE PROCEDURE dibs_2_leave(
  IN p_name VARBINARY(2048), IN p_id VARBINARY(255), IN p_ticket BIGINT UNSIGNED, IN p_client BINARY(16),
  IN p_kind VARBINARY(64), IN p_doubt TINYINT, IN p_by BIGINT
)
SQL SECURITY INVOKER
verb: BEGIN
  DECLARE v_floor, v_top, v_own, v_first, v_last BIGINT UNSIGNED;
  DECLARE v_head VARBINARY(16);
  DECLARE v_special TINYINT;
  DECLARE v_outside, v_tombs, v_apart, v_now, v_used, v_next, v_capacity BIGINT;
  DECLARE v_kind VARBINARY(64);
  DECLARE v_blocked TINYINT;
  DECLARE v_mine, v_wakes MEDIUMBLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  -- (lock.sql)
  IF v_head = p_id AND NOT p_doubt THEN -- it is alone, and nobody is to be told
    UPDATE dibs_queues SET id = '' WHERE name = p_name;
    COMMIT;
    SELECT CONCAT_WS(' ', v_now, 1, ''), (SELECT id FROM dibs_store WHERE one = 1);
    LEAVE verb;
  END IF;
  IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
  IF p_ticket > 0 THEN
    DELETE FROM dibs_claims WHERE ticket = p_ticket AND id = p_id AND name = p_name;
  ELSE
    DELETE FROM dibs_claims WHERE name = p_name AND ticket >= v_floor AND id = p_id;
  END IF;
  SET v_own = ROW_COUNT();
  IF v_own AND p_kind = 'election' THEN
    CALL dibs_2_tell('line', p_name, 1000000, v_wakes);
  END IF;
  CALL dibs_2_settle(
    p_name, v_floor, v_outside, v_now, v_own, p_client, v_mine, v_wakes,
    v_used, v_last, v_first, v_blocked, v_next, v_kind, v_capacity
  );
  IF v_outside > v_now THEN
    DELETE FROM dibs_watchers WHERE id = p_id;
  END IF;
  IF p_doubt AND p_by > v_now THEN
    DELETE FROM dibs_tombs WHERE until < v_now LIMIT 100;
    REPLACE INTO dibs_tombs VALUES (LEFT(p_id, 16), p_by);
    UPDATE dibs_queues SET tombs = GREATEST(tombs, p_by), special = 1 WHERE name = p_name;
  END IF;
  COMMIT;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT CONCAT_WS(' ', v_now, v_own > 0, HEX(v_mine)), (SELECT id FROM dibs_store WHERE one = 1);
END

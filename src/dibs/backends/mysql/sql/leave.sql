-- leave: remove a claim, and notify the clients that hold because of that.
--
-- Gives  words, as join: (now, 1 if the claim was there, else 0, mine)
-- Effect Idempotent. If the join was not answered (p_doubt), a copy of it may still come. The id then becomes a
--        tombstone until `p_by`, and the copy does nothing.
CREATE PROCEDURE dibs_2_leave(
  IN p_name VARBINARY(2048), IN p_id VARBINARY(255), IN p_ticket BIGINT UNSIGNED, IN p_client BINARY(16),
  IN p_kind VARBINARY(64), IN p_doubt TINYINT, IN p_by BIGINT
)
SQL SECURITY INVOKER
BEGIN
  -- (walk_declare.sql)
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  -- (lock.sql)
  IF v_head = p_id AND NOT p_doubt THEN -- no other claim is there, so there is nobody to notify
    UPDATE dibs_queues SET id = '' WHERE name = p_name;
    SET v_changed = 1;
  ELSE
    IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
    IF p_ticket > 0 THEN
      DELETE FROM dibs_claims WHERE ticket = p_ticket AND id = p_id AND name = p_name;
    ELSE
      DELETE FROM dibs_claims WHERE name = p_name AND ticket >= v_floor AND id = p_id;
    END IF;
    SET v_changed = ROW_COUNT() > 0;
    IF v_changed AND p_kind = 'election' THEN
      CALL dibs_2_tell('line', p_name, 1000000, v_wakes);
    END IF;
    -- (walk_call.sql)
    IF v_outside > v_now THEN
      DELETE FROM dibs_watchers WHERE id = p_id;
    END IF;
    IF p_doubt AND p_by > v_now THEN
      DELETE FROM dibs_tombs WHERE until < v_now LIMIT 100;
      REPLACE INTO dibs_tombs VALUES (LEFT(p_id, 16), p_by);
      UPDATE dibs_queues SET tombs = GREATEST(tombs, p_by), special = 1 WHERE name = p_name;
    END IF;
  END IF;
  COMMIT;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT CONCAT_WS(' ', v_now, v_changed, HEX(v_mine)), (SELECT id FROM dibs_store WHERE one = 1);
END

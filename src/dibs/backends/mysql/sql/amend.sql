-- amend: make one's own claim lighter; whoever fits beside it now is told.
--
-- Gives  words, as join: (now, 1, mine)
-- Effect Idempotent; a claim that is as light already, or gone, stays as it is.
CREATE PROCEDURE dibs_2_amend(IN p_name VARBINARY(2048), IN p_id VARBINARY(255), IN p_client BINARY(16), IN p_weight BIGINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_floor, v_top, v_first, v_last BIGINT UNSIGNED;
  DECLARE v_head VARBINARY(16);
  DECLARE v_special TINYINT;
  DECLARE v_outside, v_tombs, v_apart, v_now, v_used, v_next, v_capacity BIGINT;
  DECLARE v_kind VARBINARY(64);
  DECLARE v_blocked, v_done TINYINT DEFAULT 0;
  DECLARE v_mine, v_wakes MEDIUMBLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  -- (lock.sql)
  IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
  UPDATE dibs_claims SET weight = p_weight
    WHERE name = p_name AND ticket >= v_floor AND id = p_id AND weight > p_weight;
  IF ROW_COUNT() > 0 THEN
    CALL dibs_2_settle(
      p_name, v_floor, v_outside, v_now, 1, p_client, v_mine, v_wakes,
      v_used, v_last, v_first, v_blocked, v_next, v_kind, v_capacity
    );
  END IF;
  SET v_done = 1;
  COMMIT;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT CONCAT_WS(' ', v_now, v_done, HEX(v_mine)), (SELECT id FROM dibs_store WHERE one = 1);
END

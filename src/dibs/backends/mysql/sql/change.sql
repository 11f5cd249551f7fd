-- change: amend, evict or revoke. Amend lowers the weight of the caller's own claim, by its id. Evict removes a holder
-- by its ticket, and revoke asks a holder to release, which it learns at its next renewal. Neither finds a waiter.
--
-- Gives  words, as join: (now, 1 if it was done, 0: no holder has that ticket, or the weight was lower already, mine)
-- Effect Idempotent. Clients that hold because of it are notified. A late copy of the join of an evicted claim does
--        nothing.
CREATE PROCEDURE dibs_2_change(
  IN p_what VARBINARY(16), IN p_name VARBINARY(2048), IN p_id VARBINARY(255), IN p_ticket BIGINT UNSIGNED,
  IN p_weight BIGINT, IN p_client BINARY(16)
)
SQL SECURITY INVOKER
BEGIN
  -- (walk_declare.sql)
  DECLARE v_until BIGINT;
  DECLARE v_done TINYINT DEFAULT 0;
  DECLARE v_id BINARY(16);
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  -- (lock.sql)
  IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
  IF p_what = 'amend' THEN
    UPDATE dibs_claims SET weight = p_weight
      WHERE name = p_name AND ticket >= v_floor AND id = p_id AND weight > p_weight;
    SET v_done = ROW_COUNT() > 0, v_changed = v_done;
  ELSE
    -- (walk_call.sql)
    SELECT 1, id, v_now + waiting INTO v_done, v_id, v_until FROM dibs_claims
      WHERE ticket = p_ticket AND name = p_name AND ticket <= v_last;
    IF v_done AND p_what = 'revoke' THEN
      UPDATE dibs_claims SET revoked = 1 WHERE name = p_name AND ticket = p_ticket;
    ELSEIF v_done THEN
      DELETE FROM dibs_tombs WHERE until < v_now LIMIT 100;
      REPLACE INTO dibs_tombs VALUES (v_id, v_until);
      UPDATE dibs_queues SET tombs = GREATEST(tombs, v_until), special = 1 WHERE name = p_name;
      DELETE FROM dibs_claims WHERE name = p_name AND ticket = p_ticket;
      IF v_kind = 'election' THEN CALL dibs_2_tell('line', p_name, 1000000, v_wakes); END IF;
      SET v_changed = 1;
    END IF;
  END IF;
  IF v_changed THEN
    -- (walk_call.sql)
  END IF;
  COMMIT;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT CONCAT_WS(' ', v_now, v_done, HEX(v_mine)), (SELECT id FROM dibs_store WHERE one = 1);
END

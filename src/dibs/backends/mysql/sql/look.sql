-- look: check the queue of a name in which claims wait, on behalf of renew.
--
-- Gives  in how many microseconds a claim ahead of the waiters can expire; -1: no claim waits.
-- Effect Expired claims at the front are removed, and clients that hold because of that are notified, as by leave. The
--        row lock of the name is taken only if there is something to do. If it cannot be had in time, the next look
--        does it.
CREATE PROCEDURE dibs_2_look(
  IN p_name VARBINARY(2048), IN p_client BINARY(16), INOUT p_mine MEDIUMBLOB, OUT p_next BIGINT
)
SQL SECURITY INVOKER
BEGIN
  -- (walk_declare.sql)
  DECLARE v_waits BIGINT UNSIGNED;
  DECLARE v_weight, v_until BIGINT;
  DECLARE EXIT HANDLER FOR 1205, 1213 ROLLBACK;

  SET p_next = -1, v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET v_floor = IFNULL((SELECT floor FROM dibs_queues WHERE name = p_name), 0);
  SELECT ticket, weight, capacity, until INTO v_waits, v_weight, v_capacity, p_next FROM dibs_claims
    WHERE name = p_name AND ticket >= v_floor AND held IS NULL ORDER BY ticket LIMIT 1;
  SELECT IFNULL(SUM(weight), 0), MIN(until) INTO v_used, v_until FROM dibs_claims
    WHERE name = p_name AND ticket >= v_floor AND ticket < v_waits;
  SET p_next = LEAST(p_next, IFNULL(v_until, p_next)) - v_now;
  IF p_next <= 0 OR v_used + v_weight <= v_capacity THEN
    SET p_next = 1000000, v_floor = NULL;
    -- (lock.sql)
    IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
    SET v_mine = p_mine;
    -- (walk_call.sql)
    COMMIT;
    IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
    SET p_mine = v_mine, p_next = IF(v_blocked, v_next - v_now, -1);
  END IF;
END

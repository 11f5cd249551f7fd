-- look: see to the queue of a name in which somebody waits; on behalf of renew.
--
-- Gives  in how many microseconds something ahead of those who wait can end by itself; -1: nobody waits.
-- Effect What has expired where the rule looks is removed, and whoever holds because of it is told, as by a leave. The
--        lock of the name is taken only where there is something to do; where it is not to be had, the next look will.
CREATE PROCEDURE dibs_2_look(
  IN p_name VARBINARY(2048), IN p_client BINARY(16), INOUT p_mine MEDIUMBLOB, OUT p_next BIGINT
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_floor, v_top, v_waits, v_first, v_last BIGINT UNSIGNED;
  DECLARE v_head VARBINARY(16);
  DECLARE v_special TINYINT;
  DECLARE v_outside, v_tombs, v_apart, v_now, v_used, v_capacity, v_weight, v_until BIGINT;
  DECLARE v_kind VARBINARY(64);
  DECLARE v_blocked TINYINT;
  DECLARE v_wakes MEDIUMBLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR 1205, 1213 ROLLBACK;

  SET p_next = -1, v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET v_floor = IFNULL((SELECT floor FROM dibs_queues WHERE name = p_name), 0);
  SELECT ticket, weight, capacity, until INTO v_waits, v_weight, v_capacity, p_next FROM dibs_claims
    WHERE name = p_name AND ticket >= v_floor AND held IS NULL ORDER BY ticket LIMIT 1;
  SELECT IFNULL(SUM(weight), 0), MIN(until) INTO v_used, v_until FROM dibs_claims
    WHERE name = p_name AND ticket >= v_floor AND ticket < v_waits;
  SET p_next = LEAST(p_next, IFNULL(v_until, p_next)) - v_now;
  IF p_next <= 0 OR v_used + v_weight <= v_capacity THEN
    SET p_next = 1000000;
    -- (lock.sql)
    IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
    CALL dibs_2_settle(
      p_name, v_floor, v_outside, v_now, 0, p_client, p_mine, v_wakes,
      v_used, v_last, v_first, v_blocked, p_next, v_kind, v_capacity
    );
    COMMIT;
    IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
    SET p_next = IF(v_blocked, p_next - v_now, -1);
  END IF;
END

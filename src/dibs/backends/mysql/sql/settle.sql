-- settle: walk a line as core/rule.py says, remove what is gone, and note whom that concerns.
--
-- Within the transaction of a verb that has the lock of the name. `p_leaver`: the ticket of who goes now, 0 for nobody.
-- `p_lighter`: a claim in it has just been made lighter. `p_mine` and `p_wakes` grow by the ids of this client's claims
-- that hold from now on, and by the clients of the others that do.
-- Gives  how much weight holds, the last ticket that holds (0: nobody), the first one (0: nobody is there), whether
--        somebody waits, when something seen here ends by itself, the kind and the capacity of those who are there.
-- Cost   one row for each claim that holds or is gone, and one for the first that waits; in parts, as a cursor reads
--        all that it is opened on.
CREATE PROCEDURE dibs_1_settle(
  IN p_name VARBINARY(2048), IN p_floor BIGINT UNSIGNED, IN p_outside BIGINT, IN p_now BIGINT,
  IN p_leaver BIGINT UNSIGNED, IN p_lighter TINYINT, IN p_client BINARY(16),
  INOUT p_mine MEDIUMBLOB, INOUT p_wakes MEDIUMBLOB,
  OUT p_used BIGINT, OUT p_last BIGINT UNSIGNED, OUT p_first BIGINT UNSIGNED, OUT p_blocked TINYINT,
  OUT p_next BIGINT, OUT p_kind VARBINARY(64), OUT p_capacity BIGINT
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_ticket, v_from BIGINT UNSIGNED;
  DECLARE v_id, v_client BINARY(16);
  DECLARE v_kind VARBINARY(64);
  DECLARE v_capacity, v_weight, v_until, v_longest, v_held BIGINT;
  DECLARE v_part INT DEFAULT 4;
  DECLARE v_seen INT DEFAULT 0;
  DECLARE v_over, v_freed, v_gone, v_election TINYINT DEFAULT 0;
  DECLARE line CURSOR FOR
    SELECT ticket, id, client, kind, capacity, weight, until, p_now + lease, held FROM dibs_claims
    WHERE name = p_name AND ticket >= v_from ORDER BY ticket LIMIT v_part;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;

  SET p_used = 0, p_last = 0, p_first = 0, p_blocked = 0, p_next = 0, p_kind = '', p_capacity = 0, v_from = p_floor;
  walk: LOOP
    SET v_over = 0, v_seen = 0;
    OPEN line;
    part: LOOP
      FETCH line INTO v_ticket, v_id, v_client, v_kind, v_capacity, v_weight, v_until, v_longest, v_held;
      IF v_over THEN LEAVE part; END IF;
      SET v_seen = v_seen + 1, v_from = v_ticket + 1;
      IF v_ticket = p_leaver OR v_until <= p_now THEN
        -- A renewal may have come between the look and this: then it is not over.
        DELETE FROM dibs_claims WHERE ticket = v_ticket AND (ticket = p_leaver OR until <= p_now);
        IF ROW_COUNT() = 1 THEN
          SET v_gone = 1, v_election = v_election OR v_kind = 'election';
          ITERATE part;
        END IF;
        SELECT until INTO v_until FROM dibs_claims WHERE ticket = v_ticket LOCK IN SHARE MODE;
      END IF;
      -- A clock that was set back must not make anything last longer than its lease.
      IF v_until > v_longest THEN
        UPDATE dibs_claims SET until = v_longest WHERE ticket = v_ticket;
        SET v_until = v_longest;
      END IF;
      IF p_first = 0 THEN
        SET p_first = v_ticket, p_kind = v_kind, p_capacity = v_capacity, p_next = v_until;
      END IF;
      SET p_next = LEAST(p_next, v_until);
      IF v_weight < 0 OR v_capacity < 1 THEN -- it would make room for others instead of taking it
        SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dibs-damaged claim';
      END IF;
      IF p_used + v_weight > v_capacity THEN
        SET p_blocked = 1;
        LEAVE part;
      END IF;
      SET p_used = p_used + v_weight, p_last = v_ticket;
      IF v_held IS NULL THEN
        SET v_freed = 1;
        UPDATE dibs_claims SET held = p_now, freed = IF(client = p_client, NULL, 1) WHERE ticket = v_ticket;
        IF v_client = p_client THEN
          SET p_mine = CONCAT(p_mine, v_id);
        ELSEIF LOCATE(v_client, p_wakes) = 0 THEN
          SET p_wakes = CONCAT(p_wakes, v_client);
        END IF;
      END IF;
    END LOOP;
    CLOSE line;
    IF p_blocked OR v_seen < v_part THEN LEAVE walk; END IF;
    SET v_part = 256;
  END LOOP;
  IF v_election THEN
    CALL dibs_1_tell('line', p_name, 1000000, p_wakes);
  END IF;
  IF NOT v_freed AND (v_gone OR p_lighter) AND NOT p_blocked AND p_outside > p_now THEN
    CALL dibs_1_tell('outside', p_name, 8, p_wakes);
  END IF;
  -- What is below the first is gone for good: nobody need read over it again.
  IF p_first > p_floor + 32 THEN
    UPDATE dibs_names SET floor = p_first WHERE name = p_name;
  END IF;
END

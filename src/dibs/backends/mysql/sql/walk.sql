-- walk: go through a queue as core/rule.py says, remove expired claims, and collect the clients to notify.
--
-- Runs in the transaction of an operation that has the row lock of the name. `p_changed`: the operation has just
-- removed a claim or lowered a weight. `p_mine` grows by the ids of this client's claims that hold from now on, and
-- `p_wakes` by the other clients that do. A holder is marked (`held`): it stops holding only when it leaves or expires.
-- So new holders are recognised, and many old ones are passed in one step.
-- Gives  the weight of all holders, the ticket of the last holder (0: none), the first ticket (0: the queue is empty),
--        whether a claim waits, when the next of the claims seen here expires, the kind and capacity of the queue.
-- Cost   one statement for each of the first three holders, for each claim that is new or expired, and for the first
--        waiter; two for all other holders.
CREATE PROCEDURE dibs_2_walk(
  IN p_name VARBINARY(2048), IN p_floor BIGINT UNSIGNED, IN p_outside BIGINT, IN p_now BIGINT, IN p_changed TINYINT,
  IN p_client BINARY(16), INOUT p_mine MEDIUMBLOB, INOUT p_wakes MEDIUMBLOB,
  OUT p_used BIGINT, OUT p_last BIGINT UNSIGNED, OUT p_first BIGINT UNSIGNED, OUT p_blocked TINYINT,
  OUT p_next BIGINT, OUT p_kind VARBINARY(64), OUT p_capacity BIGINT
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_ticket, v_waits, v_most BIGINT UNSIGNED;
  DECLARE v_from BIGINT UNSIGNED DEFAULT p_floor;
  DECLARE v_id, v_client BINARY(16);
  DECLARE v_kind VARBINARY(64);
  DECLARE v_capacity, v_weight, v_until, v_longest, v_held, v_beyond BIGINT;
  DECLARE v_steps, v_count INT DEFAULT 0;
  DECLARE v_freed, v_election TINYINT DEFAULT 0;

  SET p_used = 0, p_last = 0, p_first = 0, p_blocked = 0, p_next = 0, p_kind = '', p_capacity = 0;
  walk: LOOP
    SET v_steps = v_steps + 1;
    IF v_steps = 4 THEN
      SELECT MIN(ticket) INTO v_waits FROM dibs_claims WHERE name = p_name AND ticket >= v_from AND held IS NULL;
      SELECT COUNT(*), SUM(weight), MIN(until), MAX(until - lease), MAX(ticket)
        INTO v_count, v_weight, v_until, v_beyond, v_most FROM dibs_claims
        WHERE name = p_name AND ticket >= v_from AND ticket < IFNULL(v_waits, ~0);
      IF v_count > 0 AND v_until > p_now AND v_beyond <= p_now AND p_used + v_weight <= p_capacity THEN
        SET p_used = p_used + v_weight, p_last = v_most, p_next = LEAST(p_next, v_until), v_from = v_most + 1;
      END IF;
    END IF;
    SET v_ticket = NULL;
    SELECT ticket, id, client, kind, capacity, weight, until, p_now + lease, held
      INTO v_ticket, v_id, v_client, v_kind, v_capacity, v_weight, v_until, v_longest, v_held FROM dibs_claims
      WHERE name = p_name AND ticket >= v_from ORDER BY ticket LIMIT 1;
    IF v_ticket IS NULL THEN LEAVE walk; END IF;
    SET v_from = v_ticket + 1;
    IF v_until <= p_now THEN
      -- Unless a renewal has extended it meanwhile.
      DELETE FROM dibs_claims WHERE name = p_name AND ticket = v_ticket AND until <= p_now;
      IF ROW_COUNT() = 1 THEN
        SET p_changed = 1, v_election = v_election OR v_kind = 'election';
        ITERATE walk;
      END IF;
      SET v_until = NULL;
      SELECT until INTO v_until FROM dibs_claims WHERE name = p_name AND ticket = v_ticket LOCK IN SHARE MODE;
      IF v_until IS NULL THEN ITERATE walk; END IF; -- swept
    END IF;
    IF v_weight < 0 OR v_capacity < 1 THEN -- damaged: it would make room instead of taking it
      SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dibs-damaged claim';
    END IF;
    IF v_until > v_longest THEN -- a clock that was set back must not make anything last longer than its lease
      UPDATE dibs_claims SET until = v_longest WHERE name = p_name AND ticket = v_ticket;
      SET v_until = v_longest;
    END IF;
    IF p_first = 0 THEN
      SET p_first = v_ticket, p_kind = v_kind, p_capacity = v_capacity, p_next = v_until;
    END IF;
    SET p_next = LEAST(p_next, v_until);
    IF p_used + v_weight > v_capacity THEN
      SET p_blocked = 1;
      LEAVE walk;
    END IF;
    SET p_used = p_used + v_weight, p_last = v_ticket;
    IF v_held IS NULL THEN
      SET v_freed = 1;
      UPDATE dibs_claims SET held = p_now, freed = IF(client = p_client, NULL, 1)
        WHERE name = p_name AND ticket = v_ticket;
      IF v_client = p_client THEN
        SET p_mine = CONCAT(p_mine, v_id);
      ELSEIF LOCATE(v_client, p_wakes) = 0 THEN
        SET p_wakes = CONCAT(p_wakes, v_client);
      END IF;
    END IF;
  END LOOP;
  IF v_election THEN
    CALL dibs_2_tell('line', p_name, 1000000, p_wakes);
  END IF;
  IF p_changed AND NOT v_freed AND NOT p_blocked AND p_outside > p_now THEN
    CALL dibs_2_tell('outside', p_name, 8, p_wakes);
  END IF;
  -- No claim below the floor ever comes back, so later walks start there.
  SET v_from = IF(p_first = 0, v_from, p_first);
  IF v_from > p_floor THEN
    UPDATE dibs_queues SET floor = v_from WHERE name = p_name;
  END IF;
END

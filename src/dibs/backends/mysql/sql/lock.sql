  START TRANSACTION;
  finding: LOOP
    SELECT floor, outside, tombs, apart, ticket, id, special
      INTO v_floor, v_outside, v_tombs, v_apart, v_top, v_head, v_special FROM dibs_queues
      WHERE name = p_name FOR UPDATE;
    IF v_floor IS NOT NULL THEN LEAVE finding; END IF;
    INSERT INTO dibs_queues (name) VALUES (p_name) ON DUPLICATE KEY UPDATE floor = floor;
  END LOOP;
  -- After the wait for the row lock: the caller may be too late by now.
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

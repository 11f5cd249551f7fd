  START TRANSACTION;
  SELECT floor, outside, tombs, apart INTO v_floor, v_outside, v_tombs, v_apart FROM dibs_names WHERE name = p_name FOR UPDATE;
  IF v_floor IS NULL THEN
    INSERT INTO dibs_names VALUES (p_name, 0, 0, 0, 3) ON DUPLICATE KEY UPDATE floor = floor;
    SELECT floor, outside, tombs, apart INTO v_floor, v_outside, v_tombs, v_apart FROM dibs_names WHERE name = p_name FOR UPDATE;
  END IF;
  -- Not before: whoever waited for the lock may have come too late by now.
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));

  -- A ticket below `p_sure` is never given again, not even after a crash: the sequence has reserved it on the disk. A
  -- commit flushes the reservation, and this makes sure that there is one.
  /*M!100600 IF v_ticket >= p_sure THEN
    SELECT next_not_cached_value INTO p_sure FROM dibs_tickets;
    INSERT INTO dibs_marks VALUES ('tickets', 1, '') ON DUPLICATE KEY UPDATE times = times + 1;
  END IF; */
  /*!80000 SET p_sure = ~0 >> 1; */

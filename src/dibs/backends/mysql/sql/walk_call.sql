  CALL dibs_2_walk(
    p_name, v_floor, v_outside, v_now, v_changed, p_client, v_mine, v_wakes,
    v_used, v_last, v_first, v_blocked, v_next, v_kind, v_capacity
  );

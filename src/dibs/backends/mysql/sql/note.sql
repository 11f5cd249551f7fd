  BEGIN
    DECLARE CONTINUE HANDLER FOR 1114 BEGIN END; -- it is full: then nobody sees this one, who holds or waits as well
    REPLACE INTO dibs_sessions
      VALUES (CONNECTION_ID(), p_name, p_key, v_ticket, p_kind, v_waits, 0, v_now, p_lease, p_about);
  END;

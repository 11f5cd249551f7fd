-- end: session mode. Evict the holder that has this ticket: end its session, and with it all that it holds.
--
-- Gives  words, as take: (now, 1 if it was done; 0: no holder has that ticket)
CREATE PROCEDURE dibs_2_end(IN p_name VARBINARY(2048), IN p_ticket BIGINT UNSIGNED)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_session BIGINT UNSIGNED;
  DECLARE v_key VARBINARY(64);
  DECLARE v_done TINYINT DEFAULT 0;
  DECLARE v_times INT DEFAULT 0;
  SELECT session, lock_name INTO v_session, v_key FROM dibs_sessions
    WHERE name = p_name AND ticket = p_ticket AND IS_USED_LOCK(lock_name) = session LIMIT 1;
  IF v_session IS NOT NULL THEN
    KILL CONNECTION v_session;
    SET v_done = 1;
    -- KILL returns before the session has ended.
    WHILE v_session = IS_USED_LOCK(v_key) AND v_times < 500 DO
      SET v_times = v_times + 1;
      DO SLEEP(0.002);
    END WHILE;
  END IF;
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_done);
END

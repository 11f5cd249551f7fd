-- quit: session mode. End the session of a waiter that gave up, before the server sees by itself that it is gone.
--
-- By its row, which no session but that one has written: numbers of sessions begin anew when the server starts. Should
-- it have the lock by now, that goes with it.
-- Gives  words, as take: (now, 1 if it was there)
CREATE PROCEDURE dibs_1_quit(IN p_session BIGINT UNSIGNED, IN p_ticket BIGINT UNSIGNED)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_done TINYINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR 1094 SET v_done = 0; -- there is no such session any more
  IF EXISTS (SELECT 1 FROM dibs_waits WHERE session = p_session AND ticket = p_ticket) THEN
    SET v_done = 1;
    KILL CONNECTION p_session;
    DELETE FROM dibs_waits WHERE session = p_session AND ticket = p_ticket;
  END IF;
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_done);
END

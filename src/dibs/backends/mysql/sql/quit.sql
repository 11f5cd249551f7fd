-- quit: session mode. End the sessions of waiters that gave up, before the server notices that they are gone.
--
-- `p_waits`: a JSON list of [session, ticket]. Only the waiter itself can have written its row, so no other session is
-- killed: session numbers start again when the server does. A session that has got the lock meanwhile loses it.
-- Gives  words, as take: (now, how many were there)
CREATE PROCEDURE dibs_2_quit(IN p_waits MEDIUMTEXT CHARACTER SET ascii)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_session, v_ticket BIGINT UNSIGNED;
  DECLARE v_done INT DEFAULT 0;
  DECLARE v_over TINYINT DEFAULT 0;
  DECLARE waits CURSOR FOR
    SELECT w.session, w.ticket FROM JSON_TABLE(p_waits, '$[*]' COLUMNS (
      session BIGINT UNSIGNED PATH '$[0]', ticket BIGINT UNSIGNED PATH '$[1]'
    )) j JOIN dibs_waits w ON w.session = j.session AND w.ticket = j.ticket;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
  DECLARE CONTINUE HANDLER FOR 1094 SET v_done = v_done - 1; -- the session has ended
  OPEN waits;
  ending: LOOP
    FETCH waits INTO v_session, v_ticket;
    IF v_over THEN LEAVE ending; END IF;
    SET v_done = v_done + 1;
    KILL CONNECTION v_session;
    DELETE FROM dibs_waits WHERE session = v_session AND ticket = v_ticket;
  END LOOP;
  CLOSE waits;
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_done);
END

-- wake: interrupt the sessions in which these clients listen (see hear), once what concerns them is committed.
--
-- A client that listens has the user lock that bears its id: only that session is ever interrupted, whatever ids the
-- server has given to others since. One that is not there, or belongs to another user of the server, is left alone: its
-- claims look by themselves.
CREATE PROCEDURE dibs_2_wake(IN p_clients MEDIUMBLOB)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_at INT DEFAULT 1;
  DECLARE v_session BIGINT UNSIGNED;
  DECLARE CONTINUE HANDLER FOR SQLEXCEPTION SET v_session = NULL;
  WHILE v_at < LENGTH(p_clients) DO
    SET v_session = IS_USED_LOCK(CONCAT('dibs:', HEX(SUBSTRING(p_clients, v_at, 16))));
    IF v_session IS NOT NULL THEN
      KILL QUERY v_session;
    END IF;
    SET v_at = v_at + 16;
  END WHILE;
END

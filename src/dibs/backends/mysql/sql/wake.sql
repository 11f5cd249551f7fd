-- wake: interrupt the sessions in which these clients listen (see hear), after the commit.
--
-- A listening session has the user lock that bears the client's id, so no other session is ever interrupted. A session
-- that is gone, or belongs to another user of the server, is skipped: its claims find out at their next look.
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

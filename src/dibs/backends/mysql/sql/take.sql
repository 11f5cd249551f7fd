-- take: session mode. Take the user lock of a name in this session, at once or after a wait of at most `p_wait`
-- seconds.
--
-- Gives  words with blanks between them, bytes in hexadecimal, in one row of each of at most two result sets:
--        (now, 'held', ticket, sure)    the caller holds it; for `sure` see sure.sql
--        (now, 'waits', ticket)   not yet: another result set follows
--        (now, 'busy')            it is not free
--        (now, 'other', kind)     it is held as another kind; 'session' if that is unknown
--        (now, 'leased', kind)    there are claims with leases; (now, 'within'): a transaction has it
-- Effect Unless the end is 'held', nothing is left behind. The ticket is drawn by the holder of the lock, so it is
--        higher than that of the last holder. The ticket of a waiter shows its place to others.
-- A free name that was held in this mode lately is taken without this routine: see TAKE in session/connection.py.
-- The server grants a user lock to the session that has waited longest. It ends a wait whose client is gone within a
-- second.
CREATE PROCEDURE dibs_2_take(
  IN p_key VARBINARY(64), IN p_wait INT, IN p_name VARBINARY(2048), IN p_kind VARBINARY(64), IN p_lease BIGINT,
  IN p_about VARBINARY(2048), IN p_sure BIGINT UNSIGNED
)
SQL SECURITY INVOKER
verb: BEGIN
  DECLARE v_ticket BIGINT UNSIGNED;
  DECLARE v_least BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_now BIGINT;
  DECLARE v_apart, v_held, v_plain TINYINT DEFAULT 0;
  DECLARE v_kind VARBINARY(64);
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; DO RELEASE_LOCK(p_key); RESIGNAL; END;

  DO RELEASE_LOCK(p_key); -- TAKE may have taken it without giving a ticket
  IF NOT IFNULL(GET_LOCK(p_key, 0), 0) THEN
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    SELECT kind INTO v_kind FROM dibs_sessions WHERE lock_name = p_key AND session = IS_USED_LOCK(p_key);
    IF v_kind <> p_kind THEN
      SELECT CONCAT_WS(' ', v_now, 'other', HEX(v_kind));
      LEAVE verb;
    END IF;
    IF p_wait = 0 THEN
      SELECT CONCAT_WS(' ', v_now, 'busy');
      LEAVE verb;
    END IF;
    -- (ticket.sql)
    BEGIN
      DECLARE CONTINUE HANDLER FOR 1114 BEGIN END; -- the table is full: this waiter is not shown to others
      REPLACE INTO dibs_waits VALUES (CONNECTION_ID(), v_ticket, p_kind, v_now, p_lease, p_name, p_about);
    END;
    SELECT CONCAT_WS(' ', v_now, 'waits', v_ticket);
    IF NOT IFNULL(GET_LOCK(p_key, p_wait), 0) THEN
      DELETE FROM dibs_waits WHERE session = CONNECTION_ID();
      SELECT CONCAT_WS(' ', v_now, 'busy');
      LEAVE verb;
    END IF;
  END IF;
  SET v_ticket = 0;
  -- As TAKE in session/connection.py.
  /*M!100600 UPDATE dibs_sessions SET session = CONNECTION_ID(), ticket = LAST_INSERT_ID(IF(NEXTVAL(dibs_tickets) >=
    TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 200000, LASTVAL(dibs_tickets), 0)),
    kind = p_kind, revoked = 0, since = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), lease = p_lease,
    about = p_about WHERE lock_name = p_key AND plain; */
  /*M!100600 IF ROW_COUNT() THEN SET v_ticket = LAST_INSERT_ID(); END IF; */
  IF v_ticket = 0 THEN
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    CALL dibs_2_part(p_name, 1, v_apart, v_kind, v_held, v_least);
    IF v_kind IS NOT NULL OR v_held THEN
      DO RELEASE_LOCK(p_key);
      SELECT CONCAT_WS(' ', v_now, IF(v_held, 'within', 'leased'), HEX(v_kind));
      LEAVE verb;
    END IF;
    -- (ticket.sql)
    -- On MySQL no join removes the row, so it is never plain.
    SET v_plain = 0;
    /*M!100600 SET v_plain = v_apart = 1; */
    BEGIN
      DECLARE CONTINUE HANDLER FOR 1114 DELETE FROM dibs_sessions WHERE IS_FREE_LOCK(lock_name); -- for the next session
      REPLACE INTO dibs_sessions VALUES
        (p_key, v_plain, CONNECTION_ID(), v_ticket, p_kind, 0, v_now, p_lease, p_name, p_about);
    END;
    SET v_apart = 0;
    SELECT apart INTO v_apart FROM dibs_queues WHERE name = p_name;
    IF v_apart <> 1 THEN -- a transaction has marked the name meanwhile
      UPDATE dibs_sessions SET plain = 0 WHERE lock_name = p_key;
    END IF;
  END IF;
  -- (sure.sql)
  SELECT CONCAT_WS(' ', 0, 'held', v_ticket, p_sure);
END

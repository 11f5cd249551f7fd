-- take: session mode. Have the user lock of a name in this session, at once, or after so many seconds of waiting.
--
-- Gives  words with blanks between them, bytes in hexadecimal, in one row for each of at most two result sets:
--        (now, 'held', ticket)    it is had, by whoever asked
--        (now, 'waits', ticket)   not yet: another answer follows
--        (now, 'busy')            it is not free
--        (now, 'other', kind)     it is had as another kind; 'session' stands for none that is known
--        (now, 'leased', kind)    claims with leases stand there; (now, 'within'): a transaction has it
--        (now, 'strange')         `p_store` is not the id of this store: the name of the lock was made of that
-- Effect Whatever is not 'held' in the end leaves nothing behind. The ticket is drawn while the lock is had, so it is
--        higher than that of whoever had it before; the one of a waiter is its place for those who look, no more.
-- The server hands a user lock to who has waited longest. It ends a wait whose client is gone within a second.
CREATE PROCEDURE dibs_1_take(
  IN p_name VARBINARY(2048), IN p_key VARCHAR(64), IN p_store BINARY(16), IN p_kind VARBINARY(64), IN p_wait INT,
  IN p_lease BIGINT, IN p_about VARBINARY(4096)
)
SQL SECURITY INVOKER
verb: BEGIN
  DECLARE v_ticket, v_session BIGINT UNSIGNED;
  DECLARE v_now BIGINT;
  DECLARE v_same, v_apart, v_there, v_held, v_waits TINYINT DEFAULT 0;
  DECLARE v_kind VARBINARY(64);
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; DO RELEASE_LOCK(p_key); RESIGNAL; END;

  IF NOT IFNULL(GET_LOCK(p_key, 0), 0) THEN
    SET v_session = IS_USED_LOCK(p_key), v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    SELECT kind INTO v_kind FROM dibs_sessions WHERE session = v_session AND name = p_name AND NOT waits;
    IF v_kind <> p_kind THEN
      SELECT CONCAT_WS(' ', v_now, 'other', HEX(v_kind));
      LEAVE verb;
    END IF;
    IF p_wait = 0 THEN
      SELECT CONCAT_WS(' ', v_now, 'busy');
      LEAVE verb;
    END IF;
    -- (ticket.sql)
    SET v_waits = 1;
    -- (note.sql)
    SELECT CONCAT_WS(' ', v_now, 'waits', v_ticket);
    IF NOT IFNULL(GET_LOCK(p_key, p_wait), 0) THEN
      DELETE FROM dibs_sessions WHERE session = CONNECTION_ID();
      SELECT CONCAT_WS(' ', v_now, 'busy');
      LEAVE verb;
    END IF;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SELECT s.id = p_store, IFNULL(n.apart, 0), EXISTS (SELECT 1 FROM dibs_claims c WHERE c.name = p_name)
    INTO v_same, v_apart, v_there FROM dibs_store s LEFT JOIN dibs_names n ON n.name = p_name WHERE s.one = 1;
  IF v_there OR NOT v_apart & 1 THEN
    CALL dibs_1_part(p_name, 1, v_kind);
    SELECT apart, v_kind IS NOT NULL INTO v_apart, v_there FROM dibs_names WHERE name = p_name;
  END IF;
  IF v_apart & 2 THEN
    CALL dibs_1_enclosed(p_name, v_held);
  END IF;
  IF v_there OR v_held OR NOT v_same THEN
    DELETE FROM dibs_sessions WHERE session = CONNECTION_ID();
    DO RELEASE_LOCK(p_key);
    IF NOT v_same THEN
      SELECT CONCAT_WS(' ', v_now, 'strange');
    ELSEIF v_there THEN
      SELECT CONCAT_WS(' ', v_now, 'leased', HEX(v_kind));
    ELSE
      SELECT CONCAT_WS(' ', v_now, 'within');
    END IF;
    LEAVE verb;
  END IF;
  -- (ticket.sql)
  SET v_waits = 0;
  -- (note.sql)
  SELECT CONCAT_WS(' ', v_now, 'held', v_ticket);
END

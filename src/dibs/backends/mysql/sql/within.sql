-- within: check, on a connection of ours, a name that a transaction of the caller has just locked.
--
-- `p_proof` is a user lock of the caller's session: it is seen here only if both use the same server.
-- Gives  words, as take: (now, 'held', ticket, sure); (now, 'leased', kind) or (now, 'session'): held in another mode;
--        (now, 'elsewhere'): the locked row is on another server; (now, 'free'): the row is no longer locked
-- The row was locked before, and stays locked until the transaction ends. For the order of steps see apart.sql.
CREATE PROCEDURE dibs_2_within(IN p_name VARBINARY(2048), IN p_proof VARBINARY(64), IN p_sure BIGINT UNSIGNED)
SQL SECURITY INVOKER
verb: BEGIN
  DECLARE v_ticket BIGINT UNSIGNED;
  DECLARE v_least BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE v_held TINYINT DEFAULT 0;
  DECLARE v_kind VARBINARY(64);
  DECLARE p_key VARBINARY(64);
  DECLARE v_apart TINYINT;

  CALL dibs_2_enclosed(p_name, v_held);
  IF IS_USED_LOCK(p_proof) IS NULL OR NOT v_held THEN
    SELECT CONCAT_WS(' ', v_now, IF(IS_USED_LOCK(p_proof) IS NULL, 'elsewhere', 'free'));
    LEAVE verb;
  END IF;
  CALL dibs_2_part(p_name, 2, v_apart, v_kind, v_held, v_least);
  IF v_kind IS NOT NULL THEN
    SELECT CONCAT_WS(' ', v_now, 'leased', HEX(v_kind));
    LEAVE verb;
  END IF;
  -- (key.sql)
  UPDATE dibs_sessions SET plain = 0 WHERE lock_name = p_key;
  -- A join that is about to be refused may have it for a moment.
  IF NOT IFNULL(GET_LOCK(p_key, 0.1), 0) THEN
    SELECT CONCAT_WS(' ', v_now, 'session');
    LEAVE verb;
  END IF;
  DO RELEASE_LOCK(p_key);
  -- (ticket.sql)
  -- (sure.sql)
  SELECT CONCAT_WS(' ', v_now, 'held', v_ticket, p_sure);
END

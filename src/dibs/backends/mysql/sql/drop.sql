-- drop: session mode. Give back the one user lock that this session has.
--
-- Gives  words, as take: (now, how many it had)
CREATE PROCEDURE dibs_1_drop(IN p_key VARCHAR(64))
SQL SECURITY INVOKER
BEGIN
  -- The row first: one that is there while its session has the lock is about this very hold.
  DELETE FROM dibs_sessions WHERE session = CONNECTION_ID();
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), IFNULL(RELEASE_LOCK(p_key), 0));
END

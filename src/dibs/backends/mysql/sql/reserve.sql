-- reserve: session mode. For a ticket that was drawn without a commit: see to it that it is never given again.
--
-- Gives  words: (now, the number below which that is so of all tickets)
CREATE PROCEDURE dibs_2_reserve(IN v_ticket BIGINT UNSIGNED)
SQL SECURITY INVOKER
BEGIN
  DECLARE p_sure BIGINT UNSIGNED DEFAULT 0;
  -- (sure.sql)
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), p_sure);
END

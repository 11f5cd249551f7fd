-- hear: what a client has been told, or sleep until it is.
--
-- On the session that has the client's user lock (see wake). What is said before the look is found by it; what is said
-- after it interrupts this call, also on its way into the sleep: then the client asks again.
-- Gives  rows of (id, 'y' for a claim that holds now, 'l' for somebody who should look); none: nothing happened.
-- `p_heard`: ids, in hexadecimal with commas between them, that need not be told again.
CREATE PROCEDURE dibs_2_hear(IN p_client BINARY(16), IN p_heard MEDIUMBLOB, IN p_patience DOUBLE)
SQL SECURITY INVOKER
BEGIN
  IF NOT EXISTS (
    SELECT 1 FROM dibs_claims WHERE client = p_client AND freed = 1 AND NOT FIND_IN_SET(HEX(id), p_heard)
  ) AND NOT EXISTS (
    SELECT 1 FROM dibs_watchers WHERE client = p_client AND told = 1 AND NOT FIND_IN_SET(HEX(id), p_heard)
  ) THEN
    -- On MariaDB not by SLEEP: all sleepers of a server share one mutex, and whoever interrupts one that has just been
    -- woken keeps everybody waiting for two seconds (tests/store/mysql/test_bell.py). This waits for what never comes.
    /*M!100600 DO MASTER_GTID_WAIT('4294967295-4294967295-18446744073709551615', p_patience); */
    /*!80000 DO SLEEP(p_patience); */
  END IF;
  SELECT id, 'y' FROM dibs_claims WHERE client = p_client AND freed = 1 AND NOT FIND_IN_SET(HEX(id), p_heard)
  UNION ALL
  SELECT id, 'l' FROM dibs_watchers WHERE client = p_client AND told = 1 AND NOT FIND_IN_SET(HEX(id), p_heard);
END

-- hear: report the messages for a client, or sleep until there are some.
--
-- Called in the session that has the client's user lock (see wake). Messages before the first check are found by it. A
-- later one interrupts this call, even just before it sleeps, and the client asks again.
-- Gives  rows of (id, 'y' for a claim that holds now, 'l' for a watcher that should look); none: there is no message.
-- `p_heard`: ids that the client has heard already, in hexadecimal with commas between them.
CREATE PROCEDURE dibs_2_hear(IN p_client BINARY(16), IN p_heard MEDIUMBLOB, IN p_patience DOUBLE)
SQL SECURITY INVOKER
BEGIN
  IF NOT EXISTS (
    SELECT 1 FROM dibs_claims WHERE client = p_client AND freed = 1 AND NOT FIND_IN_SET(HEX(id), p_heard)
  ) AND NOT EXISTS (
    SELECT 1 FROM dibs_watchers WHERE client = p_client AND told = 1 AND NOT FIND_IN_SET(HEX(id), p_heard)
  ) THEN
    -- On MariaDB not by SLEEP: all sleepers of a server share one mutex, and to interrupt one that has just woken
    -- blocks all of them for two seconds (tests/store/mysql/test_bell.py). This waits for a transaction that never
    -- comes.
    /*M!100600 DO MASTER_GTID_WAIT('4294967295-4294967295-18446744073709551615', p_patience); */
    /*!80000 DO SLEEP(p_patience); */
  END IF;
  SELECT id, 'y' FROM dibs_claims WHERE client = p_client AND freed = 1 AND NOT FIND_IN_SET(HEX(id), p_heard)
  UNION ALL
  SELECT id, 'l' FROM dibs_watchers WHERE client = p_client AND told = 1 AND NOT FIND_IN_SET(HEX(id), p_heard);
END

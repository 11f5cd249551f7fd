-- tell: mark the watchers of a change, and collect the clients to wake; in the transaction of an operation.
--
-- `p_most`: how many watchers at most. Of unfair waiters only one can get the lock, and all of them look by themselves
-- every third of a waiting lease.
CREATE PROCEDURE dibs_2_tell(
  IN p_space VARBINARY(16), IN p_name VARBINARY(2048), IN p_most INT, INOUT p_wakes MEDIUMBLOB
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_id, v_client BINARY(16);
  DECLARE v_over TINYINT DEFAULT 0;
  DECLARE watchers CURSOR FOR
    SELECT id, client FROM dibs_watchers WHERE name = p_name AND space = p_space AND told IS NULL
      AND until > TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) LIMIT p_most;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
  OPEN watchers;
  telling: LOOP
    FETCH watchers INTO v_id, v_client;
    IF v_over THEN LEAVE telling; END IF;
    UPDATE dibs_watchers SET told = 1 WHERE id = v_id;
    IF LOCATE(v_client, p_wakes) = 0 THEN
      SET p_wakes = CONCAT(p_wakes, v_client);
    END IF;
  END LOOP;
  CLOSE watchers;
END

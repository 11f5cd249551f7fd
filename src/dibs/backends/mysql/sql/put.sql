-- put: write a cell, if it still has the version that the writer has seen.
--
-- Gives  (now, what, version): what 0: it came too late; 1: done, also by an earlier copy; 2: the cell has another
--        version
-- Effect Watchers are notified. The write is remembered until `p_by`, so that a copy of it does nothing.
CREATE PROCEDURE dibs_2_put(
  IN p_space VARBINARY(16), IN p_name VARBINARY(2048), IN p_id BINARY(16), IN p_version BIGINT UNSIGNED,
  IN p_value MEDIUMBLOB, IN p_by BIGINT
)
SQL SECURITY INVOKER
verb: BEGIN
  DECLARE v_version, v_done BIGINT UNSIGNED;
  DECLARE v_now BIGINT;
  DECLARE v_wakes MEDIUMBLOB DEFAULT '';
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SELECT version INTO v_version FROM dibs_cells WHERE space = p_space AND name = p_name FOR UPDATE;
  IF v_version IS NULL THEN
    INSERT INTO dibs_cells VALUES (p_space, p_name, NULL, 0) ON DUPLICATE KEY UPDATE version = version;
    SELECT version INTO v_version FROM dibs_cells WHERE space = p_space AND name = p_name FOR UPDATE;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_now > p_by THEN
    ROLLBACK;
    SELECT v_now, 0, 0;
    LEAVE verb;
  END IF;
  SELECT version INTO v_done FROM dibs_writes WHERE id = p_id;
  IF v_done IS NOT NULL OR v_version <> p_version THEN
    ROLLBACK;
    SELECT v_now, IF(v_done IS NULL, 2, 1), IFNULL(v_done, v_version);
    LEAVE verb;
  END IF;
  UPDATE dibs_cells SET value = p_value, version = p_version + 1 WHERE space = p_space AND name = p_name;
  DELETE FROM dibs_writes WHERE until < v_now LIMIT 100;
  INSERT INTO dibs_writes VALUES (p_id, p_version + 1, p_by);
  CALL dibs_2_tell(p_space, p_name, 1000000, v_wakes);
  COMMIT;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT v_now, 1, p_version + 1;
END

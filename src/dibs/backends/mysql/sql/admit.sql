-- admit: compare a token with the highest one that a fence has admitted, and raise that.
--
-- Gives  (now, the record before; NULL: there was none)
-- Effect A higher exclusive token replaces the record, which never expires. A damaged record stays, and the client
--        reports it.
CREATE PROCEDURE dibs_2_admit(IN p_name VARBINARY(2048), IN p_token DECIMAL(20) UNSIGNED, IN p_shared TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_version BIGINT UNSIGNED;
  DECLARE v_now BIGINT;
  DECLARE v_value MEDIUMBLOB;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SELECT version, value INTO v_version, v_value FROM dibs_cells WHERE space = 'fence' AND name = p_name FOR UPDATE;
  IF v_version IS NULL THEN
    INSERT INTO dibs_cells VALUES ('fence', p_name, NULL, 0) ON DUPLICATE KEY UPDATE version = version;
    SELECT version, value INTO v_version, v_value FROM dibs_cells WHERE space = 'fence' AND name = p_name FOR UPDATE;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF NOT p_shared AND (v_value IS NULL OR CONVERT(v_value USING latin1) REGEXP '^[0-9]{1,20}$') THEN
    IF p_token > CAST(IFNULL(v_value, '0') AS DECIMAL(20)) THEN
      UPDATE dibs_cells SET value = CAST(p_token AS CHAR), version = v_version + 1
        WHERE space = 'fence' AND name = p_name;
    END IF;
  END IF;
  COMMIT;
  SELECT v_now, v_value;
END

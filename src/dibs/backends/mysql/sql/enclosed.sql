-- enclosed: whether a transaction has locked a name. If none has, none can until the calling transaction ends.
CREATE PROCEDURE dibs_2_enclosed(IN p_name VARBINARY(2048), OUT p_held TINYINT)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_free TINYINT DEFAULT 0;
  -- Not by SET, which may lock the row that it reads.
  SELECT EXISTS (SELECT 1 FROM dibs_within WHERE name = p_name) INTO p_held;
  IF p_held THEN
    SELECT 1 INTO v_free FROM dibs_within WHERE name = p_name FOR UPDATE SKIP LOCKED;
    SET p_held = NOT v_free;
  END IF;
END

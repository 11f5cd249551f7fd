-- part: mark a name as used in another mode than by leases (p_how 1: session mode, 2: inside transactions), and look
-- whether claims stand on it; by whoever has it in that mode. See apart.sql for why that is enough.
--
-- Gives  what the mark says now; `p_kind` of the first claim that stands there, NULL: none does; in session mode also
--        whether a transaction has the name. If none has, the mark for transactions is wiped: the next one that locks
--        the row in dibs_within does so behind this commit, and marks the name again.
CREATE PROCEDURE dibs_1_part(
  IN p_name VARBINARY(2048), IN p_how TINYINT, OUT p_apart TINYINT, OUT p_kind VARBINARY(64), OUT p_held TINYINT
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  DECLARE v_apart TINYINT;
  START TRANSACTION;
  SELECT apart INTO v_apart FROM dibs_names WHERE name = p_name FOR UPDATE;
  IF v_apart IS NULL THEN
    INSERT INTO dibs_names VALUES (p_name, 0, 0, 0, 3) ON DUPLICATE KEY UPDATE apart = apart;
    SELECT apart INTO v_apart FROM dibs_names WHERE name = p_name FOR UPDATE;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SELECT kind INTO p_kind FROM dibs_claims WHERE name = p_name AND until > v_now ORDER BY ticket LIMIT 1;
  IF p_kind IS NULL THEN
    DELETE FROM dibs_claims WHERE name = p_name AND until <= v_now;
    -- A renewal may have come between the look and this.
    SELECT kind INTO p_kind FROM dibs_claims WHERE name = p_name ORDER BY ticket LIMIT 1;
  END IF;
  SET p_apart = v_apart | p_how, p_held = 0;
  IF p_how = 1 AND v_apart & 2 THEN
    CALL dibs_1_enclosed(p_name, p_held);
    SET p_apart = IF(p_held, p_apart, 1);
  END IF;
  IF p_apart <> v_apart THEN
    UPDATE dibs_names SET apart = p_apart WHERE name = p_name;
  END IF;
  COMMIT;
END

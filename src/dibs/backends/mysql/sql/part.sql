-- part: mark a name as used in another mode than by leases (p_how 1: session mode, 2: inside transactions), and look
-- whether claims stand on it; by whoever has it in that mode. See apart.sql for why that is enough.
--
-- Gives  `p_kind`, of the first that stands there; NULL: none does.
CREATE PROCEDURE dibs_1_part(IN p_name VARBINARY(2048), IN p_how TINYINT, OUT p_kind VARBINARY(64))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT;
  DECLARE v_apart, v_there TINYINT DEFAULT 0;
  SELECT apart INTO v_apart FROM dibs_names WHERE name = p_name;
  IF NOT v_apart & p_how THEN
    INSERT INTO dibs_names VALUES (p_name, 0, 0, 0, p_how) ON DUPLICATE KEY UPDATE apart = apart | p_how;
  END IF;
  SELECT EXISTS (SELECT 1 FROM dibs_claims WHERE name = p_name) INTO v_there;
  IF v_there THEN
    SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
    START TRANSACTION;
    SELECT apart INTO v_apart FROM dibs_names WHERE name = p_name FOR UPDATE;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    DELETE FROM dibs_claims WHERE name = p_name AND until <= v_now;
    SELECT kind INTO p_kind FROM dibs_claims WHERE name = p_name ORDER BY ticket LIMIT 1;
    COMMIT;
  END IF;
END

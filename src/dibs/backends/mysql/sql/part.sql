-- part: mark a name as used in another mode than by leases (p_how 1: session mode, 2: inside transactions), and look
-- whether claims stand on it; by whoever has it in that mode. See apart.sql for why that is enough.
--
-- Gives  the least ticket that may be given now; what the mark says; `p_kind` of the first claim that stands there, NULL: none does; in session mode also
--        whether a transaction has the name. If none has, the mark for transactions is wiped: the next one that locks
--        the row in dibs_within does so behind this commit, and marks the name again.
CREATE PROCEDURE dibs_2_part(
  IN p_name VARBINARY(2048), IN p_how TINYINT, OUT p_apart TINYINT, OUT p_kind VARBINARY(64), OUT p_held TINYINT,
  OUT p_least BIGINT UNSIGNED
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_floor, v_top BIGINT UNSIGNED;
  DECLARE v_outside, v_tombs, v_apart, v_now BIGINT;
  DECLARE v_head VARBINARY(16);
  DECLARE v_special TINYINT;

  -- (lock.sql)
  IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
  SET p_least = v_top + 1;
  SELECT kind INTO p_kind FROM dibs_claims WHERE name = p_name AND until > v_now ORDER BY ticket LIMIT 1;
  IF p_kind IS NULL THEN
    DELETE FROM dibs_claims WHERE name = p_name AND until <= v_now;
    -- A renewal may have come between the look and this.
    SELECT kind INTO p_kind FROM dibs_claims WHERE name = p_name ORDER BY ticket LIMIT 1;
  END IF;
  SET p_apart = v_apart | p_how, p_held = 0;
  IF p_how = 1 AND v_apart & 2 THEN
    CALL dibs_2_enclosed(p_name, p_held);
    SET p_apart = IF(p_held, p_apart, 1);
  END IF;
  IF p_apart <> v_apart THEN
    UPDATE dibs_queues SET apart = p_apart, special = 1 WHERE name = p_name;
  END IF;
  COMMIT;
END

-- part: mark a name as used in another mode than by leases (p_how 1: session mode, 2: inside transactions), and look
-- for claims on it. The caller has the name in that mode. See apart.sql for why that is enough.
--
-- Gives  the least ticket that may be given now; the mark; `p_kind` of the first claim, NULL: there is none; in session
--        mode also whether a transaction has the name. If none has, the mark for transactions is removed: the next
--        transaction that locks the row in dibs_within does so after this commit, and marks the name again.
CREATE PROCEDURE dibs_2_part(
  IN p_name VARBINARY(2048), IN p_how TINYINT, OUT p_apart TINYINT, OUT p_kind VARBINARY(64), OUT p_held TINYINT,
  OUT p_least BIGINT UNSIGNED
)
SQL SECURITY INVOKER
BEGIN
  -- (walk_declare.sql)

  -- (lock.sql)
  IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
  SET p_least = v_top + 1;
  SELECT kind INTO p_kind FROM dibs_claims WHERE name = p_name AND until > v_now ORDER BY ticket LIMIT 1;
  IF p_kind IS NULL THEN
    DELETE FROM dibs_claims WHERE name = p_name AND until <= v_now;
    -- A renewal may have extended one meanwhile.
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

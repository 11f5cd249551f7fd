-- apart: whether a name whose line is empty is held in session mode or inside a transaction; on behalf of join.
--
-- Gives  the user lock of the name, which this session then has until after the verb's commit; NULL: it is held, and
--        `p_kind` says how.
-- Why the modes exclude each other. Who takes in another mode than a lease first takes its own lock (the user lock, or
-- the row in dibs_within), then marks the name, in a commit of its own, then looks for claims. A join has the lock of the
-- name's row while it looks at the mark and until its commit. So
--   * a join that locked the row before the mark was made has committed when the mark is, and its claim is seen;
--   * a join behind the mark finds the user lock or the row taken, and is refused; or takes them itself for as long as
--     its claim is not committed: whoever gets them then sees the claim.
-- Where claims stand already nobody holds in another mode: whoever tries sees them, and lets go again. Claims that are
-- over are removed by it under the lock of the row: a renewal, or a join behind them, that is on its way is waited for.
CREATE PROCEDURE dibs_1_apart(
  IN p_name VARBINARY(2048), IN p_apart TINYINT, OUT p_key VARCHAR(64), OUT p_kind VARBINARY(64)
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_held TINYINT DEFAULT 0;
  SELECT CONCAT('dibs', LEFT(SHA2(CONCAT(id, p_name), 256), 60)) INTO p_key FROM dibs_store WHERE one = 1;
  IF p_key IS NULL THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'dibs-damaged store';
  END IF;
  IF NOT IFNULL(GET_LOCK(p_key, 0), 0) THEN
    SET p_key = NULL, p_kind = 'session';
  ELSEIF p_apart & 2 THEN
    CALL dibs_1_enclosed(p_name, v_held);
    IF v_held THEN
      DO RELEASE_LOCK(p_key);
      SET p_key = NULL, p_kind = 'within';
    END IF;
  END IF;
END

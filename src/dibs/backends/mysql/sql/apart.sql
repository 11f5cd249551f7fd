-- apart: whether a name whose line is empty is held in session mode or inside a transaction; on behalf of join.
--
-- Gives  the user lock of the name, which this session then has until after the verb's commit; NULL: it is held, and
--        `p_kind` says how.
-- Why the modes exclude each other. Who takes in another mode than by a lease first takes its own lock (the user lock, or
-- the row in dibs_within), and then, with the lock of the name's row, marks the name and looks for claims. A join has the
-- lock of the name's row while it looks at the mark and until its commit. So
--   * a join that comes before the mark has committed when the mark is made, and its claim is seen;
--   * a join behind the mark finds the user lock or the row taken, and is refused; or takes them itself for as long as
--     its claim is not committed: whoever gets them then finds the claim.
-- Where claims stand nobody holds in another mode: who tries sees them, and lets go again. Those that are over are
-- removed by it, so that no renewal that is on its way revives them. So a join that has passed here wipes the mark; a
-- row that is new, as the one before was forgotten or somebody removed it, is marked for all modes.
-- A row in dibs_sessions that is `plain` spares who takes in session mode the look: it is written by one that has the user
-- lock and has looked, and removed by a join that has the user lock, or made not plain by who is inside a transaction,
-- before that one looks whether the user lock is free. The take is one statement, which has the table meanwhile.
CREATE PROCEDURE dibs_2_apart(
  IN p_name VARBINARY(2048), IN p_apart TINYINT, OUT p_key VARBINARY(64), OUT p_kind VARBINARY(64)
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_held TINYINT DEFAULT 0;
  -- (key.sql)
  IF NOT IFNULL(GET_LOCK(p_key, 0), 0) THEN
    SET p_key = NULL, p_kind = 'session';
  ELSEIF p_apart & 2 THEN
    CALL dibs_2_enclosed(p_name, v_held);
    IF v_held THEN
      DO RELEASE_LOCK(p_key);
      SET p_key = NULL, p_kind = 'within';
    END IF;
  END IF;
  /*M!100600 IF p_key IS NOT NULL THEN DELETE FROM dibs_sessions WHERE lock_name = p_key; END IF; */
END

-- apart: whether a name whose queue is empty is held in session mode or inside a transaction; on behalf of join.
--
-- Gives  the user lock of the name, which this session keeps until after the commit; NULL: the name is held, and
--        `p_kind` says in which mode.
-- Why the modes exclude each other: a taker in another mode first takes its own lock (the user lock, or the row in
-- dibs_within). Then, with the row lock of the name, it marks the name and looks for claims (part.sql). A join has the
-- row lock of the name from before it reads the mark until its commit. So
--   * a join before the mark has committed when the mark is made, and its claim is seen;
--   * a join after the mark finds the user lock or the row taken, and is refused. Or it takes them itself until its
--     claim is committed: the next taker finds the claim.
-- While there are claims, no other mode holds the name: a taker sees them, and gives up. It removes expired claims, so
-- no late renewal revives them. So a join that has passed here clears the mark. A new row is marked for all modes: the
-- last one may have been swept or removed.
-- A row in dibs_sessions that is `plain` spares a taker in session mode the look. It is written by a session that has
-- the user lock and has looked. A join that has the user lock removes it. A transaction clears `plain` before it checks
-- that the user lock is free. The take is one statement, which locks the table meanwhile.
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

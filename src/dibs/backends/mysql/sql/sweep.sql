-- sweep: forget names that nobody uses, and what is noted of those who are gone.
--
-- A name that is in use after all, or will be, is made anew by the next verb: what its row says only saves reading. One that was
-- ever used in session mode or inside a transaction stays: those who hold it so rely on the mark there.
CREATE PROCEDURE dibs_1_sweep()
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  START TRANSACTION;
  DELETE FROM dibs_names WHERE outside < v_now AND tombs < v_now AND apart = 0
    AND NOT EXISTS (SELECT 1 FROM dibs_claims WHERE dibs_claims.name = dibs_names.name) ORDER BY name LIMIT 500;
  DELETE FROM dibs_watchers WHERE until < v_now LIMIT 500;
  DELETE FROM dibs_tombs WHERE until < v_now LIMIT 500;
  DELETE FROM dibs_writes WHERE until < v_now LIMIT 500;
  COMMIT;
  DELETE FROM dibs_held WHERE IS_FREE_LOCK(lock_name);
  DELETE FROM dibs_waits WHERE session NOT IN (SELECT id FROM information_schema.PROCESSLIST);
  SELECT v_now;
END

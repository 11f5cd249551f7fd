-- sweep: forget names that nobody uses.
--
-- A name that is in use after all, or will be, is made anew by the next verb: what its row says only saves reading.
CREATE PROCEDURE dibs_1_sweep()
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  SET TRANSACTION ISOLATION LEVEL READ COMMITTED;
  DELETE FROM dibs_names WHERE outside < v_now AND tombs < v_now
    AND NOT EXISTS (SELECT 1 FROM dibs_claims WHERE dibs_claims.name = dibs_names.name) ORDER BY name LIMIT 500;
  SELECT v_now;
END

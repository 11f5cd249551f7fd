-- sweep: remove expired claims, names that are not used, and records of clients that are gone.
--
-- Each call looks at the next 500 names after those of the last call, and removes at most 500 claims, so it takes a few
-- milliseconds. A waiter behind a claim that is removed here holds at its next look, as it would otherwise. If a
-- removed name is used again, the next operation creates its row. Its tickets go on rising, because the counter is
-- raised above them.
CREATE PROCEDURE dibs_2_sweep()
SQL SECURITY INVOKER
BEGIN
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE v_from, v_name VARBINARY(2048) DEFAULT '';
  DECLARE v_end VARBINARY(2048);
  DECLARE v_ticket, v_least BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_over TINYINT DEFAULT 0;
  DECLARE claims CURSOR FOR SELECT name, ticket FROM dibs_claims
    WHERE name > v_from AND name <= v_end AND until < v_now LIMIT 500;
  DECLARE names CURSOR FOR SELECT name, ticket FROM dibs_queues
    WHERE name > v_from AND name <= v_end AND id = '' AND asked < v_now - 1000000 AND outside < v_now AND tombs < v_now
      AND NOT EXISTS (SELECT 1 FROM dibs_claims WHERE dibs_claims.name = dibs_queues.name);
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SELECT name INTO v_from FROM dibs_marks WHERE mark = 'sweep' FOR UPDATE;
  SELECT name INTO v_name FROM dibs_queues WHERE name > v_from ORDER BY name LIMIT 499, 1;
  INSERT INTO dibs_marks VALUES ('sweep', 1, v_name) ON DUPLICATE KEY UPDATE times = times + 1, name = v_name;
  COMMIT;
  SET v_end = IF(v_name = '', REPEAT(x'FF', 2048), v_name); -- the last names: the next sweep starts again

  UPDATE dibs_queues SET id = '' WHERE name > v_from AND name <= v_end AND id <> '' AND until < v_now;
  START TRANSACTION;
  SET v_over = 0;
  OPEN claims;
  removing: LOOP
    FETCH claims INTO v_name, v_ticket;
    IF v_over THEN LEAVE removing; END IF;
    DELETE FROM dibs_claims WHERE name = v_name AND ticket = v_ticket AND until < v_now; -- not if it was renewed
  END LOOP;
  CLOSE claims;
  SET v_over = 0;
  OPEN names;
  forgetting: LOOP
    FETCH names INTO v_name, v_ticket;
    IF v_over THEN LEAVE forgetting; END IF;
    DELETE FROM dibs_queues WHERE name = v_name AND ticket = v_ticket AND id = '' AND outside < v_now AND tombs < v_now
      AND NOT EXISTS (SELECT 1 FROM dibs_claims WHERE dibs_claims.name = v_name);
    SET v_least = GREATEST(v_least, v_ticket + 1);
  END LOOP;
  CLOSE names;
  -- (ticket.sql)
  DELETE FROM dibs_watchers WHERE until < v_now LIMIT 500;
  DELETE FROM dibs_tombs WHERE until < v_now LIMIT 500;
  DELETE FROM dibs_writes WHERE until < v_now LIMIT 500;
  COMMIT;
  DELETE FROM dibs_sessions WHERE IS_FREE_LOCK(lock_name);
  DELETE FROM dibs_waits WHERE session NOT IN (SELECT id FROM information_schema.PROCESSLIST);
  SELECT v_now;
END

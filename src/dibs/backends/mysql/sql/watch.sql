-- watch: have this client notified of the next change of a cell, or of a queue's leader.
--
-- `p_over`: ids of watchers that have stopped, one after the other. The row lock comes first: either the client that
-- makes a change sees the watcher, or this sees the change.
-- Gives  (now, the version of the cell or the ticket of the leader, in how many microseconds the leader's lease can
--        expire; -1: it cannot)
CREATE PROCEDURE dibs_2_watch(
  IN p_space VARBINARY(16), IN p_name VARBINARY(2048), IN p_id BINARY(16), IN p_client BINARY(16),
  IN p_patience BIGINT, IN p_over MEDIUMBLOB
)
SQL SECURITY INVOKER
BEGIN
  -- (walk_declare.sql)
  DECLARE v_seen BIGINT UNSIGNED;
  DECLARE v_left BIGINT DEFAULT -1;
  DECLARE v_at INT DEFAULT 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  IF p_space = 'line' THEN
    -- (lock.sql)
    IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
    SELECT ticket, until - v_now INTO v_seen, v_left FROM dibs_claims
      WHERE name = p_name AND ticket >= v_floor AND until > v_now ORDER BY ticket LIMIT 1;
  ELSE
    START TRANSACTION;
    -- Watchers share this lock: otherwise each would wait until the commit of the last one is on the disk. The row must
    -- exist, because a missing row cannot be locked.
    SELECT version INTO v_seen FROM dibs_cells WHERE space = p_space AND name = p_name LOCK IN SHARE MODE;
    IF v_seen IS NULL THEN
      INSERT INTO dibs_cells VALUES (p_space, p_name, NULL, 0) ON DUPLICATE KEY UPDATE version = version;
      SELECT version INTO v_seen FROM dibs_cells WHERE space = p_space AND name = p_name LOCK IN SHARE MODE;
    END IF;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  END IF;
  WHILE v_at < LENGTH(p_over) DO
    DELETE FROM dibs_watchers WHERE id = SUBSTRING(p_over, v_at, 16);
    SET v_at = v_at + 16;
  END WHILE;
  INSERT INTO dibs_watchers VALUES (p_id, p_space, p_name, p_client, NULL, v_now + p_patience)
    ON DUPLICATE KEY UPDATE told = NULL, until = v_now + p_patience;
  COMMIT;
  SELECT v_now, IFNULL(v_seen, 0), v_left;
END

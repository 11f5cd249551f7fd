-- leave_all: remove many claims, of any names, and notify the clients that hold because of that.
--
-- `p_claims`: a JSON list of [name, id, ticket (0: unknown), 1 for an election, doubt, by], bytes in hexadecimal,
--        claims of one name side by side; the last two as in leave. `p_wait`: all claims have one name, and its row
--        lock is waited for. Otherwise claims of a locked name are skipped.
-- Gives  words, as join: (now, mine, the positions of the skipped claims, with commas)
-- Effect As leave for each claim. All are removed in one transaction, which never waits for a lock while it has another
--        one, so it cannot deadlock. Then each queue that has other claims is walked in a transaction of its own. If
--        that fails, its waiters find out at their next look.
CREATE PROCEDURE dibs_2_leave_all(
  IN p_claims MEDIUMTEXT CHARACTER SET ascii, IN p_wait TINYINT, IN p_client BINARY(16)
)
SQL SECURITY INVOKER
BEGIN
  -- (walk_declare.sql)
  DECLARE v_ticket BIGINT UNSIGNED;
  DECLARE v_by BIGINT;
  DECLARE p_name, v_name VARBINARY(2048);
  DECLARE v_id BINARY(16);
  DECLARE v_over, v_election, v_doubt, v_noted TINYINT DEFAULT 0;
  DECLARE v_before, v_skipped, v_queues MEDIUMBLOB DEFAULT '';
  DECLARE v_position INT DEFAULT 0;
  DECLARE v_at, v_end INT DEFAULT 1;
  DECLARE leaving CURSOR FOR
    SELECT UNHEX(name), UNHEX(id), ticket, election, doubt, until FROM JSON_TABLE(p_claims, '$[*]' COLUMNS (
      name VARBINARY(4096) PATH '$[0]', id BINARY(32) PATH '$[1]', ticket BIGINT UNSIGNED PATH '$[2]',
      election TINYINT PATH '$[3]', doubt TINYINT PATH '$[4]', until BIGINT PATH '$[5]'
    )) j;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  OPEN leaving;
  removing: LOOP
    SET v_over = 0;
    FETCH leaving INTO v_name, v_id, v_ticket, v_election, v_doubt, v_by;
    IF v_over THEN LEAVE removing; END IF;
    IF p_name IS NULL OR p_name <> v_name THEN
      SET p_name = v_name, v_floor = NULL, v_noted = 0;
      IF p_wait THEN
        INSERT INTO dibs_queues (name) VALUES (p_name) ON DUPLICATE KEY UPDATE floor = floor;
      END IF;
      SELECT floor, outside, id INTO v_floor, v_outside, v_head FROM dibs_queues
        WHERE name = p_name FOR UPDATE SKIP LOCKED;
      SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    END IF;
    IF v_floor IS NULL THEN
      SET v_skipped = CONCAT(v_skipped, v_position, ',');
    ELSE
      IF v_head = v_id THEN
        UPDATE dibs_queues SET id = '' WHERE name = p_name;
        SET v_head = '';
      END IF;
      IF v_ticket = 0 THEN
        SELECT ticket INTO v_ticket FROM dibs_claims WHERE id = v_id AND name = p_name LIMIT 1;
      END IF;
      DELETE FROM dibs_claims WHERE ticket = v_ticket AND id = v_id AND name = p_name;
      IF ROW_COUNT() AND NOT v_noted THEN
        SET v_queues = CONCAT(v_queues, v_election, HEX(p_name), ','), v_noted = 1;
      END IF;
      IF v_outside > v_now THEN
        DELETE FROM dibs_watchers WHERE id = v_id;
      END IF;
      IF v_doubt AND v_by > v_now THEN
        REPLACE INTO dibs_tombs VALUES (v_id, v_by);
        UPDATE dibs_queues SET tombs = GREATEST(tombs, v_by), special = 1 WHERE name = p_name;
      END IF;
    END IF;
    SET v_position = v_position + 1;
  END LOOP;
  CLOSE leaving;
  COMMIT;

  WHILE v_at < LENGTH(v_queues) DO
    SET v_end = LOCATE(',', v_queues, v_at);
    SET v_election = SUBSTRING(v_queues, v_at, 1), p_name = UNHEX(SUBSTRING(v_queues, v_at + 1, v_end - v_at - 1));
    SET v_at = v_end + 1, v_before = v_mine, v_outside = 0, v_changed = 1;
    queue: BEGIN
      DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; SET v_mine = v_before; END;
      SELECT outside INTO v_outside FROM dibs_queues WHERE name = p_name;
      IF v_outside <= v_now AND NOT v_election AND NOT EXISTS (SELECT 1 FROM dibs_claims WHERE name = p_name) THEN
        LEAVE queue;
      END IF;
      SET v_floor = NULL;
      -- (lock.sql)
      IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
      IF v_election THEN CALL dibs_2_tell('line', p_name, 1000000, v_wakes); END IF;
      -- (walk_call.sql)
      COMMIT;
    END;
  END WHILE;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), HEX(v_mine), v_skipped),
    (SELECT id FROM dibs_store WHERE one = 1);
END

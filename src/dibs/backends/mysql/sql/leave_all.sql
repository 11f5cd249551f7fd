-- leave_all: remove many claims, of any names, and notify those who hold because of that.
--
-- `p_claims`: a JSON list of [name, id, ticket (0: not known), whether it is of an election, doubt, by], bytes in
--        hexadecimal, those of one name side by side; the last two as in leave. `p_wait`: all are of one name, and its
--        lock is waited for. Else claims of a name that somebody has locked are left alone.
-- Gives  words, as join: (now, mine, the positions of those that were left alone, with commas)
-- Effect As leave for each of them. All are removed in one transaction, which waits for no lock while it has another,
--        so it is part of no deadlock; then each queue in which somebody stands is settled in one of its own. Where that
--        fails, those who wait look by themselves.
CREATE PROCEDURE dibs_2_leave_all(
  IN p_claims MEDIUMTEXT CHARACTER SET ascii, IN p_wait TINYINT, IN p_client BINARY(16)
)
SQL SECURITY INVOKER
BEGIN
  DECLARE v_floor, v_top, v_first, v_last, v_ticket BIGINT UNSIGNED;
  DECLARE v_head VARBINARY(16);
  DECLARE v_special TINYINT;
  DECLARE v_outside, v_tombs, v_apart, v_used, v_next, v_capacity, v_by BIGINT;
  DECLARE v_now BIGINT DEFAULT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  DECLARE v_kind VARBINARY(64);
  DECLARE p_name, v_name VARBINARY(2048);
  DECLARE v_id BINARY(16);
  DECLARE v_blocked, v_over, v_election, v_doubt, v_noted TINYINT DEFAULT 0;
  DECLARE v_mine, v_before, v_wakes, v_alone, v_lines MEDIUMBLOB DEFAULT '';
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
      SET v_alone = CONCAT(v_alone, v_position, ',');
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
        SET v_lines = CONCAT(v_lines, v_election, HEX(p_name), ','), v_noted = 1;
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

  WHILE v_at < LENGTH(v_lines) DO
    SET v_end = LOCATE(',', v_lines, v_at);
    SET v_election = SUBSTRING(v_lines, v_at, 1), p_name = UNHEX(SUBSTRING(v_lines, v_at + 1, v_end - v_at - 1));
    SET v_at = v_end + 1, v_before = v_mine, v_outside = 0;
    line: BEGIN
      DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; SET v_mine = v_before; END;
      SELECT outside INTO v_outside FROM dibs_queues WHERE name = p_name;
      IF v_outside <= v_now AND NOT v_election AND NOT EXISTS (SELECT 1 FROM dibs_claims WHERE name = p_name) THEN
        LEAVE line;
      END IF;
      SET v_floor = NULL;
      -- (lock.sql)
      IF v_head <> '' THEN CALL dibs_2_move(p_name); END IF;
      IF v_election THEN CALL dibs_2_tell('line', p_name, 1000000, v_wakes); END IF;
      CALL dibs_2_settle(
        p_name, v_floor, v_outside, v_now, 1, p_client, v_mine, v_wakes,
        v_used, v_last, v_first, v_blocked, v_next, v_kind, v_capacity
      );
      COMMIT;
    END;
  END WHILE;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), HEX(v_mine), v_alone),
    (SELECT id FROM dibs_store WHERE one = 1);
END

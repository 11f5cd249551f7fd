-- renew: extend claims, and say how each stands; for those who wait it is a look.
--
-- `p_claims`: a JSON list of [ticket, id in hexadecimal], by ticket: rows are locked in that order, and no name is.
-- Gives  rows of (ticket, holds, left, revoked) for those that stand; then one of (now, mine, nexts, store), where `nexts` is
--        name=microseconds, the name in hexadecimal, with commas, for the names in which some of them wait
-- Effect Only what is not over is extended, and nothing is shortened, except what a clock that was set back made longer
--        than its lease. Who holds goes first: no line that somebody waits in keeps it waiting.
CREATE PROCEDURE dibs_1_renew(IN p_claims MEDIUMTEXT CHARACTER SET ascii, IN p_client BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_name VARBINARY(2048);
  DECLARE v_now, v_next BIGINT;
  DECLARE v_over, v_wait TINYINT DEFAULT 0;
  DECLARE v_mine, v_nexts MEDIUMBLOB DEFAULT '';
  DECLARE names CURSOR FOR
    SELECT DISTINCT c.name FROM
      JSON_TABLE(p_claims, '$[*]' COLUMNS (ticket BIGINT UNSIGNED PATH '$[0]', id BINARY(32) PATH '$[1]')) j
      STRAIGHT_JOIN dibs_claims c ON c.ticket = j.ticket AND c.id = UNHEX(j.id)
    WHERE c.held IS NULL;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  START TRANSACTION;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  UPDATE
    JSON_TABLE(p_claims, '$[*]' COLUMNS (ticket BIGINT UNSIGNED PATH '$[0]', id BINARY(32) PATH '$[1]')) j
    STRAIGHT_JOIN dibs_claims c ON c.ticket = j.ticket AND c.id = UNHEX(j.id)
  SET c.until = v_now + c.lease, c.freed = NULL
  WHERE c.until > v_now AND c.held IS NOT NULL;
  COMMIT;
  OPEN names;
  looks: LOOP
    FETCH names INTO v_name;
    IF v_over THEN LEAVE looks; END IF;
    SET v_wait = 1;
    CALL dibs_1_look(v_name, p_client, v_mine, v_next);
    SET v_nexts = CONCAT(v_nexts, HEX(v_name), '=', v_next, ','), v_over = 0;
  END LOOP;
  CLOSE names;
  IF v_wait THEN
    START TRANSACTION;
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    UPDATE
      JSON_TABLE(p_claims, '$[*]' COLUMNS (ticket BIGINT UNSIGNED PATH '$[0]', id BINARY(32) PATH '$[1]')) j
      STRAIGHT_JOIN dibs_claims c ON c.ticket = j.ticket AND c.id = UNHEX(j.id)
    SET
      c.until = IF(c.held IS NULL, LEAST(GREATEST(c.until, v_now + c.waiting), v_now + c.lease), v_now + c.lease),
      c.freed = NULL
    WHERE c.until > v_now;
    COMMIT;
  END IF;
  SELECT c.ticket, c.held IS NOT NULL, c.until - v_now, c.revoked FROM
    JSON_TABLE(p_claims, '$[*]' COLUMNS (ticket BIGINT UNSIGNED PATH '$[0]', id BINARY(32) PATH '$[1]')) j
    STRAIGHT_JOIN dibs_claims c ON c.ticket = j.ticket AND c.id = UNHEX(j.id)
  WHERE c.until > v_now;
  SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_mine, v_nexts,
    (SELECT id FROM dibs_store WHERE one = 1);
END

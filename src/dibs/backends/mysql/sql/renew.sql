-- renew: extend claims, and report their state; for waiters it is a look.
--
-- `p_claims`: a JSON list of [name, ticket, id], bytes in hexadecimal, sorted by name and ticket: rows are locked in
--        that order. The row of a queue is locked only if the claim is in its head.
-- Gives  rows of (id, ticket, holds, left, revoked) for claims that exist; then one of (now, mine, nexts, store).
--        `nexts` has name=microseconds, the name in hexadecimal, with commas, for each name in which some of the claims
--        wait.
-- Effect Expired claims are not extended. No claim is shortened, unless a clock that was set back made it longer than
--        its lease. Holders come first, so a queue with waiters does not delay them. Heads come before other claims: a
--        head may move to dibs_claims meanwhile, and no claim moves back.
CREATE PROCEDURE dibs_2_renew(IN p_claims MEDIUMTEXT CHARACTER SET ascii, IN p_client BINARY(16))
SQL SECURITY INVOKER
BEGIN
  DECLARE v_name VARBINARY(2048);
  DECLARE v_now, v_next BIGINT;
  DECLARE v_over, v_wait TINYINT DEFAULT 0;
  DECLARE v_mine, v_nexts MEDIUMBLOB DEFAULT '';
  DECLARE v_heads MEDIUMTEXT CHARACTER SET ascii;
  DECLARE names CURSOR FOR
    SELECT DISTINCT c.name FROM
      -- (listed.sql)
      STRAIGHT_JOIN dibs_claims c ON c.name = UNHEX(j.name) AND c.ticket = j.ticket AND c.id = UNHEX(j.id)
    WHERE c.held IS NULL;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_over = 1;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  SELECT GROUP_CONCAT('["', HEX(q.name), '","', HEX(q.id), '"]' ORDER BY q.name) INTO v_heads FROM
    -- (listed.sql)
    STRAIGHT_JOIN dibs_queues q ON q.name = UNHEX(j.name) AND q.id = UNHEX(j.id);
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  IF v_heads IS NOT NULL THEN
    UPDATE
      JSON_TABLE(CONCAT('[', v_heads, ']'), '$[*]' COLUMNS (
        name VARBINARY(4096) PATH '$[0]', id BINARY(32) PATH '$[1]'
      )) h
      STRAIGHT_JOIN dibs_queues q ON q.name = UNHEX(h.name)
    SET q.until = v_now + q.lease
    WHERE q.id = UNHEX(h.id) AND q.until > v_now;
  END IF;
  SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
  UPDATE
    -- (listed.sql)
    STRAIGHT_JOIN dibs_claims c ON c.name = UNHEX(j.name) AND c.ticket = j.ticket AND c.id = UNHEX(j.id)
  SET c.until = v_now + c.lease, c.freed = NULL
  WHERE c.until > v_now AND c.held IS NOT NULL;
  OPEN names;
  looks: LOOP
    FETCH names INTO v_name;
    IF v_over THEN LEAVE looks; END IF;
    SET v_wait = 1;
    CALL dibs_2_look(v_name, p_client, v_mine, v_next);
    SET v_nexts = CONCAT(v_nexts, HEX(v_name), '=', v_next, ','), v_over = 0;
  END LOOP;
  CLOSE names;
  IF v_wait THEN
    SET v_now = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
    UPDATE
      -- (listed.sql)
      STRAIGHT_JOIN dibs_claims c ON c.name = UNHEX(j.name) AND c.ticket = j.ticket AND c.id = UNHEX(j.id)
    SET
      c.until = IF(c.held IS NULL, LEAST(GREATEST(c.until, v_now + c.waiting), v_now + c.lease), v_now + c.lease),
      c.freed = NULL
    WHERE c.until > v_now;
  END IF;
  SELECT c.id, c.ticket, c.held IS NOT NULL, c.until - v_now, c.revoked FROM
    -- (listed.sql)
    STRAIGHT_JOIN dibs_claims c ON c.name = UNHEX(j.name) AND c.ticket = j.ticket AND c.id = UNHEX(j.id)
  WHERE c.until > v_now
  UNION ALL SELECT q.id, q.ticket, 1, q.until - v_now, q.revoked FROM
    -- (listed.sql)
    STRAIGHT_JOIN dibs_queues q ON q.name = UNHEX(j.name) AND q.id = UNHEX(j.id)
  WHERE q.until > v_now;
  SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), v_mine, v_nexts,
    (SELECT id FROM dibs_store WHERE one = 1);
END

-- join: take a free place, or wait for one.
--
-- Gives  (now, what, ticket, holds, left, next, revoked, mine, kind, capacity) as words with blanks between them, bytes
--        in hexadecimal; in a second column the id of the store (`Epoch` in errors.py).
--        what 0: void (too late, cancelled before, or expired); 1: the claim's state, with ticket 0 if it has no place;
--        2: the queue has another kind or capacity, or the name is held in another mode (kind 'session' or 'within').
--        holds 2: the claim is in the head. mine: ids of this client's claims that hold from now on.
-- Effect A claim that fits holds. Another one waits in the queue (place 0), outside of it (1), or not at all (2). The
--        same id again only reports: nothing is moved or extended.
CREATE PROCEDURE dibs_2_join(
  IN p_name VARBINARY(2048), IN p_id BINARY(16), IN p_client BINARY(16), IN p_kind VARBINARY(64),
  IN p_capacity BIGINT, IN p_weight BIGINT, IN p_lease BIGINT, IN p_waiting BIGINT, IN p_place TINYINT,
  IN p_about BLOB, IN p_by BIGINT
)
SQL SECURITY INVOKER
BEGIN
  -- (walk_declare.sql)
  DECLARE v_own, v_least BIGINT UNSIGNED;
  DECLARE v_ticket BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_left BIGINT DEFAULT 0;
  DECLARE v_key VARBINARY(64);
  DECLARE v_what, v_revoked TINYINT DEFAULT 0;
  DECLARE v_holds TINYINT DEFAULT p_weight <= p_capacity;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  -- (lock.sql)
  IF v_head <> '' THEN
    CALL dibs_2_move(p_name);
    SET v_special = 1;
  END IF;
  verb: BEGIN
    IF v_now > p_by OR (v_tombs > v_now AND EXISTS (SELECT 1 FROM dibs_tombs WHERE id = p_id)) THEN
      LEAVE verb;
    END IF;
    IF v_special THEN
      IF v_top = 0 THEN -- a new row: the last one was swept, or removed by hand
        SELECT IFNULL(MAX(ticket), 0) INTO v_top FROM dibs_claims WHERE name = p_name;
      END IF;
      SELECT ticket INTO v_own FROM dibs_claims WHERE id = p_id AND name = p_name LIMIT 1;
      -- (walk_call.sql)
      SET v_next = IF(v_first = 0, -1, v_next - v_now);
      IF v_own IS NOT NULL THEN
        SELECT until - v_now, revoked INTO v_left, v_revoked FROM dibs_claims WHERE name = p_name AND ticket = v_own;
        IF v_left > 0 THEN
          SET v_what = 1, v_ticket = v_own, v_holds = v_own <= v_last;
        ELSE
          DELETE FROM dibs_claims WHERE name = p_name AND ticket = v_own;
        END IF;
        LEAVE verb;
      END IF;
      IF v_first > 0 AND (v_kind <> p_kind OR v_capacity <> p_capacity) THEN
        SET v_what = 2;
        LEAVE verb;
      END IF;
      SET v_holds = NOT v_blocked AND v_used + p_weight <= p_capacity;
    END IF;
    SET v_least = v_top + 1;
    IF NOT v_holds AND p_place > 0 THEN
      SET v_what = 1;
      IF p_place = 1 THEN
        INSERT INTO dibs_watchers VALUES (p_id, 'outside', p_name, p_client, NULL, v_now + p_waiting)
          ON DUPLICATE KEY UPDATE told = NULL, until = v_now + p_waiting;
        IF v_outside < v_now + p_waiting THEN
          UPDATE dibs_queues SET outside = v_now + p_waiting, special = 1 WHERE name = p_name;
        END IF;
      END IF;
      LEAVE verb;
    END IF;
    IF v_apart AND v_first = 0 THEN
      CALL dibs_2_apart(p_name, v_apart, v_key, v_kind);
      IF v_key IS NULL THEN
        SET v_what = 2, v_capacity = 1;
        LEAVE verb;
      END IF;
    END IF;
    SET v_what = 1, v_left = IF(v_holds, p_lease, p_waiting), v_next = IF(v_holds, -1, v_next);
    IF v_apart THEN
      -- (ticket.sql)
      SET v_ticket = GREATEST(v_ticket, v_now);
    ELSE
      SET v_ticket = GREATEST(v_least, v_now);
    END IF;
    SET v_apart = IF(v_key IS NULL, v_apart, 0);
    IF v_holds AND v_first = 0 AND NOT v_apart AND v_outside <= v_now AND v_tombs <= v_now AND p_kind <> 'election' THEN
      UPDATE dibs_queues SET
        apart = 0, special = 0, ticket = v_ticket, id = p_id, client = p_client, kind = p_kind, capacity = p_capacity,
        weight = p_weight, lease = p_lease, waiting = p_waiting, until = v_now + p_lease, asked = v_now, revoked = 0,
        about = p_about
        WHERE name = p_name;
      SET v_holds = 2;
    ELSE
      UPDATE dibs_queues SET apart = v_apart, special = 1, ticket = v_ticket WHERE name = p_name;
      INSERT INTO dibs_claims (
        name, ticket, id, client, kind, capacity, weight, lease, waiting, until, asked, held, freed, revoked, about
      ) VALUES (
        p_name, v_ticket, p_id, p_client, p_kind, p_capacity, p_weight, p_lease, p_waiting, v_now + v_left, v_now,
        IF(v_holds, v_now, NULL), NULL, 0, p_about
      );
    END IF;
    IF p_place = 1 AND v_outside > v_now THEN
      DELETE FROM dibs_watchers WHERE id = p_id;
    END IF;
    IF v_holds AND p_kind = 'election' THEN
      CALL dibs_2_tell('line', p_name, 1000000, v_wakes);
    END IF;
  END;
  COMMIT;
  IF v_key IS NOT NULL THEN DO RELEASE_LOCK(v_key); END IF;
  IF v_wakes <> '' THEN CALL dibs_2_wake(v_wakes); END IF;
  SELECT
    CONCAT_WS(' ', v_now, v_what, v_ticket, v_holds, v_left, v_next, v_revoked, HEX(v_mine), HEX(v_kind), v_capacity),
    (SELECT id FROM dibs_store WHERE one = 1);
END

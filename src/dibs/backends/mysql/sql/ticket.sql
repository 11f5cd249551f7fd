  -- The next ticket, from one counter for all modes: at least `v_least`, and at most 0.2 s behind the clock. A counter
  -- that was reset, dropped or restored is set 0.2 s ahead of the clock: no ticket was further ahead when it was given.
  -- MariaDB's sequence reserves 200,000 tickets at a time, which are on the disk after the next commit (sure.sql). A
  -- crash skips the rest of them, at most 0.2 s, and the restart takes longer. MySQL has no sequences: there each
  -- ticket is a row that is inserted and deleted.
  SET v_least = GREATEST(v_least, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 200000);
  /*M!100600 SET v_ticket = NEXTVAL(dibs_tickets); */
  /*M!100600 IF v_ticket < v_least THEN
    SET v_least = GREATEST(v_least, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 200000);
    EXECUTE IMMEDIATE CONCAT('DO SETVAL(dibs_tickets, ', v_least, ')');
    SET v_ticket = NEXTVAL(dibs_tickets);
  END IF; */
  /*!80000 INSERT INTO dibs_tickets VALUES (NULL); */
  /*!80000 SET v_ticket = LAST_INSERT_ID(); */
  /*!80000 DELETE FROM dibs_tickets WHERE ticket = v_ticket; */
  /*!80000 IF v_ticket < v_least THEN
    SET v_least = GREATEST(v_least, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) + 200000);
    INSERT IGNORE INTO dibs_tickets VALUES (v_least);
    INSERT INTO dibs_tickets VALUES (NULL);
    SET v_ticket = LAST_INSERT_ID();
    DELETE FROM dibs_tickets WHERE ticket IN (v_least, v_ticket);
  END IF; */

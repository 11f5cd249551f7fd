  -- The next ticket, for all modes from one counter: at least `v_least`, and at most 0.2 s behind the clock. A counter
  -- that was reset, dropped or restored is set 0.2 s ahead of the clock: no ticket was further ahead of it when it was
  -- given. MariaDB's sequence writes down 200,000 at a time, which are on the disk once something is committed behind that
  -- (sure.sql). A crash skips what is left of them, 0.2 s at most, and starting the server takes longer. MySQL has no
  -- sequences: there a row is made for each ticket, and removed.
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

  -- The next ticket. MariaDB's sequence gives it without a commit: a million at a time are written as given, so that a
  -- crash, or a replica that takes over, goes on behind them. MySQL has none: there a row is made for it, and removed.
  /*M!100600 SET v_ticket = NEXTVAL(dibs_tickets); */
  /*!80000 INSERT INTO dibs_tickets VALUES (NULL); */
  /*!80000 SET v_ticket = LAST_INSERT_ID(); */
  /*!80000 DELETE FROM dibs_tickets WHERE ticket = v_ticket; */

  -- Tickets rise with the clock, so that they go on rising where the sequence was set back: by a fail-over that lost
  -- something, by tables that were made anew. Whoever does not get to raise it has a ticket that is as good.
  ticket_ := nextval('{schema}.dibs_tickets');
  IF ticket_ < now_ - 1000000 AND pg_try_advisory_xact_lock({schema}.dibs_1_key('tickets', '')) THEN
    IF (SELECT last_value FROM {schema}.dibs_tickets) < now_ - 1000000 THEN
      PERFORM setval('{schema}.dibs_tickets', now_);
    END IF;
    ticket_ := nextval('{schema}.dibs_tickets');
  END IF;

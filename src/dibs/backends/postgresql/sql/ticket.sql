  -- Tickets are at least the clock, so they still rise if a fail-over or an administrator set the sequence back.
  ticket_ := nextval('{schema}.dibs_tickets');
  IF ticket_ < now_ - 100000 THEN
    PERFORM {schema}.dibs_2_raise(now_);
    ticket_ := nextval('{schema}.dibs_tickets');
  END IF;

  -- Tickets rise with the clock, so that they go on rising where the sequence was set back: by a fail-over that lost
  -- something, or by hand. Nobody uses one that is behind it.
  ticket_ := nextval('{schema}.dibs_tickets');
  IF ticket_ < now_ - 100000 THEN
    PERFORM {schema}.dibs_2_raise(now_);
    ticket_ := nextval('{schema}.dibs_tickets');
  END IF;

  -- A client that was not here before begins where others noted that the queue begins.
  IF since_ = 0 THEN
    since_ := coalesce((SELECT ticket FROM {schema}.dibs_floors WHERE name = name_), 0);
  END IF;

  -- A client that does not know the queue starts at the recorded floor.
  IF since_ = 0 THEN
    since_ := coalesce((SELECT ticket FROM {schema}.dibs_floors WHERE name = name_), 0);
  END IF;

  -- Take the lock of the name before any read: each later statement sees everything that was committed by then.
  IF NOT pg_try_advisory_xact_lock({schema}.dibs_2_key(space_, name_)) THEN
    PERFORM set_config('lock_timeout', '1500ms', true);
    PERFORM pg_advisory_xact_lock({schema}.dibs_2_key(space_, name_));
  END IF;
  now_ := {clock};

  -- Use the server's own functions and operators, and no sequential scans, whatever this session has set. Direct
  -- connections set both once. SET clauses would take a third of the routine's time.
  IF (pg_catalog.current_schemas(true))[1] OPERATOR(pg_catalog.<>) 'pg_catalog' THEN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  END IF;
  IF current_setting('enable_seqscan') = 'on' THEN
    PERFORM set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
      set_config('jit', 'off', true);
  END IF;
  -- A transaction with a single snapshot would not see a commit that it waited for. The client repeats the request as
  -- READ COMMITTED.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'dibs: this transaction is not READ COMMITTED' USING ERRCODE = 'DB001';
  END IF;

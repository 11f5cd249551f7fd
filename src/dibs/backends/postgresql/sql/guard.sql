  -- Names mean the server's own functions and operators, whatever this session's search_path has before pg_catalog. To set
  -- it with each routine would cost a quarter of the routine.
  IF (pg_catalog.current_schemas(true))[1] OPERATOR(pg_catalog.<>) 'pg_catalog' THEN
    PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  END IF;
  -- A transaction that keeps one snapshot throughout would not see what was committed while it waited for a lock: it is
  -- refused, and asked again as it should be.
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'dibs: this transaction is not READ COMMITTED' USING ERRCODE = 'DB001';
  END IF;

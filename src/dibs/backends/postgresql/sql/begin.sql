  -- Nothing is read before the lock of the name is ours; each statement behind it sees what was committed by then. A
  -- transaction that keeps one snapshot throughout would not: it is refused, and asked again as it should be.
  IF NOT pg_try_advisory_xact_lock({schema}.dibs_1_key(space_, name_)) THEN
    PERFORM set_config('lock_timeout', '1500ms', true);
    PERFORM pg_advisory_xact_lock({schema}.dibs_1_key(space_, name_));
  END IF;
  IF current_setting('transaction_isolation') <> 'read committed' THEN
    RAISE EXCEPTION 'dibs: this transaction is not READ COMMITTED' USING ERRCODE = 'DB001';
  END IF;
  now_ := date_part('epoch', clock_timestamp()) * 1000000;

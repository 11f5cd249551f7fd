  IF store_ <> '' AND NOT EXISTS (
      SELECT FROM {schema}.dibs_store WHERE id = store_ AND claims = '{schema}.dibs_claims'::regclass) THEN
    PERFORM {schema}.dibs_2_known(store_);
  END IF;

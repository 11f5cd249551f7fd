  -- The user lock of a name. Those are the whole server's: so the database is part of it. At most 64 letters: so a hash.
  SET p_key = CONCAT('dibs', LEFT(SHA2(CONCAT(
    IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE()), '/', p_name
  ), 256), 60));

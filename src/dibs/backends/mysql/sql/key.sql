  -- The user lock of a name: a hash, because its name has at most 64 letters. All databases of a server share them.
  SET p_key = CONCAT('dibs', LEFT(SHA2(CONCAT(
    IF(@@lower_case_table_names, LOWER(DATABASE()), DATABASE()), '/', p_name
  ), 256), 60));

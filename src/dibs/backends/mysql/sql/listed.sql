  JSON_TABLE(p_claims, '$[*]' COLUMNS (
    name VARBINARY(4096) PATH '$[0]', ticket BIGINT UNSIGNED PATH '$[1]', id BINARY(32) PATH '$[2]'
  )) j

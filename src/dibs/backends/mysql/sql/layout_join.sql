-- join of layout 1: refuses its clients before they write anything. They report this reply as Mismatch.
CREATE PROCEDURE dibs_1_join(
  IN p_name VARBINARY(2048), IN p_id BINARY(16), IN p_client BINARY(16), IN p_kind VARBINARY(64),
  IN p_capacity BIGINT, IN p_weight BIGINT, IN p_lease BIGINT, IN p_waiting BIGINT, IN p_place TINYINT,
  IN p_about BLOB, IN p_by BIGINT
)
SQL SECURITY INVOKER
BEGIN
  SELECT CONCAT_WS(' ', TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), 2, 0, 0, 0, 0, 0, '',
    HEX('a queue of a newer version of dibs'), 1), NULL;
END

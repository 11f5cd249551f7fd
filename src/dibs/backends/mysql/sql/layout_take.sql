-- take of layout 1: refuses its clients, as layout_join does.
CREATE PROCEDURE dibs_1_take(
  IN p_key VARBINARY(64), IN p_wait INT, IN p_name VARBINARY(2048), IN p_kind VARBINARY(64), IN p_lease BIGINT,
  IN p_about VARBINARY(2048), IN p_sure BIGINT UNSIGNED
)
SQL SECURITY INVOKER
BEGIN
  SELECT CONCAT_WS(' ', 0, 'other', HEX('a queue of a newer version of dibs'));
END

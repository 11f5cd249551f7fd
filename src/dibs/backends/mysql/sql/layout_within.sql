-- within of layout 1: refuses its clients, as layout_join does.
CREATE PROCEDURE dibs_1_within(IN p_name VARBINARY(2048), IN p_proof VARBINARY(64), IN p_sure BIGINT UNSIGNED)
SQL SECURITY INVOKER
BEGIN
  SELECT CONCAT_WS(' ', 0, 'leased', '');
END

  DECLARE v_floor, v_top, v_last BIGINT UNSIGNED;
  DECLARE v_first BIGINT UNSIGNED DEFAULT 0;
  DECLARE v_head VARBINARY(16);
  DECLARE v_kind VARBINARY(64);
  DECLARE v_special, v_blocked, v_changed TINYINT DEFAULT 0;
  DECLARE v_outside, v_tombs, v_apart, v_now, v_used, v_capacity BIGINT;
  DECLARE v_next BIGINT DEFAULT -1;
  DECLARE v_mine, v_wakes MEDIUMBLOB DEFAULT '';

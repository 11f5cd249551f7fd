-- The tables. All user input is stored as bytes, so no collation can make two names equal. Times are microseconds since
-- 1970 by the server's clock, in UTC. Expired rows are removed by the next operation that meets them.

-- This is layout 2, and the routine names have its number. A layout that changes who holds gets another number, renames
-- dibs_queues, and creates routines that refuse clients of this layout, as layout_*.sql do for layout 1.

-- One row for each name in use: its queue. Operations that change a queue lock this row first.
-- A claim that is alone is in the row itself: the head. `id` is '' if there is none. `special` is 0 only if no claim of
-- the name is in dibs_claims, there is no unfair waiter and no tombstone, and `apart` is 0. So a client takes a free
-- queue with one UPDATE (`id` is '' and `special` is 0) and leaves it with another; the routines do everything else. A
-- routine that walks the queue first moves the head to dibs_claims (move.sql). No claim ever moves back.
-- `ticket` is the highest one that a claim of this name got. No claim in dibs_claims has a ticket below `floor`. After
-- `outside` there is no unfair waiter, and after `tombs` no tombstone. `apart` says in which other modes the name may
-- be held: 1 in session mode, 2 inside transactions, 3 in both, also in a new row; see apart.sql.
CREATE TABLE dibs_queues (
  name VARBINARY(2048) NOT NULL PRIMARY KEY,
  special TINYINT NOT NULL DEFAULT 1,
  ticket BIGINT UNSIGNED NOT NULL DEFAULT 0,
  asked BIGINT NOT NULL DEFAULT 0,
  until BIGINT NOT NULL DEFAULT 0,
  id VARBINARY(16) NOT NULL DEFAULT '',
  client BINARY(16) NOT NULL DEFAULT '',
  kind VARBINARY(64) NOT NULL DEFAULT '',
  capacity BIGINT NOT NULL DEFAULT 0,
  weight BIGINT NOT NULL DEFAULT 0,
  lease BIGINT NOT NULL DEFAULT 0,
  waiting BIGINT NOT NULL DEFAULT 0,
  revoked TINYINT NOT NULL DEFAULT 0,
  floor BIGINT UNSIGNED NOT NULL DEFAULT 0,
  outside BIGINT NOT NULL DEFAULT 0,
  tombs BIGINT NOT NULL DEFAULT 0,
  apart TINYINT NOT NULL DEFAULT 3,
  about BLOB NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The counter of tickets, which are the fencing tokens, for all modes: see ticket.sql. It starts a second behind the
-- clock: a sequence that is restarted gives this value again, and no claim uses it.
/*M!100600 EXECUTE IMMEDIATE CONCAT('CREATE SEQUENCE IF NOT EXISTS dibs_tickets START WITH ',
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 1000000, ' INCREMENT BY 0 CACHE 200000') */;

/*!80000 CREATE TABLE IF NOT EXISTS dibs_tickets (ticket BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY) */;

/*!80000 INSERT INTO dibs_tickets SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) */;

-- One row for each claim that is not in a head. `held`: since when it holds. `freed` is 1 until the client has heard
-- that its claim holds.
CREATE TABLE dibs_claims (
  name VARBINARY(2048) NOT NULL,
  ticket BIGINT UNSIGNED NOT NULL,
  id BINARY(16) NOT NULL,
  client BINARY(16) NOT NULL,
  kind VARBINARY(64) NOT NULL,
  capacity BIGINT NOT NULL,
  weight BIGINT NOT NULL,
  lease BIGINT NOT NULL,
  waiting BIGINT NOT NULL,
  until BIGINT NOT NULL,
  asked BIGINT NOT NULL,
  held BIGINT NULL,
  freed TINYINT NULL,
  revoked TINYINT NOT NULL,
  about BLOB NOT NULL,
  PRIMARY KEY (name, ticket),
  KEY id (id),
  KEY freed (client, freed)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Tombstones: ids of claims that left while a copy of their join may still arrive, until the copy would be too late.
CREATE TABLE dibs_tombs (
  id BINARY(16) NOT NULL PRIMARY KEY,
  until BIGINT NOT NULL,
  KEY until (until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row for each watcher: an unfair waiter (space 'outside'), a follower of a leader ('line'), or a watcher of a
-- cell. `told` is 1 after a change.
CREATE TABLE dibs_watchers (
  id BINARY(16) NOT NULL PRIMARY KEY,
  space VARBINARY(16) NOT NULL,
  name VARBINARY(2048) NOT NULL,
  client BINARY(16) NOT NULL,
  told TINYINT NULL,
  until BIGINT NOT NULL,
  KEY spot (name, space),
  KEY told (client, told),
  KEY until (until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Cells. Version 0: the cell is unset, and has only been watched.
CREATE TABLE dibs_cells (
  space VARBINARY(16) NOT NULL,
  name VARBINARY(2048) NOT NULL,
  value MEDIUMBLOB NULL,
  version BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (space, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Writes of cells, each with the version that it made, so that a copy of a write does nothing.
CREATE TABLE dibs_writes (
  id BINARY(16) NOT NULL PRIMARY KEY,
  version BIGINT UNSIGNED NOT NULL,
  until BIGINT NOT NULL,
  KEY until (until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row: the id of this store. Tables that are created anew get another one.
CREATE TABLE dibs_store (
  one TINYINT NOT NULL PRIMARY KEY,
  id BINARY(16) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO dibs_store VALUES (1, UNHEX(REPLACE(UUID(), '-', '')));

-- Two rows: how often tickets were flushed to the disk (sure.sql), and where the last sweep ended.
CREATE TABLE dibs_marks (
  mark VARBINARY(16) NOT NULL PRIMARY KEY,
  times BIGINT UNSIGNED NOT NULL,
  name VARBINARY(2048) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Session mode: one row for each name that was held lately. The session that has the user lock `lock_name` is the
-- holder; the row describes it if it is `session`. While `plain` is 1, no other mode holds the name without that user
-- lock: see apart.sql. All rows are gone when the server starts; a missing row is created again.
CREATE TABLE dibs_sessions (
  lock_name VARBINARY(64) NOT NULL PRIMARY KEY,
  plain TINYINT NOT NULL,
  session BIGINT UNSIGNED NOT NULL,
  ticket BIGINT UNSIGNED NOT NULL,
  kind VARBINARY(64) NOT NULL,
  revoked TINYINT NOT NULL,
  since BIGINT NOT NULL,
  lease BIGINT NOT NULL,
  name VARBINARY(2048) NOT NULL,
  about VARBINARY(2048) NOT NULL
) ENGINE = MEMORY;

-- Clients of layout 1 look here first. It stays empty, so they call the routine that refuses them.
CREATE TABLE dibs_held LIKE dibs_sessions;

-- Session mode: one row for each waiting session, for inspection and for quit.sql.
CREATE TABLE dibs_waits (
  session BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  ticket BIGINT UNSIGNED NOT NULL,
  kind VARBINARY(64) NOT NULL,
  since BIGINT NOT NULL,
  lease BIGINT NOT NULL,
  name VARBINARY(2048) NOT NULL,
  about VARBINARY(2048) NOT NULL
) ENGINE = MEMORY;

-- One row for each name that was ever locked inside a transaction, which locks this row.
CREATE TABLE dibs_within (
  name VARBINARY(2048) NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- The tables. Everything that a user gave is bytes here: no collation can make two names one. Times are microseconds
-- since 1970 by the server's clock, in UTC. A row that says nothing any more is removed by the next verb that passes.

-- This is layout 2. The routine names bear its number. A layout that changes who holds gets another number, renames
-- dibs_queues, and leaves routines of this one behind that refuse its clients, as layout_*.sql do with those of layout 1.

-- One row for each name in use: its queue. Operations that change a queue lock this row first.
-- A claim that is alone stands in the row itself: the head. `id` is '' where there is none. `special` is 0 only if no
-- claim of the name is in dibs_claims, no unfair waiter and no tombstone is noted, and `apart` is 0. So a client takes a
-- free queue with one UPDATE (`id` is '' and `special` is 0) and leaves it with another; the routines do everything else.
-- A routine that looks at the queue first moves the head to dibs_claims (move.sql). No claim ever moves back.
-- `ticket` is the highest that a claim of this name got. No claim in dibs_claims has a ticket below `floor`; after
-- `outside` there is no unfair waiter, and after `tombs` no tombstone. `apart` says in which other modes the name may be
-- held: 1 in session mode, 2 inside transactions, 3 in both, and in a new row; see apart.sql.
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

-- The counter of the tickets, which are the tokens, for all modes of a name: see ticket.sql. It begins a second behind the
-- clock, which nobody uses: a sequence that is restarted gives that value again.
/*M!100600 EXECUTE IMMEDIATE CONCAT('CREATE SEQUENCE IF NOT EXISTS dibs_tickets START WITH ',
  TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) - 1000000, ' INCREMENT BY 0 CACHE 200000') */;

/*!80000 CREATE TABLE IF NOT EXISTS dibs_tickets (ticket BIGINT UNSIGNED NOT NULL AUTO_INCREMENT PRIMARY KEY) */;

/*!80000 INSERT INTO dibs_tickets SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) */;

-- One row for each claim that is not in a head. `held` is since when it holds; `freed` is 1 while a client has not heard that its claim holds now.
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

-- Ids that left while their join may still be on its way, until it would come too late anyway.
CREATE TABLE dibs_tombs (
  id BINARY(16) NOT NULL PRIMARY KEY,
  until BIGINT NOT NULL,
  KEY until (until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Who is to be told of a change: those who wait outside a queue (space 'outside'), who follow a leader ('line'), who
-- watch a cell. `told` is 1 once something happened there.
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

-- Values that nobody owns. At version 0 a cell is unset: somebody watches it, or has.
CREATE TABLE dibs_cells (
  space VARBINARY(16) NOT NULL,
  name VARBINARY(2048) NOT NULL,
  value MEDIUMBLOB NULL,
  version BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (space, name)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Writes that may be repeated, and the version that each made.
CREATE TABLE dibs_writes (
  id BINARY(16) NOT NULL PRIMARY KEY,
  version BIGINT UNSIGNED NOT NULL,
  until BIGINT NOT NULL,
  KEY until (until)
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- One row: which store this is. Tables that are made anew are another one.
CREATE TABLE dibs_store (
  one TINYINT NOT NULL PRIMARY KEY,
  id BINARY(16) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

INSERT IGNORE INTO dibs_store VALUES (1, UNHEX(REPLACE(UUID(), '-', '')));

-- One row for each count of the whole store: how often tickets were made sure of (sure.sql), and where the last sweep
-- ended.
CREATE TABLE dibs_marks (
  mark VARBINARY(16) NOT NULL PRIMARY KEY,
  times BIGINT UNSIGNED NOT NULL,
  name VARBINARY(2048) NOT NULL
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

-- Session mode: one row for each name that was held lately. Who holds is whoever has the user lock `lock_name`; if that is
-- `session`, the row is about it. While `plain` is 1, nobody holds the name in another mode who does not have that user
-- lock meanwhile: see apart.sql. All rows are gone when the server starts; one that is missing is made anew.
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

-- Clients of layout 1 look here first. It stays empty, and sends them to the routine that refuses them.
CREATE TABLE dibs_held LIKE dibs_sessions;

-- Session mode: one row for each session that waits, for those who look.
CREATE TABLE dibs_waits (
  session BIGINT UNSIGNED NOT NULL PRIMARY KEY,
  ticket BIGINT UNSIGNED NOT NULL,
  kind VARBINARY(64) NOT NULL,
  since BIGINT NOT NULL,
  lease BIGINT NOT NULL,
  name VARBINARY(2048) NOT NULL,
  about VARBINARY(2048) NOT NULL
) ENGINE = MEMORY;

-- One row for each name that was ever locked inside a transaction: the row that such a transaction locks.
CREATE TABLE dibs_within (
  name VARBINARY(2048) NOT NULL PRIMARY KEY
) ENGINE = InnoDB ROW_FORMAT = DYNAMIC;

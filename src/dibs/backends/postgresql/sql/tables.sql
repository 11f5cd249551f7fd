-- The tables. Times are microseconds since 1970 of the server's clock. Nothing is a row that many pairs write: a claim is
-- added and removed, and tickets come from a sequence; so a transaction that stays open elsewhere makes no pair slow.

-- The layout of the tables. Clients and routines of another layout are refused before they write anything. Statements
-- compare it when they are planned, and are planned again when this is replaced.
DO $dibs$ BEGIN
  IF to_regprocedure('{schema}.dibs_layout()') IS NULL THEN
    CREATE FUNCTION {schema}.dibs_layout() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT {layout}';
  ELSIF {schema}.dibs_layout() <> {layout} THEN
    RAISE EXCEPTION 'dibs: the tables have layout %', {schema}.dibs_layout() USING ERRCODE = 'DB004';
  END IF;
END $dibs$;
-- A sequence that is made anew begins above all earlier tickets.
DO $dibs$ BEGIN
  IF to_regclass('{schema}.dibs_tickets') IS NULL THEN
    CREATE SEQUENCE {schema}.dibs_tickets AS bigint;
    PERFORM setval('{schema}.dibs_tickets', {clock});
  END IF;
END $dibs$;
CREATE TABLE IF NOT EXISTS {schema}.dibs_claims (
    name text COLLATE "C" NOT NULL,
    ticket bigint NOT NULL CHECK (ticket > 0),
    id bytea NOT NULL,
    client bytea NOT NULL,
    kind text NOT NULL,
    capacity bigint NOT NULL CHECK (capacity > 0),
    weight bigint NOT NULL CHECK (weight >= 0),
    lease bigint NOT NULL CHECK (lease > 0),
    waiting bigint NOT NULL CHECK (waiting > 0),
    until bigint NOT NULL,
    asked bigint NOT NULL,
    held bigint,
    revoked boolean NOT NULL,
    about text NOT NULL,
    PRIMARY KEY (name, ticket)
) WITH (fillfactor = 70, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);
-- Below which ticket nobody stands: of queues in which many came and went. What is left of them may not be cleaned up yet.
CREATE TABLE IF NOT EXISTS {schema}.dibs_floors (
    name text COLLATE "C" PRIMARY KEY,
    ticket bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {schema}.dibs_tombs (
    id bytea PRIMARY KEY,
    until bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {schema}.dibs_outsiders (
    name text COLLATE "C" NOT NULL,
    id bytea NOT NULL,
    client bytea NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (name, id)
);
CREATE TABLE IF NOT EXISTS {schema}.dibs_cells (
    space text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    version bigint NOT NULL CHECK (version > 0),
    PRIMARY KEY (space, name)
);
CREATE TABLE IF NOT EXISTS {schema}.dibs_writes (
    id bytea PRIMARY KEY,
    version bigint NOT NULL,
    until bigint NOT NULL
);
CREATE TABLE IF NOT EXISTS {schema}.dibs_watchers (
    space text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    key bytea NOT NULL,
    client bytea NOT NULL,
    until bigint NOT NULL,
    PRIMARY KEY (space, name, key)
);
CREATE TABLE IF NOT EXISTS {schema}.dibs_keys (
    key bigint PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    kind text NOT NULL,
    capacity bigint NOT NULL CHECK (capacity > 0),
    revoked bigint[] NOT NULL,
    pid integer NOT NULL,
    token bigint NOT NULL,
    about text NOT NULL
);
-- Which store this is. Claims that were made anew, or came from a dump, are another one: see `_verb` in routines.py.
CREATE TABLE IF NOT EXISTS {schema}.dibs_store (
    one smallint PRIMARY KEY CHECK (one = 1),
    id text NOT NULL,
    claims oid NOT NULL
);
INSERT INTO {schema}.dibs_store AS store VALUES (1, {fresh}, '{schema}.dibs_claims'::regclass)
    ON CONFLICT (one) DO UPDATE SET id = excluded.id, claims = excluded.claims WHERE store.claims <> excluded.claims;

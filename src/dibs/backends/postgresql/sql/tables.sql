-- The tables. Times are microseconds since 1970 of the server's clock. No row is updated by every acquire: claims are
-- added and removed, and tickets come from a sequence. So a transaction that stays open elsewhere does not slow them
-- down.

-- The layout of the tables. Clients and routines of another layout are refused before they write anything. The planner
-- compares it, and plans again when this function is replaced.
DO $dibs$ BEGIN
  IF to_regprocedure('{schema}.dibs_layout()') IS NULL THEN
    CREATE FUNCTION {schema}.dibs_layout() RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT {layout}';
  ELSIF {schema}.dibs_layout() <> {layout} THEN
    RAISE EXCEPTION 'dibs: the tables have layout %', {schema}.dibs_layout() USING ERRCODE = 'DB004';
  END IF;
END $dibs$;
-- A new sequence starts above all earlier tickets.
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
-- The lowest ticket of busy queues, so that clients skip dead rows which are not vacuumed yet.
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
-- The id of the store. A table of claims that was created again or restored is another store: see `_verb` in
-- routines.py.
CREATE TABLE IF NOT EXISTS {schema}.dibs_store (
    one smallint PRIMARY KEY CHECK (one = 1),
    id text NOT NULL,
    claims oid NOT NULL
);
INSERT INTO {schema}.dibs_store AS store VALUES (1, {fresh}, '{schema}.dibs_claims'::regclass)
    ON CONFLICT (one) DO UPDATE SET id = excluded.id, claims = excluded.claims WHERE store.claims <> excluded.claims;

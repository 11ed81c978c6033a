-- The tables of a job in the first format, as it was written.
CREATE TABLE job(
  id int PRIMARY KEY DEFAULT 1 CHECK(id = 1),
  run bigint NOT NULL DEFAULT 0, made_by text NOT NULL,
  salt bytea NOT NULL, key_check bytea NOT NULL, account_key bytea NOT NULL,
  input text, input_offset bigint NOT NULL DEFAULT 0, input_line bigint NOT NULL DEFAULT 0,
  input_end boolean NOT NULL DEFAULT false, importer bigint);
CREATE TABLE members(
  member bigserial PRIMARY KEY, output int NOT NULL, host text NOT NULL, pid int NOT NULL,
  since timestamptz NOT NULL DEFAULT now(), until timestamptz NOT NULL,
  commits bigint NOT NULL DEFAULT 0, held bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
CREATE TABLE outputs(
  output serial PRIMARY KEY, host text NOT NULL, path text NOT NULL, is_stream boolean NOT NULL,
  out_end bigint NOT NULL DEFAULT 0, last_len bigint NOT NULL DEFAULT 0, last_hash bigint NOT NULL DEFAULT 0,
  imported bigint NOT NULL DEFAULT 0, parked bigint NOT NULL DEFAULT 0, done bigint NOT NULL DEFAULT 0,
  failed bigint NOT NULL DEFAULT 0, unknown bigint NOT NULL DEFAULT 0) WITH (fillfactor = 50);
CREATE UNIQUE INDEX outputs_by_path ON outputs(host, path) WHERE NOT is_stream;
CREATE TABLE lanes(lane serial PRIMARY KEY, key text NOT NULL UNIQUE);
CREATE TABLE lane_counts(
  lane int, output int, imported bigint NOT NULL, parked bigint NOT NULL, done bigint NOT NULL, failed bigint NOT NULL,
  PRIMARY KEY(lane, output)) WITH (fillfactor = 70);
CREATE TABLE items(seq bigint PRIMARY KEY, lane int, rank int NOT NULL, id text, request bytea NOT NULL);
ALTER TABLE items ALTER request SET STORAGE EXTERNAL;
CREATE TABLE waiting(lane int, rank int, seq bigint, PRIMARY KEY(lane, rank, seq)) WITH (
  autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE leased(seq bigint PRIMARY KEY, member bigint NOT NULL, lane int NOT NULL, rank int NOT NULL) WITH (
  autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000, autovacuum_vacuum_cost_delay = 0);
CREATE TABLE parked(
  seq bigint PRIMARY KEY, lane int NOT NULL, rank int NOT NULL, kind smallint NOT NULL, due bigint, account text,
  reason text);
CREATE INDEX parked_due ON parked(due) WHERE kind = 0;
CREATE INDEX parked_next_run ON parked(seq) WHERE kind = 1;
CREATE INDEX parked_account ON parked(account) WHERE kind = 2;
CREATE TABLE progress(
  seq bigint PRIMARY KEY, attempts int NOT NULL, refusals int NOT NULL, run bigint NOT NULL, limited int NOT NULL,
  waited_us bigint NOT NULL, started bigint, error text);
CREATE TABLE ended(
  seq bigint PRIMARY KEY, ending smallint NOT NULL, output int NOT NULL, place bigint, length bigint);
CREATE INDEX ended_badly ON ended(seq) WHERE ending <> 0;
CREATE TABLE gates(key text PRIMARY KEY, version int NOT NULL, until bigint, record bytea NOT NULL, member bigint);
CREATE TABLE exits(
  name text PRIMARY KEY, state text NOT NULL, requests bigint NOT NULL, done bigint NOT NULL, refused bigint NOT NULL,
  blocked bigint NOT NULL, faults bigint NOT NULL, bytes bigint NOT NULL, cost double precision);

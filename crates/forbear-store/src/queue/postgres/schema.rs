//! The tables of a job. Each job has a schema of its own, so no row carries the job's number, each job's tables are as large
//! as the job, and a job is dropped in an instant.
//!
//! As in SQLite, a request is written once and an item's state is *where its number stands*: in `waiting`, `leased`,
//! `parked` or `ended`, in exactly one of them at each commit. All four are narrow. What is claimed has left `waiting`, what
//! is done has left `leased`: so what is looked through by whoever claims is as large as what is still to do, and the
//! hundred million rows that are done are touched by nobody.

/// The format written here. Older ones are migrated when opened, newer ones refused.
pub(crate) const VERSION: i32 = 1 + MIGRATIONS.len() as i32;

/// What leads from each format to the next, in the schema of the job. [`TABLES`] is what comes out.
pub(crate) const MIGRATIONS: [&str; 1] =
    // Whose a record is that a dead process left, by the id that its line gave.
    ["CREATE INDEX items_by_id ON items(id) WHERE id IS NOT NULL"];

/// For all jobs of a database.
pub(crate) const CATALOGUE: &str = "
CREATE SCHEMA IF NOT EXISTS forbear;
CREATE TABLE IF NOT EXISTS forbear.jobs(
  job serial PRIMARY KEY, name text NOT NULL UNIQUE, format int NOT NULL, made timestamptz NOT NULL DEFAULT now());
";

/// For one job, in its schema.
///
/// `members` are the processes that work on it, each with its lease; `leased` says which item is whose. `outputs` and
/// `lane_counts` have a row for each output file, and so for each process that writes: totals are sums, and no two
/// processes wait for each other to count.
pub(crate) const TABLES: &str = "
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
CREATE INDEX items_by_id ON items(id) WHERE id IS NOT NULL;
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
";

/// The schema of a job.
pub(crate) fn name(job: i32) -> String {
    format!("forbear_job_{job}")
}

/// Kinds in `parked`.
pub(crate) const PARKED_UNTIL_TIME: i16 = 0;
pub(crate) const PARKED_UNTIL_NEXT_RUN: i16 = 1;
pub(crate) const PARKED_UNTIL_CREDENTIALS: i16 = 2;

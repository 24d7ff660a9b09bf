-- What the fleet has done: runs, totals, audits. For status and metrics only: no step of the protocol
-- reads any of it.
--
-- A worker that cron started is gone before anybody scrapes it. So each batch leaves its figures in
-- its claim row, each run in cleanup_runs, and the watchdog adds both to cleanup_totals, once, in the
-- transaction that marks them as counted.

-- step: deletion_claims: what a batch leaves for the totals
ALTER TABLE deletion_claims
    ADD COLUMN IF NOT EXISTS lock_wait_ms int,
    ADD COLUMN IF NOT EXISTS lock_hold_ms int,
    -- Bodies whose count was wrong and was repaired by this release.
    ADD COLUMN IF NOT EXISTS drift        int,
    -- Pastes that this batch could not delete; dead letters among them.
    ADD COLUMN IF NOT EXISTS rows_failed  int,
    ADD COLUMN IF NOT EXISTS dead_letters int,
    -- From expiry to erasure: how many pastes by upper bound in seconds, and their "sum".
    ADD COLUMN IF NOT EXISTS ages         jsonb,
    ADD COLUMN IF NOT EXISTS counted      boolean NOT NULL DEFAULT false;

-- step: index deletion_claims_uncounted_idx: ended claims that are not in the totals yet
CREATE INDEX CONCURRENTLY IF NOT EXISTS deletion_claims_uncounted_idx
    ON deletion_claims (id)
    WHERE NOT counted AND (finished_at IS NOT NULL OR reset_at IS NOT NULL);

-- step: cleanup_runs: one row for each run of a worker
CREATE TABLE IF NOT EXISTS cleanup_runs (
    -- A worker mints its id at start, and makes one run.
    worker          uuid PRIMARY KEY,
    host            text,
    started_at      timestamptz NOT NULL,
    -- When it last wrote here, every heartbeat. Long ago and not ended: it died.
    seen_at         timestamptz NOT NULL,
    ended_at        timestamptz,
    stopped_because text,
    error           text,
    rows_deleted    bigint NOT NULL DEFAULT 0,
    objects_deleted bigint NOT NULL DEFAULT 0,
    bytes_freed     bigint NOT NULL DEFAULT 0,
    rows_failed     bigint NOT NULL DEFAULT 0,
    -- What the worker waits for right now.
    waiting_for     text,
    -- Name to number, since the start of the run; and how much of it is in the totals.
    figures         jsonb NOT NULL DEFAULT '{}',
    counted         jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX IF NOT EXISTS cleanup_runs_started_idx ON cleanup_runs (started_at);
CREATE INDEX IF NOT EXISTS cleanup_runs_drained_idx ON cleanup_runs (ended_at)
    WHERE stopped_because = 'drained';
CREATE INDEX IF NOT EXISTS cleanup_runs_uncounted_idx ON cleanup_runs (worker)
    WHERE figures <> counted;

-- step: cleanup_totals: since the beginning, whoever was killed meanwhile
CREATE TABLE IF NOT EXISTS cleanup_totals (
    name  text NOT NULL,
    label text NOT NULL DEFAULT '',
    value double precision NOT NULL,
    PRIMARY KEY (name, label)
);

-- step: cleanup_audits: what cleanupctl audit found
CREATE TABLE IF NOT EXISTS cleanup_audits (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ended_at        timestamptz NOT NULL DEFAULT now(),
    -- It got to the end of bucket and tables.
    complete        boolean NOT NULL,
    objects         bigint NOT NULL,
    orphans         bigint NOT NULL,
    missing_objects bigint NOT NULL,
    wrong_counts    bigint NOT NULL,
    -- Of all findings, those that are still there: not asked to repair them, or not able to.
    findings_left   bigint NOT NULL
);

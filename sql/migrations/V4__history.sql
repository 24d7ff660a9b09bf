-- Runs, totals, audits: for status and metrics. One thing decides: cleanup_last_heartbeat() keeps a
-- worker that waits for a lock from being reset.
--
-- A worker that cron started has exited before Prometheus scrapes it. So each batch leaves its numbers
-- in its claim row and each run in cleanup_runs. The watchdog adds both to cleanup_totals, once, in the
-- transaction that marks them as counted.

-- step: cleanup_runs: one row for each run of a worker
CREATE TABLE IF NOT EXISTS cleanup_runs (
    -- Chosen at start; a worker makes one run.
    worker          uuid PRIMARY KEY,
    host            text,
    started_at      timestamptz NOT NULL,
    -- When it last wrote here, every heartbeat. Long ago and not ended: it is dead.
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
    -- Claims whose rows the worker itself has locked. A step that waits for another transaction's lock
    -- keeps its claim row locked, so that the heartbeat cannot reach it there.
    busy_claims     bigint[],
    -- Name to number, since the start of the run; and how much of it is in the totals.
    figures         jsonb NOT NULL DEFAULT '{}',
    counted         jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX IF NOT EXISTS cleanup_runs_started_idx ON cleanup_runs (started_at);
CREATE INDEX IF NOT EXISTS cleanup_runs_drained_idx ON cleanup_runs (ended_at)
    WHERE stopped_because = 'drained';
CREATE INDEX IF NOT EXISTS cleanup_runs_uncounted_idx ON cleanup_runs (worker)
    WHERE figures <> counted;

-- step: cleanup_last_heartbeat: when a claim's worker was last known to be alive
-- A login without rights on cleanup_runs goes by the claim alone.
CREATE OR REPLACE FUNCTION cleanup_last_heartbeat(claim deletion_claims) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT has_table_privilege('cleanup_runs', 'SELECT') THEN
        RETURN claim.heartbeat_at;
    END IF;
    RETURN greatest(claim.heartbeat_at,
                    (SELECT run.seen_at FROM cleanup_runs run
                     WHERE run.worker = claim.worker AND claim.id = ANY (run.busy_claims)
                       -- Written while the clock was ahead: it proves nothing.
                       AND run.seen_at <= now() + interval '1 minute'));
END $$;

-- step: cleanup_totals: since the first run, whatever was killed meanwhile
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
    -- Of all findings, those that are left: no repair was asked for, or it failed.
    findings_left   bigint NOT NULL
);

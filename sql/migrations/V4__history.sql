-- Runs, totals and audits, for status and metrics. Only cleanup_last_heartbeat() influences what the
-- fleet does: it keeps the claims of a worker that waits for a lock from being reset.
--
-- A worker started by cron has exited before Prometheus can scrape it. So each batch records its stats
-- in its claim row, and each run in cleanup_runs. The watchdog adds both to cleanup_totals, once, in the
-- transaction that marks them as counted.

-- step: cleanup_runs: one row for each run of a worker
CREATE TABLE IF NOT EXISTS cleanup_runs (
    -- Chosen at the start; a worker does one run.
    worker          uuid PRIMARY KEY,
    host            text,
    started_at      timestamptz NOT NULL,
    -- Updated with every heartbeat. If it is old and the run has not ended, the run is dead.
    seen_at         timestamptz NOT NULL,
    ended_at        timestamptz,
    stopped_because text,
    error           text,
    rows_deleted    bigint NOT NULL DEFAULT 0,
    objects_deleted bigint NOT NULL DEFAULT 0,
    bytes_freed     bigint NOT NULL DEFAULT 0,
    rows_failed     bigint NOT NULL DEFAULT 0,
    -- What the worker is waiting for now.
    waiting_for     text,
    -- Claims whose claim row the worker itself has locked: a step that waits for another transaction's
    -- lock keeps it locked, so the heartbeat cannot update it and is recorded here instead.
    busy_claims     bigint[],
    -- Name to number, since the start of the run; and the part that is already in the totals.
    stats           jsonb NOT NULL DEFAULT '{}',
    counted         jsonb NOT NULL DEFAULT '{}'
);
CREATE INDEX IF NOT EXISTS cleanup_runs_started_idx ON cleanup_runs (started_at);
CREATE INDEX IF NOT EXISTS cleanup_runs_drained_idx ON cleanup_runs (ended_at)
    WHERE stopped_because = 'drained';
CREATE INDEX IF NOT EXISTS cleanup_runs_uncounted_idx ON cleanup_runs (worker)
    WHERE stats <> counted;

-- step: cleanup_last_heartbeat: when a claim's worker was last known to be alive
-- For a login without rights on cleanup_runs, the claim row alone counts.
CREATE OR REPLACE FUNCTION cleanup_last_heartbeat(claim deletion_claims) RETURNS timestamptz
LANGUAGE plpgsql STABLE AS $$
BEGIN
    IF NOT has_table_privilege('cleanup_runs', 'SELECT') THEN
        RETURN claim.heartbeat_at;
    END IF;
    RETURN greatest(claim.heartbeat_at,
                    (SELECT run.seen_at FROM cleanup_runs run
                     WHERE run.worker = claim.worker AND claim.id = ANY (run.busy_claims)
                       -- A later time was written while the clock was ahead: it proves nothing.
                       AND run.seen_at <= now() + interval '1 minute'));
END $$;

-- step: cleanup_totals: totals since the first run, over all workers
CREATE TABLE IF NOT EXISTS cleanup_totals (
    name  text NOT NULL,
    label text NOT NULL DEFAULT '',
    value double precision NOT NULL,
    PRIMARY KEY (name, label)
);

-- step: cleanup_audits: results of cleanupctl audit
CREATE TABLE IF NOT EXISTS cleanup_audits (
    id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    ended_at        timestamptz NOT NULL DEFAULT now(),
    -- It reached the end of the bucket and the tables.
    complete        boolean NOT NULL,
    objects         bigint NOT NULL,
    orphans         bigint NOT NULL,
    missing_objects bigint NOT NULL,
    wrong_counts    bigint NOT NULL,
    -- Findings that were not repaired: without --repair, or because the repair failed.
    findings_left   bigint NOT NULL
);

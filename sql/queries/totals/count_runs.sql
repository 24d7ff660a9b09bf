-- Adds to the totals what runs have reported since they were last counted, and records that, in one
-- statement: nothing is counted twice, even if a watchdog is killed. A stat "name.label" becomes the
-- total `name` with that label.
-- $1 runs per statement.
-- Always one row. `counted` less than $1: none are left.
WITH changed AS MATERIALIZED (
    SELECT worker, stats, counted
    FROM cleanup_runs
    WHERE stats <> counted
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
    UPDATE cleanup_runs SET counted = changed.stats
    FROM changed
    WHERE cleanup_runs.worker = changed.worker
), more AS (
    SELECT split_part(key, '.', 1) AS name, split_part(key, '.', 2) AS label,
           sum(value::float8 - coalesce((counted ->> key)::float8, 0)) AS value
    FROM changed, jsonb_each_text(stats)
    GROUP BY key
), added AS (
    INSERT INTO cleanup_totals AS total (name, label, value)
    SELECT name, label, value FROM more WHERE value <> 0
    -- In order, so that two watchdogs never deadlock.
    ORDER BY name, label
    ON CONFLICT (name, label) DO UPDATE SET value = total.value + excluded.value
)
SELECT count(*) AS counted FROM changed

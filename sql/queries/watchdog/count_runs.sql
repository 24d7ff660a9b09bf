-- Adds to the totals what runs have reported since they were last counted, and marks it, in one
-- statement: nothing counts twice, whoever is killed. A figure "name.label" goes to both.
-- $1 runs per statement.
WITH changed AS MATERIALIZED (
    SELECT worker, figures, counted
    FROM cleanup_runs
    WHERE figures <> counted
    LIMIT $1::int
    FOR NO KEY UPDATE SKIP LOCKED
), marked AS (
    UPDATE cleanup_runs SET counted = changed.figures
    FROM changed
    WHERE cleanup_runs.worker = changed.worker
), more AS (
    SELECT split_part(key, '.', 1) AS name, split_part(key, '.', 2) AS label,
           sum(value::float8 - coalesce((counted ->> key)::float8, 0)) AS value
    FROM changed, jsonb_each_text(figures)
    GROUP BY key
), added AS (
    INSERT INTO cleanup_totals AS total (name, label, value)
    SELECT name, label, value FROM more WHERE value <> 0
    -- In order: two watchdogs never wait for each other in a circle.
    ORDER BY name, label
    ON CONFLICT (name, label) DO UPDATE SET value = total.value + excluded.value
)
SELECT count(*) AS counted FROM changed

//! Measures how much work the server does for the statements of a batch, in rows and pages rather
//! than in time, so that a busy machine does not matter. The planner's statistics are varied.
//! `ops/bench --plans` prints the same numbers.

use paste_cleanup::postgres::planner::{BY_DUE_INDEX, BY_KEY};
use tokio_postgres::{Client, Error, SimpleQueryMessage};

/// A batch with four times the rows may cause at most six times the work. Quadratic growth is sixteen
/// times.
pub(crate) const TOO_MUCH: u64 = 6;

/// The planner's statistics.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Statistics {
    Fresh,
    /// As after a restore.
    Missing,
    /// From before any row was in progress.
    Stale,
}

macro_rules! query {
    ($name:literal) => {
        ($name, include_str!(concat!("../../sql/queries/", $name, ".sql")))
    };
}

/// The statements that process more than one row, with their arguments in SQL.
const STATEMENTS: [((&str, &str), &str); 23] = [
    (query!("claim/claim"), "gen_random_uuid(), cardinality(codes()), NULL, 9, true"),
    (query!("claim/row_by_row/candidates"), "cardinality(codes()), 9, NULL"),
    (query!("claim/row_by_row/newest_due"), "cardinality(codes()), 0"),
    (query!("run/next_due"), "'1 hour'"),
    (query!("run/remaining"), "gen_random_uuid(), cardinality(codes())"),
    (query!("backlog/count_due"), "cardinality(codes())"),
    (query!("status/snapshot"), "7200"),
    (query!("decrement/lock_content"), "hashes(), claim()"),
    (query!("decrement/count_rows"), "claim()"),
    (query!("decrement/still_referenced"), "hashes()"),
    (query!("content/count_references"), "hashes()"),
    (
        query!("decrement/subtract"),
        "hashes(), array_fill(1, ARRAY[cardinality(hashes())]),
         array_fill(1::bigint, ARRAY[cardinality(hashes())])",
    ),
    (query!("content/recount"), "hashes(), array_fill(1::bigint, ARRAY[cardinality(hashes())])"),
    (query!("content/delete_unreferenced"), "hashes()"),
    (query!("finish/existing_rows"), "codes(), claim()"),
    (query!("finish/delete_rows"), "claim(), codes()"),
    (query!("finish/write_tombstones"), "claim(), codes()"),
    (query!("claim/fail_rows"), "claim(), codes(), codes(), codes(), true, 5, 900, flags()"),
    (query!("reset/lock_rows"), "claim()"),
    (query!("reset/assign_pending_keys"), "claim(), codes(), codes(), codes()"),
    (query!("reset/spare_rows"), "claim(), cardinality(codes()), codes()"),
    (query!("reset/defer_rows"), "codes(), codes(), 900"),
    (query!("reset/reset_rows"), "claim(), false, true, NULL, NULL, 900, 5, codes(), false"),
];

/// The planner settings of the fleet's sessions: a decrement or finish, a reset, and the part of a
/// reset that updates rows in the order of their keys.
const SESSIONS: [&str; 3] = [
    BY_KEY,
    "SET LOCAL plan_cache_mode = force_custom_plan",
    "SET LOCAL plan_cache_mode = force_custom_plan; SET LOCAL enable_seqscan = off; \
     SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off",
];

/// A plan that hashes a list only while it fits into memory hashes as little as possible.
const LEAST_MEMORY: &str = "SET LOCAL work_mem = '64kB'";

/// Fills empty tables: a claim of `rows` pastes, each with content that a live paste shares although
/// its count is one; as many pastes that are stranded, and due; and, due before them, ten times as many
/// that are unclaimable.
pub(crate) async fn fill(client: &Client, rows: u64, statistics: Statistics) -> Result<(), Error> {
    const ANALYZE: &str = "ANALYZE pastes; ANALYZE content; ANALYZE deletion_claims";
    let pastes = format!(
        "ALTER TABLE pastes SET (autovacuum_enabled = off);
         ALTER TABLE content SET (autovacuum_enabled = off);
         INSERT INTO pastes (short_code, content_hash, expires_at)
         SELECT 'claimed ' || n, sha256(n::text::bytea), now() - interval '1 day'
         FROM generate_series(1, {rows}) n;
         INSERT INTO content (content_hash, s3_key, ref_count)
         SELECT content_hash, short_code, 1 FROM pastes"
    );
    client.batch_execute(&pastes).await?;
    if let Statistics::Stale = statistics {
        client.batch_execute(ANALYZE).await?;
    }
    let others = format!(
        "WITH claim AS (INSERT INTO deletion_claims (worker, rows_claimed)
                        VALUES (gen_random_uuid(), {rows}) RETURNING id)
         UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS', deletion_initiated_at = now(),
                           claim_id = (SELECT id FROM claim);
         INSERT INTO pastes (short_code, content_hash)
         SELECT 'live ' || short_code, content_hash FROM pastes;
         INSERT INTO pastes (short_code, content_hash, deletion_status, deletion_initiated_at)
         SELECT 'unclaimed ' || n, sha256(('u' || n)::bytea), 'DELETION_IN_PROGRESS', now()
         FROM generate_series(1, {rows}) n;
         INSERT INTO pastes (short_code, content_hash, expires_at)
         SELECT 'due ' || n, sha256(('d' || n)::bytea), now() - interval '1 hour'
         FROM generate_series(1, {rows}) n;
         INSERT INTO cleanup_unclaimable (short_code, error, retry_at)
         SELECT 'unclaimable ' || n, 'refused', now() + interval '1 day'
         FROM generate_series(1, 10 * {rows}) n;
         INSERT INTO pastes (short_code, content_hash, expires_at)
         SELECT short_code, sha256(short_code::bytea), now() - interval '2 hours'
         FROM cleanup_unclaimable"
    );
    client.batch_execute(&others).await?;
    if let Statistics::Fresh = statistics {
        client.batch_execute(ANALYZE).await?;
    }
    // EXECUTE takes no subqueries.
    for (name, sql_type, what) in [
        ("hashes", "bytea[]", "array_agg(content_hash ORDER BY content_hash)"),
        ("codes", "text[]", "array_agg(short_code ORDER BY short_code)"),
        ("flags", "boolean[]", "array_agg(true)"),
        ("claim", "bigint", "max(claim_id)"),
    ] {
        let function = format!(
            "CREATE FUNCTION {name}() RETURNS {sql_type} STABLE LANGUAGE sql AS
             'SELECT {what} FROM pastes WHERE claim_id IS NOT NULL'"
        );
        client.batch_execute(&function).await?;
    }
    Ok(())
}

/// Returns the most work that each statement does in any of the sessions.
pub(crate) async fn measure(client: &Client) -> Result<Vec<(&'static str, Work)>, Error> {
    let mut measured = Vec::new();
    for ((name, sql), arguments) in STATEMENTS {
        let mut most = Work::default();
        for session in SESSIONS {
            let more = if name.starts_with("claim") { BY_DUE_INDEX } else { "SET LOCAL jit = off" };
            client.batch_execute(&format!("BEGIN; {LEAST_MEMORY}; {session}; {more}")).await?;
            let work = work(client, sql, arguments).await?;
            client.batch_execute("ROLLBACK").await?;
            most = Work { rows: most.rows.max(work.rows), pages: most.pages.max(work.pages) };
        }
        measured.push((name, most));
    }
    Ok(measured)
}

/// The rows that the plan's nodes returned or rejected, and the pages that they read.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Work {
    pub rows: u64,
    pub pages: u64,
}

impl Work {
    /// Returns whether a batch four times as large caused more than [`TOO_MUCH`] times the rows.
    /// Pages are not compared: a small table is read whole and a large one by its index, so pages
    /// also depend on the plan.
    pub(crate) fn grew_too_much(self, larger: Self) -> bool {
        larger.rows > self.rows * TOO_MUCH
    }
}

/// Executes the statement with these arguments (SQL expressions) and counts its work. It is prepared,
/// so that the session's plan_cache_mode applies; a plain EXPLAIN always plans for its parameters.
async fn work(client: &Client, sql: &str, arguments: &str) -> Result<Work, Error> {
    client.batch_execute(&format!("PREPARE measured AS {sql}")).await?;
    let explain = format!(
        "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT YAML) EXECUTE measured ({arguments})"
    );
    let lines = client.simple_query(&explain).await?;
    client.batch_execute("DEALLOCATE measured").await?;
    let plan = lines.iter().find_map(|line| match line {
        SimpleQueryMessage::Row(row) => row.get(0),
        _ => None,
    });
    Ok(count(plan.unwrap_or_default()))
}

/// Adds up the nodes of a plan. A node's own lines come before those of its children; the pages of
/// the first node include those of all others.
fn count(plan: &str) -> Work {
    let (mut rows, mut loops, mut pages) = (0.0, 1.0, None);
    let mut returned = 0.0;
    for line in plan.lines() {
        let Some((name, value)) = line.trim_start_matches([' ', '-']).split_once(": ") else {
            continue;
        };
        let value: f64 = value.parse().unwrap_or_default();
        match name {
            "Actual Rows" => returned = value,
            "Actual Loops" => {
                loops = value;
                rows += returned * loops;
            }
            "Rows Removed by Filter" | "Rows Removed by Join Filter" => rows += value * loops,
            "Shared Hit Blocks" => pages = pages.or(Some(value)),
            _ => {}
        }
    }
    Work { rows: rows as u64, pages: pages.unwrap_or_default() as u64 }
}

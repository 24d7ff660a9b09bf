//! Settings of the login or the database (`ALTER ROLE … SET`, `ALTER DATABASE … SET`) neither stop a
//! program nor change what it does.

use paste_cleanup::postgres::Target;

use super::run;
use crate::support::{
    adopted::{EXISTING_TABLES, migrate_ok, plain_put, world_with},
    findings::diagnose,
    *,
};

/// Grouped by what they would do to a session that does not set its own values.
const HOSTILE: [(&str, &str); 42] = [
    // End the session, the statement or the transaction.
    ("idle_session_timeout", "1ms"),
    ("statement_timeout", "1ms"),
    ("lock_timeout", "1ms"),
    ("idle_in_transaction_session_timeout", "1ms"),
    ("transaction_timeout", "1ms"),
    ("exit_on_error", "on"),
    // Change what the catalog returns, how statements are parsed and values are printed.
    ("quote_all_identifiers", "on"),
    ("standard_conforming_strings", "off"),
    ("backslash_quote", "off"),
    ("transform_null_equals", "on"),
    ("array_nulls", "off"),
    ("extra_float_digits", "-15"),
    ("bytea_output", "escape"),
    ("DateStyle", "German, DMY"),
    ("IntervalStyle", "sql_standard"),
    ("TimeZone", "Asia/Kathmandu"),
    ("xmloption", "document"),
    ("search_path", "nowhere, public, pg_catalog"),
    // Change what a transaction sees, and whether its COMMIT survives a crash.
    ("default_transaction_isolation", "serializable"),
    ("default_transaction_deferrable", "on"),
    ("synchronous_commit", "off"),
    ("row_security", "on"),
    ("session_replication_role", "replica"),
    ("client_min_messages", "error"),
    // Make plans expensive, or functions strict.
    ("enable_seqscan", "off"),
    ("enable_indexscan", "off"),
    ("enable_indexonlyscan", "off"),
    ("enable_bitmapscan", "off"),
    ("enable_nestloop", "off"),
    ("enable_hashjoin", "off"),
    ("enable_sort", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("force_parallel_mode", "on"),
    ("debug_parallel_query", "on"),
    ("jit", "on"),
    ("jit_above_cost", "0"),
    ("work_mem", "64kB"),
    ("maintenance_work_mem", "1MB"),
    ("check_function_bodies", "off"),
    ("plpgsql.extra_errors", "all"),
    ("default_tablespace", "nowhere"),
    ("temp_tablespaces", "nowhere"),
];

/// Applies the settings to every session that starts from now on.
async fn set(world: &World, settings: &[(&str, &str)]) {
    for (name, value) in settings {
        // Some exist only in some versions of Postgres.
        let known = "SELECT count(*) FROM pg_settings WHERE name = $1 OR $1 LIKE 'plpgsql.%'";
        if world.count_with(known, &[name]).await > 0 {
            let value = value.split(", ").map(|part| format!("'{part}'")).collect::<Vec<_>>();
            let value = value.join(", ");
            world.run_sql(&format!("ALTER DATABASE {} SET {name} = {value}", world.name)).await;
        }
    }
}

/// Leaves a paste claimed by a dead worker, and a finished claim that is not in the totals yet.
async fn leave_behind(world: &World) {
    plain_put(world, "held", "now() - interval '1 hour'").await;
    world
        .run_sql(
            "WITH claim AS (
                 INSERT INTO deletion_claims (worker, claimed_at, heartbeat_at, rows_claimed)
                 VALUES (gen_random_uuid(), now() - interval '3 h', now() - interval '3 h', 1)
                 RETURNING id, claimed_at)
             UPDATE pastes SET deletion_status = 'DELETION_IN_PROGRESS', claim_id = claim.id,
                               deletion_initiated_at = claim.claimed_at
             FROM claim WHERE short_code = 'held';
             INSERT INTO deletion_claims (worker, rows_claimed, finished_at, claim_ms)
             VALUES (gen_random_uuid(), 0, now(), 20)",
        )
        .await;
}

/// Asserts that migrate, run, watchdog, audit, doctor, status and explain work under these settings.
async fn assert_unaffected(settings: &[(&str, &str)]) {
    let world = world_with(EXISTING_TABLES).await;
    for n in 0..20 {
        plain_put(&world, &format!("due{n}"), "now() - interval '1 hour'").await;
    }
    plain_put(&world, "live", "now() + interval '1 hour'").await;
    set(&world, settings).await;
    let done = async |program: &str, args: &[&str]| {
        let ended = world.program(program).args(args).output().await;
        assert_eq!(ended.code(), 0, "{program} {args:?}: {}{}", ended.stdout(), ended.stderr());
        ended
    };
    migrate_ok(&world, &[]).await;
    migrate_ok(&world, &[]).await;
    let ran = run(&world).await;
    assert_eq!(ran.code(), 0, "{}", ran.stderr());
    assert_eq!(ran.json()["rows_deleted"], 20);
    leave_behind(&world).await;
    done("cleanup-watchdog", &["--once"]).await;
    let held = "SELECT deletion_status FROM pastes WHERE short_code = 'held'";
    assert_eq!(world.text(held).await.as_deref(), Some("NOT_EXPIRED"), "the claim was reset");
    world.run_sql("UPDATE content SET ref_count = 5 WHERE s3_key = 'objects/live'").await;
    let audited = done("cleanupctl", &["audit", "--repair", "--format", "json"]).await;
    assert_eq!(audited.json()["wrong_counts"], 1, "{}", audited.stdout());
    // Postgres itself reports the missing tablespaces, at level INFO.
    let doctor = world.program("cleanupctl").env("CLEANUP_LOG_FILTER", "error");
    diagnose(doctor).await.assert_only(0, &["durability"]);
    done("cleanupctl", &["status"]).await;
    done("cleanupctl", &["explain", "live"]).await;
    world.end_backoff().await;
    assert_eq!(run(&world).await.json()["rows_deleted"], 1);
    world.run_sql(&format!("ALTER DATABASE {} RESET ALL", world.name)).await;
    world.assert_drained().await;
    let bound =
        "SELECT count(*) FROM cleanup_totals WHERE (name, label) = ('phase_claim', '0.025')";
    assert_eq!(world.count(bound).await, 1, "the bounds of histograms keep their digits");
    let pattern = r"SELECT count(*) FROM pg_index WHERE indexrelid = 'content_odd_key_idx'::regclass
                    AND strpos(pg_get_expr(indpred, indrelid), '/$|\\|(') > 0";
    assert_eq!(world.count(pattern).await, 1, "patterns keep their backslashes");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_program_works_under_hostile_session_settings() {
    assert_unaffected(&HOSTILE).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn every_session_has_the_documented_settings_whatever_the_database_sets() {
    let world = World::new().await;
    set(&world, &HOSTILE).await;
    let target = Target::new(&world.settings, "a test", None).expect("target");
    let session = target.open().await.expect("open");
    let documented: Vec<(&str, &str)> = include_str!("../../../ops/SECURITY.md")
        .lines()
        .filter_map(|line| line.split_once("IN DATABASE your_database SET "))
        .filter_map(|(_, setting)| setting.trim_end_matches("';").split_once(" = '"))
        .collect();
    assert!(documented.contains(&("jit", "off")), "{documented:?}");
    for (name, value) in documented {
        let hostile = HOSTILE.iter().find(|(hostile, _)| *hostile == name);
        assert!(hostile.is_some_and(|(_, other)| *other != value), "{name} is in HOSTILE");
        // As the server prints that value.
        let wanted = world.db.query_one("SELECT set_config($1, $2, true)", &[&name, &value]).await;
        let wanted: String = wanted.expect("set").get(0);
        let found = session.query_one("SELECT current_setting($1)", &[&name]).await;
        assert_eq!(found.expect("read").get::<_, String>(0), wanted, "{name}");
    }
}

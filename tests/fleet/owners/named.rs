//! `cleanupctl doctor` and `cleanupctl migrate` report what the owner has added to the tables, or lost
//! from them, before the first run fails on it.

use crate::support::{findings::diagnose, process::Ended, *};

/// Asserts that the migration succeeded with these warnings.
#[track_caller]
fn assert_warns(migrated: &Ended, words: &[&str]) {
    let stderr = migrated.stderr();
    assert_eq!(migrated.code(), 0, "{stderr}");
    for word in ["warning: "].iter().chain(words) {
        assert!(stderr.contains(word), "{word:?} is not in {stderr:?}");
    }
}

#[track_caller]
fn assert_contains(text: &serde_json::Value, words: &[&str]) {
    let text = text.as_str().expect("text");
    words.iter().for_each(|word| assert!(text.contains(word), "{word:?} is not in {text:?}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_and_rules_that_can_stop_the_cleanup_are_reported_by_doctor_and_migrate() {
    let world = World::new().await;
    let harmless = "
        CREATE FUNCTION meddle() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RETURN NULL; END $$;
        CREATE TRIGGER inserted AFTER INSERT ON pastes FOR EACH ROW EXECUTE FUNCTION meddle();
        CREATE TRIGGER extended BEFORE UPDATE OF expires_at ON pastes
            FOR EACH ROW EXECUTE FUNCTION meddle();
        CREATE TRIGGER off BEFORE DELETE ON pastes FOR EACH ROW EXECUTE FUNCTION meddle();
        ALTER TABLE pastes DISABLE TRIGGER off";
    world.run_sql(harmless).await;
    diagnose(world.program("cleanupctl")).await.assert_only(0, &["durability"]);
    let in_the_way = "
        CREATE TRIGGER keep BEFORE DELETE ON pastes FOR EACH ROW EXECUTE FUNCTION meddle();
        CREATE TRIGGER \"Log\" AFTER UPDATE OF deletion_status OR DELETE ON pastes
            FOR EACH ROW EXECUTE FUNCTION meddle();
        CREATE TRIGGER counted BEFORE UPDATE ON content FOR EACH ROW EXECUTE FUNCTION meddle();
        CREATE RULE archive AS ON DELETE TO content DO INSTEAD NOTHING";
    world.run_sql(in_the_way).await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(0, &["durability", "owner triggers"]);
    let named = [
        "trigger keep BEFORE DELETE ON pastes",
        "Log\\\" AFTER DELETE OR UPDATE ON pastes",
        "trigger counted BEFORE UPDATE ON content",
        "rule archive ON DELETE TO content DO INSTEAD",
        "keeps pastes from being erased",
    ];
    findings.assert_says("owner triggers", "warning", &named);
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    assert_warns(&migrated, &[named[0], named[2], named[3]]);
}

/// Returns SQL that creates a table with a foreign key to pastes, followed by `more`.
fn referencing(table: &str, more: &str) -> String {
    format!(
        "CREATE TABLE {table} (code text CONSTRAINT {table}_fkey REFERENCES pastes ON DELETE CASCADE,
                               n int); {more};"
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_without_an_index_is_reported_with_the_statement_that_creates_it() {
    let world = World::new().await;
    let keys = "
        CREATE TABLE \"Views\" (\"Code\" text CONSTRAINT v REFERENCES pastes ON DELETE CASCADE);
        CREATE TABLE kept (hash bytea CONSTRAINT k REFERENCES content);
        ALTER TABLE pastes ADD copy_of text CONSTRAINT c REFERENCES pastes ON DELETE SET NULL;
        CREATE TABLE log (code text CONSTRAINT l REFERENCES pastes) PARTITION BY HASH (code);
        CREATE TABLE log_0 PARTITION OF log FOR VALUES WITH (MODULUS 2, REMAINDER 0);
        CREATE TABLE log_1 PARTITION OF log FOR VALUES WITH (MODULUS 2, REMAINDER 1);
        CREATE INDEX ON log_1 (code)";
    world.run_sql(keys).await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(0, &["durability", "tables"]);
    let named = [
        "foreign key v of \"Views\" (\"Code\") references pastes and has no index",
        "foreign key k of kept (hash) references content",
        "foreign key c of pastes (copy_of) references pastes",
        "foreign key l of log (code) references pastes",
    ];
    let remedies = [
        "CREATE INDEX CONCURRENTLY ON pastes (copy_of)",
        "CREATE INDEX CONCURRENTLY ON kept (hash)",
        "CREATE INDEX CONCURRENTLY ON log_0 (code)",
        "CREATE INDEX CONCURRENTLY ON \"Views\" (\"Code\")",
    ];
    let found = findings.of("tables");
    assert_contains(&found["found"], &named);
    assert_contains(&found["remedy"], &remedies);
    assert!(!found["remedy"].to_string().contains("log_1"), "it has an index: {found}");
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    assert_warns(&migrated, &[&named[..], &remedies].concat());
    for remedy in remedies {
        world.run_sql(remedy).await;
    }
    let fixed = diagnose(world.program("cleanupctl")).await;
    fixed.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_index_counts_for_a_foreign_key_only_if_a_deletion_can_use_it() {
    let world = World::new().await;
    let useful = [
        referencing("plain", "CREATE INDEX ON plain (code, n)"),
        referencing("hashed", "CREATE INDEX ON hashed USING hash (code)"),
        referencing("given", "CREATE INDEX ON given (code) WHERE code IS NOT NULL"),
        "ALTER TABLE pastes ADD UNIQUE (short_code, created_at);
         CREATE TABLE two (code text, at timestamptz, n int,
             FOREIGN KEY (code, at) REFERENCES pastes (short_code, created_at));
         CREATE INDEX ON two (at, code, n) WHERE code IS NOT NULL AND at IS NOT NULL;"
            .to_string(),
    ];
    let useless = [
        referencing("behind", "CREATE INDEX ON behind (n, code)"),
        referencing("covering", "CREATE INDEX ON covering (n) INCLUDE (code)"),
        referencing("partial", "CREATE INDEX ON partial (code) WHERE n > 0 AND code IS NOT NULL"),
        referencing("ranges", "CREATE INDEX ON ranges USING brin (code)"),
        referencing("lowered", "CREATE INDEX ON lowered (lower(code))"),
        referencing("sorted", "CREATE INDEX ON sorted (code COLLATE \"POSIX\")"),
        referencing(
            "broken",
            "CREATE INDEX broken_idx ON broken (code);
             UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'broken_idx'::regclass",
        ),
    ];
    world.run_sql(&[useful.concat(), useless.concat()].concat()).await;
    let found = diagnose(world.program("cleanupctl")).await.of("tables");
    let found = found["found"].as_str().expect("text");
    let named: Vec<&str> =
        found.split("foreign key ").skip(1).filter_map(|key| key.split("_fkey").next()).collect();
    assert_eq!(named, ["behind", "broken", "covering", "lowered", "partial", "ranges", "sorted"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_and_migrate_warn_of_pastes_without_content_with_their_number() {
    let world = World::new().await;
    world.put_many(400, 400).await;
    let lose = |rows: i32| {
        format!(
            "DELETE FROM content WHERE content_hash IN (SELECT content_hash FROM content LIMIT {rows})"
        )
    };
    world.run_sql(&lose(4)).await;
    let few = "4 of 400 sampled pastes (1.0 %) have no content row";
    diagnose(world.program("cleanupctl")).await.assert_says("content rows", "ok", &[few]);
    world.run_sql(&lose(196)).await;
    let half = "200 of 400 sampled pastes (50.0 %) have no content row";
    let words = [half, "none of their objects", "`cleanupctl pause`"];
    diagnose(world.program("cleanupctl")).await.assert_says("content rows", "warning", &words);
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    assert_warns(&migrated, &[half]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unlogged_table_is_reported_by_doctor_and_migrate() {
    let world = World::new().await;
    world.run_sql("ALTER TABLE pastes SET UNLOGGED; ALTER TABLE content SET UNLOGGED").await;
    let findings = diagnose(world.program("cleanupctl")).await;
    findings.assert_only(0, &["durability", "tables"]);
    let words = ["pastes is UNLOGGED", "content is UNLOGGED", "a server crash empties it"];
    findings.assert_says("tables", "warning", &words);
    let migrated = world.program("cleanupctl").args(&["migrate"]).output().await;
    let remedies = ["ALTER TABLE pastes SET LOGGED", "ALTER TABLE content SET LOGGED"];
    assert_warns(&migrated, &[words[0], words[1], remedies[0], remedies[1]]);
    for remedy in remedies {
        world.run_sql(remedy).await;
    }
    diagnose(world.program("cleanupctl")).await.assert_only(0, &["durability"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_doctor_names_keys_that_some_stores_spell_in_another_way() {
    let world = World::new().await;
    for (code, key) in [("plain", "a/b"), ("unicode", "ä/b")] {
        world.put_row(code, &hash(key), Some(key), 4, Never).await;
    }
    diagnose(world.program("cleanupctl")).await.assert_says("content rows", "ok", &[]);
    world.put_row("odd", &hash("odd"), Some("a//b"), 4, Never).await;
    let words = ["1 S3 key not in canonical form", "a//b", "another spelling", "plain keys"];
    diagnose(world.program("cleanupctl")).await.assert_says("content rows", "warning", &words);
}

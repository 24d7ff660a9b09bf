//! Rows whose repair Postgres refuses are named, and everything else is repaired.

use serde_json::Value;

use crate::{
    audit::stage::{OLD, REPAIR_MOST, Stage, names},
    support::*,
};

/// Returns the remedy of a finding that was not repaired.
fn remedy_of(report: &Value, name: &str) -> String {
    let findings = report["findings"].as_array().expect("findings").iter();
    let mut findings = findings.filter(|finding| finding["key"] == name);
    let finding = findings.next().unwrap_or_else(|| panic!("{name} is not in {report:#}"));
    assert_eq!(finding["repaired"], false, "{finding:#}");
    finding["remedy"].to_string()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_is_inserted_when_created_at_has_no_default() {
    let stage = Stage::new().await;
    stage.run_sql("ALTER TABLE content ALTER created_at DROP DEFAULT").await;
    stage.store.put("orphan", 4, OLD);
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["repaired"], 1);
    assert_eq!((stage.store.len(), stage.sentinels().await), (0, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_orphan_whose_key_is_too_long_for_the_column_is_named_and_hides_no_other() {
    let stage = Stage::new().await;
    stage.put_row("p", &hash("p"), Some("body"), 4, Never).await;
    stage.run_sql("ALTER TABLE content ALTER s3_key TYPE varchar(20)").await;
    let long = "an/orphan/with/a/very/long/key";
    for key in ["a", "body", long, "z"] {
        stage.store.put(key, 4, OLD);
    }
    let report = stage.audited(1, &REPAIR_MOST).await;
    assert_eq!((&report["orphans"], &report["repaired"]), (&3.into(), &2.into()));
    assert!(remedy_of(&report, long).contains("too long"), "{report:#}");
    assert_eq!(stage.keys().await, [long, "body"]);
    assert_eq!(report["complete"], true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_check_on_hashes_that_refuses_sentinels_is_named_and_nothing_is_deleted() {
    let stage = Stage::new().await;
    let key = stage.put("p", "body", Never).await;
    stage.put("q", "another", Never).await;
    stage
        .run_sql(
            "ALTER TABLE content ADD CONSTRAINT sha256 CHECK (length(content_hash) = 32);
             DELETE FROM pastes WHERE short_code = 'p';
             UPDATE content SET ref_count = 7",
        )
        .await;
    stage.store.put("orphan", 4, OLD);
    let report = stage.audited(1, &REPAIR_MOST).await;
    for name in ["orphan", &key] {
        assert!(remedy_of(&report, name).contains("sha256"), "{report:#}");
    }
    assert_eq!((&report["wrong_counts"], &report["repaired"]), (&1.into(), &1.into()));
    assert_eq!((&report["complete"], stage.store.len()), (&true.into(), 3));
    assert_eq!(stage.count("SELECT count(*) FROM content").await, 2, "no row was deleted");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_count_that_postgres_refuses_is_named_and_hides_no_other() {
    let stage = Stage::new().await;
    for code in ["a", "b", "c"] {
        stage.put(code, "shared", Never).await;
        stage.put(&format!("{code}{code}"), code, Never).await;
    }
    stage
        .run_sql(
            "UPDATE content SET ref_count = 2;
             ALTER TABLE content ADD CONSTRAINT few CHECK (ref_count < 3)",
        )
        .await;
    let shared = hex(&hash("shared"));
    let report = stage.audited(1, &REPAIR_MOST).await;
    assert_eq!((&report["wrong_counts"], &report["repaired"]), (&4.into(), &3.into()));
    let findings = report["findings"].as_array().expect("findings").iter();
    let left: Vec<_> = findings.filter(|finding| finding["repaired"] == false).collect();
    assert_eq!((left.len(), &left[0]["content_hash"]), (1, &shared.into()));
    assert!(left[0]["remedy"].to_string().contains("few"), "{}", left[0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repair_that_a_trigger_swallows_or_undoes_is_named_and_not_counted_as_repaired() {
    for no_effect in ["NULL", "OLD"] {
        let stage = Stage::new().await;
        let key = stage.put("p", "body", Never).await;
        let unreferenced = stage.put("q", "another", Never).await;
        stage
            .run_sql(&format!(
                "UPDATE content SET ref_count = 7;
                 DELETE FROM pastes WHERE short_code = 'q';
                 CREATE FUNCTION no_effect() RETURNS trigger LANGUAGE plpgsql AS $$
                 BEGIN
                     IF TG_OP = 'UPDATE' THEN RETURN {no_effect}; END IF;
                     RETURN NULL;
                 END $$;
                 CREATE TRIGGER no_effect BEFORE UPDATE OR DELETE ON content
                     FOR EACH ROW EXECUTE FUNCTION no_effect()"
            ))
            .await;
        let report = stage.audited(1, &REPAIR_MOST).await;
        assert_eq!((&report["wrong_counts"], &report["repaired"]), (&1.into(), &0.into()));
        for name in [&key, &unreferenced] {
            assert!(remedy_of(&report, name).contains("swallows it"), "{report:#}");
            assert!(stage.store.has(name), "{report:#}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_content_row_is_deleted_while_a_foreign_key_references_content() {
    for on_delete in ["CASCADE", "RESTRICT", "SET NULL"] {
        let stage = Stage::new().await;
        let key = stage.put("p", "body", Never).await;
        stage.put("q", "another", Never).await;
        stage
            .run_sql(&format!(
                "CREATE TABLE previews (content_hash bytea REFERENCES content ON DELETE {on_delete});
                 INSERT INTO previews SELECT content_hash FROM content;
                 DELETE FROM pastes WHERE short_code = 'p';
                 UPDATE content SET ref_count = 4"
            ))
            .await;
        stage.store.put("orphan", 4, OLD);
        let report = stage.audited(1, &REPAIR_MOST).await;
        assert_eq!(names(&report, "unreferenced_content"), [key.clone()].into());
        assert!(remedy_of(&report, &key).contains("foreign key of previews"), "{report:#}");
        assert_eq!(report["repaired"], 2, "the orphan and the count");
        let rows = "SELECT count(*) FROM previews WHERE content_hash IS NOT NULL";
        assert_eq!(stage.count(rows).await, 2);
        assert!(stage.store.has(&key) && !stage.store.has("orphan"));
    }
}

/// Another audit inserts the same sentinel between our query and our insert. That is a conflict on the
/// hash, not on the key. A trigger simulates it twice.
#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_that_another_audit_inserts_at_the_same_time_is_no_failure() {
    let stage = Stage::new().await;
    stage
        .run_sql(
            "CREATE SEQUENCE times;
             CREATE FUNCTION clash() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$
             BEGIN
                 IF nextval('times') <= 2 THEN
                     RAISE unique_violation USING CONSTRAINT = 'content_pkey';
                 END IF;
                 RETURN NEW;
             END $$;
             CREATE TRIGGER clash BEFORE INSERT ON content FOR EACH ROW EXECUTE FUNCTION clash()",
        )
        .await;
    stage.store.put("orphan", 4, OLD);
    assert_eq!(stage.audited(0, &REPAIR_MOST).await["repaired"], 1);
    assert!(!stage.store.has("orphan") && stage.sentinels().await == 1);
}

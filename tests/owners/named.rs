//! What the owner of the tables has added or lost is named by `cleanupctl doctor` and `cleanupctl
//! migrate`, before the first run meets it.

use super::support::{findings::diagnose, process::Ended, *};

/// Insists on success with these warnings.
#[track_caller]
fn assert_warns(migrated: &Ended, words: &[&str]) {
    let said = migrated.stderr();
    assert_eq!(migrated.code(), 0, "{said}");
    for word in ["warning: "].iter().chain(words) {
        assert!(said.contains(word), "{word:?} is not in {said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn triggers_and_rules_that_can_stop_the_cleanup_are_named_by_doctor_and_migrate() {
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

#[tokio::test(flavor = "multi_thread")]
async fn pastes_without_content_are_a_warning_with_figures_from_doctor_and_migrate() {
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

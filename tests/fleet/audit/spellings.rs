//! Keys that a store may treat as one object: an object whose key could be another spelling of a content
//! row's key is reported and never deleted.

use crate::{
    audit::stage::{OLD, Stage, found, names, report_of},
    support::{memory_s3::Call, moto::Moto, *},
};

const REPAIR: [&str; 3] = ["--repair", "--grace", "0s"];
const PLAIN_ORPHANS: [&str; 2] = ["orphan/1", "z"];
/// Keys of live pastes, and the keys that SeaweedFS lists for them.
const SPELLED: [(&str, &str); 3] =
    [("/lead/1", "lead/1"), ("a//b", "a/b"), ("back\\slash", "back/slash")];

/// Live pastes with plain keys and with odd ones, and plain orphans.
async fn fill(world: &World) {
    world.bind().await;
    world.erase_one().await;
    let plain = (0..5).map(|n| format!("plain/{n}"));
    let odd = SPELLED.map(|(key, _)| key.to_string());
    for key in plain.chain(odd) {
        world.upload(&key, &key).await;
        world.put_row(&key, &hash(&key), Some(&key), key.len(), Never).await;
    }
    for key in PLAIN_ORPHANS {
        world.upload(key, "no row knows it").await;
    }
}

async fn assert_every_live_paste_is_readable(world: &World) {
    for row in world.db.query("SELECT short_code FROM pastes", &[]).await.expect("pastes") {
        let code: String = row.get(0);
        assert_eq!(world.read(&code).await.as_ref(), Some(&code));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_store_that_normalizes_keys_no_live_paste_loses_its_body() {
    let world = World::new().await;
    fill(&world).await;
    let report = report_of(&world.audit(&REPAIR).output().await, 1);
    assert_every_live_paste_is_readable(&world).await;
    let listed = SPELLED.map(|(_, listed)| listed.to_string());
    assert_eq!(names(&report, "ambiguous"), listed.into());
    assert_eq!(names(&report, "orphan"), PLAIN_ORPHANS.map(String::from).into());
    assert_eq!(
        (&report["ambiguous"], &report["repaired"], found(&report)),
        (&3.into(), &2.into(), 5)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_store_that_keeps_keys_apart_another_spelling_is_left_alone_and_plain_orphans_go() {
    let (moto, mut world) = (Moto::start(), World::new().await);
    moto.serve(&mut world).await;
    fill(&world).await;
    for (_, key) in SPELLED {
        world.upload(key, "another object").await;
    }
    let report = report_of(&world.audit(&REPAIR).output().await, 1);
    assert_every_live_paste_is_readable(&world).await;
    let others = SPELLED.map(|(_, other)| other.to_string());
    assert_eq!(names(&report, "ambiguous"), others.into());
    assert_eq!(names(&report, "orphan"), PLAIN_ORPHANS.map(String::from).into());
    assert_eq!((&report["repaired"], found(&report)), (&2.into(), 5));
    assert_eq!(world.keys().await.len(), 5 + 2 * SPELLED.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn every_spelling_of_a_content_rows_key_is_ambiguous_whichever_side_has_the_plain_one() {
    let stage = Stage::new().await;
    let spellings = [
        ("/lead/1", "lead/1"),
        ("trail/1", "trail/1/"),
        ("double//1", "double/1"),
        ("double/2", "double///2"),
        ("back\\slash", "back/slash"),
        ("dot/./1", "dot/1"),
        ("dot/2", "./dot/2"),
        ("up/../1", "1"),
        ("both//1", "/both/1"),
        ("nfd/e\u{301}", "nfd/\u{e9}"),
        ("nfc/\u{e9}", "nfc/e\u{301}"),
    ];
    for (key, other) in spellings {
        stage.put_row(key, &hash(key), Some(key), 4, Never).await;
        stage.store.put(key, 4, OLD);
        stage.store.put(other, 4, OLD);
    }
    // Similar, but with another canonical form.
    let orphans = ["lead/10", "lead", "back slash", "doublé/1"];
    orphans.iter().for_each(|key| stage.store.put(key, 4, OLD));
    for (args, code) in [(&["--list", "99"][..], 1), (&["--repair", "--list", "99"], 1)] {
        let report = stage.audited(code, args).await;
        assert_eq!(names(&report, "ambiguous"), spellings.map(|(_, other)| other.into()).into());
        assert_eq!(names(&report, "orphan"), orphans.map(String::from).into());
        assert_eq!(found(&report), 15, "{report:#}");
    }
    assert_eq!(stage.store.len(), 2 * spellings.len(), "nothing but the orphans was deleted");
    let left = "SELECT findings_left = 11 FROM cleanup_audits ORDER BY id DESC LIMIT 1";
    stage.until("they count as left", left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_ambiguous_finding_names_both_keys_and_what_to_do() {
    let stage = Stage::new().await;
    stage.put_row("p", &hash("p"), Some("/lead\n/1"), 4, Never).await;
    stage.store.put("lead\n/1", 4, OLD);
    let audit = stage.world.program("cleanupctl").args(&["audit"]);
    let text = audit.env("AWS_ENDPOINT_URL", &stage.store.url).output().await.stdout();
    let line = "ambiguous: lead\\n/1: no content row has this key, but \"/lead\\n/1\" may be another \
                spelling of it; not deleted: if the store keeps the two keys apart, delete this \
                object by hand";
    assert!(text.lines().any(|shown| shown.starts_with(line)), "{text}");
    assert!(text.contains("ambiguous keys"), "{text}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sentinel_with_another_spelling_makes_no_orphan_ambiguous() {
    let stage = Stage::new().await;
    stage.fill(5).await;
    for key in ["/lead/1", "lead/1", "lead//1"] {
        stage.store.put(key, 4, OLD);
        assert_eq!(stage.audited(0, &["--repair"]).await["repaired"], 1);
    }
    assert_eq!((stage.store.len(), stage.sentinels().await), (5, 3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_pending_deletion_makes_no_orphan_ambiguous() {
    let stage = Stage::new().await;
    stage.fill(5).await;
    stage.put_row("p", &hash("p"), Some("/by/claim"), 4, Ago(60.0)).await;
    let worker = stage.worker().await;
    let claim = claim_some(&worker, 1).await;
    worker.decrement(&claim).await.expect("decrement");
    let pending = "INSERT INTO pastes (short_code, pending_s3_key) VALUES ('q', 'by//paste')";
    stage.run_sql(pending).await;
    for key in ["by/claim", "by/paste"] {
        stage.store.put(key, 4, OLD);
    }
    assert_eq!(stage.audited(0, &["--repair"]).await["repaired"], 2);
    assert_eq!(stage.store.len(), 5);
}

/// The row is inserted after the walk and after the first check before the delete.
#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_stored_under_another_spelling_before_the_delete_keeps_its_object() {
    let stage = Stage::new().await;
    stage.fill(5).await;
    for key in ["lead/1", "lead/2"] {
        stage.store.put(key, 4, OLD);
    }
    // Two in the walk, two before the sentinels.
    stage.store.hold(Call::Probe, 4);
    let audit = stage.audit(&REPAIR).start();
    stage.store.held().await;
    stage.put_row("p", &hash("p"), Some("/lead/1"), 4, Never).await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 1);
    assert_eq!(names(&report, "ambiguous"), ["lead/1".to_string()].into());
    assert_eq!(names(&report, "orphan"), ["lead/2".to_string()].into());
    assert!(stage.store.has("lead/1") && !stage.store.has("lead/2"));
}

#[tokio::test(flavor = "multi_thread")]
async fn unreferenced_content_is_not_deleted_while_other_content_may_have_the_same_object() {
    let world = World::new().await;
    fill(&world).await;
    // In this store both rows have one object.
    world.put_row("gone", &hash("gone"), Some("plain//1"), 4, Never).await;
    world.put_row("alone", &hash("alone"), Some("alone//1"), 4, Never).await;
    world.upload("alone//1", "alone").await;
    world.run_sql("DELETE FROM pastes WHERE short_code IN ('gone', 'alone')").await;
    for args in [&["--grace", "0s"][..], &REPAIR] {
        let report = report_of(&world.audit(args).output().await, 1);
        let ambiguous = names(&report, "ambiguous");
        assert!(ambiguous.contains("plain//1"), "{report:#}");
        assert_eq!(names(&report, "unreferenced_content"), ["alone//1".to_string()].into());
    }
    assert_every_live_paste_is_readable(&world).await;
    assert_eq!(world.count("SELECT count(*) FROM content WHERE s3_key = 'plain//1'").await, 1);
    assert_eq!(world.object("alone/1").await, None);
}

/// The other spelling is stored after the counts were read, while the bucket is listed.
#[tokio::test(flavor = "multi_thread")]
async fn unreferenced_content_is_checked_for_other_spellings_again_before_it_is_deleted() {
    let stage = Stage::new().await;
    stage.fill(5).await;
    stage.put_row("gone", &hash("gone"), Some("u/1"), 4, Never).await;
    stage.store.put("u/1", 4, OLD);
    stage.run_sql("DELETE FROM pastes WHERE short_code = 'gone'").await;
    stage.store.hold(Call::List, 1);
    let audit = stage.audit(&REPAIR).start();
    stage.store.held().await;
    stage.put_row("p", &hash("p"), Some("u//1"), 4, Never).await;
    stage.store.let_go();
    let report = report_of(&audit.end().await, 1);
    assert_eq!(names(&report, "ambiguous"), ["u/1".to_string()].into());
    assert!(stage.store.has("u/1") && stage.sentinels().await == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn other_spellings_are_looked_up_by_index() {
    let stage = Stage::new().await;
    stage.fill(2000).await;
    let sql = include_str!("../../../sql/queries/content/other_spellings.sql")
        .replace("$1", "'{a/b,/a/b}'")
        .replace("$2", "'{}'");
    stage.run_sql("SET enable_seqscan = off").await;
    let plan = stage.db.query(&format!("EXPLAIN {sql}"), &[]).await.expect("plan");
    let plan: Vec<String> = plan.iter().map(|row| row.get(0)).collect();
    let plan = plan.join("\n");
    assert!(plan.contains("content_odd_key_idx") && !plan.contains("Seq Scan"), "{plan}");
}

//! Unusual keys, and databases and stores that sort in another order than S3.

use crate::{
    audit::stage::{OLD, REPAIR_MOST, Stage, found, names, report_of},
    support::{memory_s3::Call, *},
};

const PLAIN: [&str; 16] = [
    "A",
    "B",
    "Zebra",
    "_",
    "a b",
    "a+b",
    "a%2Fb",
    "a&b<c>",
    "a",
    "ab",
    "aB",
    "b",
    "é",
    "größe",
    "日本/語",
    "😀",
];
const ODD: [&str; 3] = ["c\u{1}d", "line\nbreak", "\u{fffe}"];

#[tokio::test(flavor = "multi_thread")]
async fn a_database_with_a_linguistic_collation_needs_no_extra_checks() {
    let stage = Stage::of(World::with_icu_collation().await).await;
    for key in PLAIN.iter().chain(&ODD) {
        stage.put_row(key, &hash(key), Some(key), 4, Never).await;
        stage.store.put(key, 4, OLD);
        let shared = format!("{key}/deeper");
        stage.put_row(&shared, &hash(&shared), Some(&shared), 4, Never).await;
        stage.store.put(&shared, 4, OLD);
    }
    let sorts = "SELECT ('a' < 'B') AND ('B' COLLATE \"C\" < 'a')";
    stage.until("it sorts by a linguistic collation", sorts).await;
    let report = stage.audited(0, &["--grace", "0s"]).await;
    assert_eq!((found(&report), &report["objects"]), (0, &38.into()), "{report:#}");
    assert_eq!(stage.store.calls(Call::Probe), 0, "both sides are in the same order");
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_with_unusual_keys_are_found_and_deleted() {
    let stage = Stage::new().await;
    let keys: Vec<&str> = PLAIN.iter().chain(&ODD).copied().collect();
    keys.iter().for_each(|key| stage.store.put(key, 4, OLD));
    let report = stage.audited(0, &REPAIR_MOST).await;
    assert_eq!(names(&report, "orphan"), keys.iter().map(ToString::to_string).collect());
    assert_eq!((stage.store.len(), stage.sentinels().await), (0, 19));
    stage.assert_nothing_wrong().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_text_report_has_one_line_per_finding_and_no_control_characters() {
    let stage = Stage::new().await;
    let key = "evil\u{1b}[2J\nrm -rf";
    stage.store.put(key, 4, OLD);
    let audit = stage.world.program("cleanupctl").args(&["audit"]);
    let ended = audit.env("AWS_ENDPOINT_URL", &stage.store.url).output().await;
    let text = ended.stdout();
    assert!(text.contains("orphan: evil\\u001b[2J\\nrm -rf: no row references"), "{text}");
    assert!(text.contains("`cleanupctl audit --repair` deletes it"), "{text}");
}

/// SeaweedFS lists by folder, not by bytes: `a-b` comes after `a/…`.
#[tokio::test(flavor = "multi_thread")]
async fn a_store_that_lists_in_another_order_causes_no_false_findings() {
    let world = World::new().await;
    world.bind().await;
    world.erase_one().await;
    let stored =
        ["a/b", "a-b", "a.b", "a/c d", "a+b", "a%41", "ä/ö", "日本", "ab/c", "a&b", "q/r/s"];
    for key in stored {
        world.upload(key, key).await;
        world.put_row(key, &hash(key), Some(key), 4, Never).await;
    }
    let orphans = ["a/a", "a-a", "a.c", "a/d e", "zz", "日本語", "a+a%", "q/r/t"];
    for key in orphans {
        world.upload(key, "an orphan").await;
    }
    let report = report_of(&world.audit(&["--grace", "0s", "--repair"]).output().await, 0);
    assert_eq!(names(&report, "orphan"), orphans.map(String::from).into());
    assert_eq!((found(&report), &report["objects"]), (8, &19.into()));
    let again = report_of(&world.audit(&["--grace", "0s"]).output().await, 0);
    assert_eq!(found(&again), 0);
    let mut left = stored.map(String::from).to_vec();
    left.sort();
    assert_eq!(world.keys().await, left);
}

//! An audit finds exactly the inconsistencies that were planted, in both directions.

use std::collections::BTreeSet;

use futures_util::{StreamExt, stream};
use paste_cleanup::{
    audit::{Audit, Options, Sample, sample},
    shutdown::Shutdown,
};
use serde_json::Value;

use crate::{
    audit::stage::{OLD, Stage, found, names, report_of},
    support::*,
};

/// Content rows in the real store.
const CONTENT_ROWS: usize = 3000;
const EVERYTHING: [&str; 2] = ["--list", "1000000"];

/// The planted inconsistencies by kind, as keys or hashes.
#[derive(Default, Debug, PartialEq)]
struct Planted {
    orphan: BTreeSet<String>,
    missing_object: BTreeSet<String>,
    wrong_count: BTreeSet<String>,
    unreferenced_content: BTreeSet<String>,
    paste_without_content: BTreeSet<String>,
}

impl Planted {
    fn of(report: &Value) -> Self {
        Self {
            orphan: names(report, "orphan"),
            missing_object: names(report, "missing_object"),
            wrong_count: names(report, "wrong_count"),
            unreferenced_content: names(report, "unreferenced_content"),
            paste_without_content: names(report, "paste_without_content"),
        }
    }

    fn count(&self) -> u64 {
        let sets =
            [&self.orphan, &self.missing_object, &self.wrong_count, &self.unreferenced_content];
        sets.iter().map(|set| set.len()).sum::<usize>() as u64
            + self.paste_without_content.len() as u64
    }

    /// Returns the number of findings that no audit repairs.
    fn unrepairable(&self) -> u64 {
        (self.missing_object.len() + self.paste_without_content.len()) as u64
    }
}

fn body_of(n: usize) -> String {
    format!("body {n}")
}

/// Returns one key of every `every`, beginning at the one with number `at`.
async fn some_keys(world: &World, every: i64, at: i64) -> BTreeSet<String> {
    let sql = "SELECT s3_key FROM (SELECT s3_key, row_number() OVER (ORDER BY content_hash) AS n
                                   FROM content) AS numbered WHERE n % $1 = $2";
    let rows = world.db.query(sql, &[&every, &at]).await.expect("keys");
    rows.iter().map(|row| row.get(0)).collect()
}

async fn of_keys(world: &World, sql: &str, keys: &BTreeSet<String>) {
    let keys: Vec<&String> = keys.iter().collect();
    world.db.execute(sql, &[&keys]).await.expect(sql);
}

/// Plants something of each kind in the tables, without changing the bucket.
async fn plant_rows(world: &World, every: i64) -> Planted {
    let too_high = some_keys(world, every, 1).await;
    let too_low = some_keys(world, every, 2).await;
    let unreferenced = some_keys(world, every, 3).await;
    let zero = some_keys(world, every, 4).await;
    let without_row = some_keys(world, every, 5).await;
    of_keys(world, "UPDATE content SET ref_count = 7 WHERE s3_key = ANY ($1)", &too_high).await;
    of_keys(world, "UPDATE content SET ref_count = 0 WHERE s3_key = ANY ($1)", &too_low).await;
    let delete_pastes = "DELETE FROM pastes p USING content c
                  WHERE p.content_hash = c.content_hash AND c.s3_key = ANY ($1)";
    of_keys(world, delete_pastes, &unreferenced).await;
    of_keys(world, delete_pastes, &zero).await;
    of_keys(world, "UPDATE content SET ref_count = 0 WHERE s3_key = ANY ($1)", &zero).await;
    of_keys(world, "DELETE FROM content WHERE s3_key = ANY ($1)", &without_row).await;
    let hash_of = |key: &String| key.split('/').next().expect("a hash").to_string();
    Planted {
        paste_without_content: without_row.iter().map(hash_of).collect(),
        // Without its content row, an object is also an orphan.
        orphan: without_row,
        wrong_count: too_high.union(&too_low).cloned().collect(),
        unreferenced_content: unreferenced.union(&zero).cloned().collect(),
        missing_object: BTreeSet::new(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn among_a_hundred_thousand_objects_exactly_what_was_planted_is_found_and_repaired() {
    let stage = Stage::new().await;
    stage.fill(100_000).await;
    let mut planted = plant_rows(&stage, 5000).await;
    for n in 0..50 {
        let key = format!("{:064x}/orphan-{n}", n * 0x0400_0000_0000_0000_u128);
        stage.store.put(&key, 100, OLD);
        planted.orphan.insert(key);
    }
    stage.store.put("a/fresh", 1, std::time::Duration::from_secs(60));
    planted.missing_object = some_keys(&stage, 4000, 7).await;
    planted.missing_object.iter().for_each(|key| stage.store.remove(key));
    let (content, objects) = (stage.count("SELECT count(*) FROM content").await, stage.store.len());

    let dry = stage.audited(1, &EVERYTHING).await;
    assert_eq!(Planted::of(&dry), planted);
    assert_eq!(found(&dry), planted.count());
    assert_eq!((&dry["objects"], &dry["content_rows"]), (&objects.into(), &content.into()));
    assert_eq!((&dry["fresh_objects"], &dry["repaired"]), (&1.into(), &0.into()));
    assert_eq!(stage.store.len(), objects, "without --repair nothing is deleted");
    assert_eq!(stage.sentinels().await, 0, "without --repair nothing is changed");

    let (orphans, unreferenced) = (planted.orphan.len(), planted.unreferenced_content.len());
    let without_content = "DELETE FROM pastes p WHERE NOT EXISTS
                    (SELECT FROM content c WHERE c.content_hash = p.content_hash)";
    stage.run_sql(without_content).await;
    planted.paste_without_content.clear();
    let repair = stage.audited(1, &["--repair", "--list", "1000000"]).await;
    assert_eq!(Planted::of(&repair), planted);
    assert_eq!(stage.store.len(), objects - orphans - unreferenced);
    assert_eq!(stage.sentinels().await, (orphans + unreferenced) as i64);

    assert_eq!(repair["repaired"], found(&repair) - planted.unrepairable());
    planted.missing_object.iter().for_each(|key| stage.store.put(key, 10, OLD));
    let (before, sentinels) = (stage.store.len(), stage.sentinels().await);
    let last = stage.audited(0, &["--repair"]).await;
    assert_eq!((found(&last), &last["fresh_objects"]), (0, &1.into()));
    assert_eq!((stage.store.len(), stage.sentinels().await), (before, sentinels));
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_real_store_what_was_planted_is_found_repaired_and_not_found_again() {
    let world = World::new().await;
    world.bind().await;
    world.erase_one().await;
    let put = async |n: usize| {
        let body = body_of(n);
        let key = format!("{}/x", hex(&hash(&body)));
        world.upload(&key, &body).await;
        for code in [format!("p{n}"), format!("q{n}")].iter().take(1 + n % 2) {
            world.put_row(code, &hash(&body), Some(&key), 10, In(3600.0)).await;
        }
    };
    stream::iter((0..CONTENT_ROWS).map(put)).buffer_unordered(64).collect::<Vec<()>>().await;
    let orphans: BTreeSet<String> = (0..40).map(|n| format!("{n:02}/orphan {n}")).collect();
    for key in &orphans {
        world.upload(key, "an orphan").await;
    }
    world.run_sql("UPDATE content SET ref_count = 5 WHERE s3_key LIKE '0%'").await;
    let wrong = world.count("SELECT count(*) FROM content WHERE ref_count = 5").await;
    let missing: String = world.text("SELECT max(s3_key) FROM content").await.expect("a key");
    world.s3.delete_object().bucket(&world.bucket).key(&missing).send().await.expect("delete");

    let report =
        report_of(&world.audit(&["--grace", "0s", "--repair", "--list", "99"]).output().await, 1);
    assert_eq!(names(&report, "orphan"), orphans);
    assert_eq!(names(&report, "missing_object"), BTreeSet::from([missing.clone()]));
    assert_eq!(
        (report["wrong_counts"].as_i64(), &report["objects"]),
        (Some(wrong), &(CONTENT_ROWS + 39).into())
    );
    let affected = "SELECT short_code FROM pastes JOIN content USING (content_hash)
                    ORDER BY s3_key DESC LIMIT 1";
    let affected = world.text(affected).await.expect("a paste");
    let found_missing = report["findings"].as_array().expect("findings").iter();
    let mut found_missing = found_missing.filter(|finding| finding["kind"] == "missing_object");
    let short_codes = found_missing.next().expect("it")["short_codes"].to_string();
    assert!(short_codes.contains(&affected), "{affected} is not in {short_codes}");

    let mut bodies = (0..CONTENT_ROWS).map(body_of);
    let body = bodies.find(|body| missing.starts_with(&hex(&hash(body)))).expect("its body");
    world.upload(&missing, &body).await;
    let again = report_of(&world.audit(&["--grace", "0s", "--repair"]).output().await, 0);
    assert_eq!(found(&again), 0, "{again:#}");
    world.assert_consistent().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn content_that_is_sorted_in_several_ranges_is_compared_as_a_whole() {
    let stage = Stage::new().await;
    stage.fill(20_000).await;
    let missing = some_keys(&stage, 1000, 3).await;
    missing.iter().for_each(|key| stage.store.remove(key));
    stage.store.put("5/orphan", 1, OLD);
    let options = Options { rows_per_range: 1500, list: 1000, ..Options::default() };
    let audit = Audit::open(&settings_of(&stage), options).await.expect("open");
    let report = audit.run(&Shutdown::default()).await;
    let report = serde_json::to_value(&report).expect("JSON");
    assert_eq!(names(&report, "missing_object"), missing);
    assert_eq!((found(&report), &report["orphans"]), (21, &1.into()));
    assert_eq!(stage.store.calls(memory_s3::Call::Probe), 21, "no other key was checked");
}

#[tokio::test(flavor = "multi_thread")]
async fn in_a_bucket_that_was_emptied_every_object_is_missing_whatever_range_its_key_is_in() {
    let stage = Stage::new().await;
    stage.fill(500).await;
    stage.keys().await.iter().for_each(|key| stage.store.remove(key));
    let options = Options { rows_per_range: 25, ..Options::default() };
    let audit = Audit::open(&settings_of(&stage), options).await.expect("open");
    let report = audit.run(&Shutdown::default()).await;
    assert_eq!((report.missing_objects, report.found(), report.findings.len()), (500, 500, 20));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_sample_has_the_same_findings_in_its_part_and_changes_nothing() {
    let stage = Stage::new().await;
    stage.fill(3000).await;
    let planted = plant_rows(&stage, 1000).await;
    let missing = some_keys(&stage, 500, 50).await;
    missing.iter().for_each(|key| stage.store.remove(key));
    let (mut orphans, mut absent, mut wrong) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    let mut part =
        Sample { after_key: String::new(), after_hash: vec![], size: 1000, grace: OLD / 3 };
    for last in ["4", "8", "c", ""] {
        let report = sample(&settings_of(&stage), &part).await.expect("sample");
        assert!(report.objects <= 1000 && report.content_rows <= 1000);
        let report = serde_json::to_value(&report).expect("JSON");
        orphans.extend(names(&report, "orphan"));
        absent.extend(names(&report, "missing_object"));
        wrong.extend(names(&report, "wrong_count"));
        part.after_key = last.into();
        part.after_hash =
            u8::from_str_radix(last, 16).map(|digit| vec![digit << 4]).unwrap_or_default();
    }
    assert_eq!((orphans, absent), (planted.orphan, missing));
    assert_eq!(wrong, planted.wrong_count);
    assert_eq!(stage.sentinels().await, 0);
}

fn settings_of(stage: &Stage) -> paste_cleanup::config::Settings {
    let mut settings = stage.settings.clone();
    let url = database::url_as(database::AUDITOR, &stage.database_url);
    settings.postgres.url = Some(secrecy::SecretString::from(url));
    settings
}

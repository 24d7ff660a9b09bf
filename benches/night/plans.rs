//! The cost of one batch on the server: `EXPLAIN (ANALYZE, BUFFERS, WAL)` of every statement on the hot
//! path, in the middle of a drain, with the settings and the parameters of a worker. Also checks that
//! the work of each statement grows linearly with the batch, with any planner statistics.

use std::time::{Duration, SystemTime};

use paste_cleanup::{
    format::{table, thousands},
    postgres::planner::{BY_DUE_INDEX, BY_KEY},
};
use tokio_postgres::{Client, types::ToSql};
use uuid::Uuid;

use crate::{
    Result, fleet, report,
    stage::Stage,
    stub::Stub,
    work::{self, Statistics, TOO_MUCH, Work},
};

const MS: i32 = 1;

macro_rules! query {
    ($name:literal) => {
        ($name, include_str!(concat!("../../sql/queries/", $name, ".sql")))
    };
}

struct Plans {
    db: Client,
    rows: Vec<Vec<String>>,
    text: String,
}

pub(crate) async fn measure(stage: &Stage, rows: u64) -> Result<()> {
    let stub = Stub::start(Duration::ZERO).await?;
    let copy = stage.copy("bench_plans").await?;
    fleet::some(&copy, &stub.url, rows / 10).await?;
    let db = crate::stage::connect(&copy.url).await?;
    db.batch_execute("SET plan_cache_mode = force_custom_plan").await?;
    let mut plans = Plans { db, rows: Vec::new(), text: String::new() };
    plans.one_batch().await?;
    let header = ["statement", "rows", "ms", "pages", "WAL records", "WAL bytes", "full pages"];
    println!("{}", table(&header, std::mem::take(&mut plans.rows).into_iter()));
    println!("the plans are in target/bench/plans.txt");
    report::write("plans.txt", &plans.text)?;
    stage.drop(copy).await?;
    growth(stage, (rows / 10).clamp(250, 1000)).await
}

/// Prints the work of each statement for a batch, and for a batch of four times the rows.
async fn growth(stage: &Stage, rows: u64) -> Result<()> {
    let kinds = [Statistics::Fresh, Statistics::Missing, Statistics::Stale];
    let (mut lines, mut quadratic) = (Vec::new(), Vec::new());
    for statistics in kinds {
        let few = work_of(stage, rows, statistics).await?;
        let many = work_of(stage, rows * 4, statistics).await?;
        for ((name, few), (_, many)) in few.into_iter().zip(many) {
            let times = many.rows as f64 / few.rows.max(1) as f64;
            lines.push(vec![
                format!("{statistics:?}").to_lowercase(),
                name.into(),
                thousands(few.rows),
                thousands(few.pages),
                thousands(many.rows),
                thousands(many.pages),
                format!("{times:.1}"),
            ]);
            if few.grew_too_much(many) {
                quadratic.push(format!("{name} ({statistics:?} statistics)"));
            }
        }
    }
    println!("batches of {} and {} pastes", thousands(rows), thousands(rows * 4));
    let header = ["statistics", "statement", "rows", "pages", "rows × 4", "pages × 4", "times"];
    println!("{}", table(&header, lines.into_iter()));
    match quadratic.is_empty() {
        true => Ok(()),
        false => Err(format!(
            "more than {TOO_MUCH} times the work for 4 times the rows: {}",
            quadratic.join(", ")
        )
        .into()),
    }
}

async fn work_of(
    stage: &Stage,
    rows: u64,
    statistics: Statistics,
) -> Result<Vec<(&'static str, Work)>> {
    let copy = stage.empty("bench_work").await?;
    work::fill(&copy.db, rows, statistics).await?;
    let measured = work::measure(&copy.db).await?;
    stage.drop(copy).await?;
    Ok(measured)
}

impl Plans {
    /// Explains the statements of a batch, in order.
    async fn one_batch(&mut self) -> Result<()> {
        let (worker, none) = (Uuid::new_v4(), None::<Vec<String>>);
        let mark = self.db.query_one("SELECT min(expires_at) FROM pastes", &[]).await?;
        let mark: SystemTime = mark.get(0);
        self.begin(&format!("{BY_KEY}; {BY_DUE_INDEX}")).await?;
        self.explain(query!("claim/claim"), &[&worker, &1000_i32, &Some(mark), &i32::MAX, &false])
            .await?;
        self.db.batch_execute("COMMIT").await?;
        let claim: i64 =
            self.db.query_one("SELECT max(id) FROM deletion_claims", &[]).await?.get(0);
        let content = "SELECT content_hash, min(s3_key), min(short_code), count(*)::int,
                             min(ref_count) <= count(*), min(ref_count)::bigint - count(*)
                      FROM pastes JOIN content USING (content_hash)
                      WHERE claim_id = $1 GROUP BY content_hash";
        let content = self.db.query(content, &[&claim]).await?;
        let hashes: Vec<&[u8]> = content.iter().map(|row| row.get(0)).collect();
        let (last, still_referenced): (Vec<_>, Vec<_>) =
            content.iter().partition(|row| row.get::<_, bool>(4));
        let unreferenced: Vec<&[u8]> = last.iter().map(|row| row.get(0)).collect();
        let keys: Vec<&str> = last.iter().map(|row| row.get(1)).collect();
        let pending_owners: Vec<&str> = last.iter().map(|row| row.get(2)).collect();
        let kept: Vec<&[u8]> = still_referenced.iter().map(|row| row.get(0)).collect();
        let references: Vec<i32> = still_referenced.iter().map(|row| row.get(3)).collect();
        let left: Vec<i64> = still_referenced.iter().map(|row| row.get(5)).collect();

        self.begin(BY_KEY).await?;
        self.explain(query!("decrement/fence"), &[&claim, &worker]).await?;
        self.explain(query!("decrement/lock_content"), &[&hashes, &claim]).await?;
        self.explain(query!("decrement/still_referenced"), &[&unreferenced]).await?;
        self.explain(query!("decrement/subtract"), &[&kept, &references, &left]).await?;
        self.explain(query!("content/delete_unreferenced"), &[&unreferenced]).await?;
        let none_of = 0_i32;
        let record: [&(dyn ToSql + Sync); 7] =
            [&claim, &pending_owners, &keys, &0_i64, &none_of, &none_of, &none_of];
        self.explain(query!("decrement/record"), &record).await?;
        self.db.batch_execute("COMMIT").await?;

        self.begin(BY_KEY).await?;
        let done: [&(dyn ToSql + Sync); 9] =
            [&claim, &worker, &0_i32, &MS, &MS, &MS, &MS, &MS, &MS];
        self.explain(query!("finish/fence"), &done).await?;
        self.explain(query!("finish/delete_rows"), &[&claim, &none]).await?;
        let ages = r#"{"3600": 1000, "sum": 900000}"#;
        let count: [&(dyn ToSql + Sync); 8] =
            [&claim, &1000_i32, &MS, &none_of, &none_of, &ages, &none, &none];
        self.explain(query!("finish/count_rows"), &count).await?;
        self.db.batch_execute("COMMIT").await?;
        self.explain(query!("run/next_due"), &[&"1 minute"]).await
    }

    async fn begin(&self, settings: &str) -> Result<()> {
        Ok(self.db.batch_execute(&format!("BEGIN; {settings}")).await?)
    }

    async fn explain(
        &mut self,
        (name, sql): (&str, &str),
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<()> {
        let sql = format!("EXPLAIN (ANALYZE, BUFFERS, WAL, TIMING OFF) {sql}");
        let lines = self.db.query(&sql, parameters).await?;
        // Without the lists of a thousand keys.
        let short = |line: &str| line.chars().take(200).collect::<String>();
        let lines: Vec<String> = lines.iter().map(|row| short(row.get(0))).collect();
        let number = |of: &str, name: &str| {
            let line = lines.iter().find(|line| line.trim_start().starts_with(of));
            let rest = line.and_then(|line| line.split(name).nth(1)).unwrap_or("0");
            let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
            rest[..end].parse::<f64>().unwrap_or_default()
        };
        let whole = |value: f64| thousands(value as u64);
        let most = |line: &String| line.split("rows=").nth(2)?.split(' ').next()?.parse().ok();
        let rows = lines.iter().filter_map(most).max().unwrap_or(0_u64);
        self.rows.push(vec![
            name.into(),
            thousands(rows),
            format!("{:.1}", number("Execution Time", "Time: ")),
            whole(number("Buffers", "hit=") + number("Buffers", "read=")),
            whole(number("WAL", "records=")),
            whole(number("WAL", "bytes=")),
            whole(number("WAL", "fpi=")),
        ]);
        self.text += &format!("== {name}\n{}\n\n", lines.join("\n"));
        Ok(())
    }
}

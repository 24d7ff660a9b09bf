//! Prints the results, and writes them as JSON and as a picture.

use std::{fs, path::Path};

use paste_cleanup::format::{table, thousands};
use serde_json::{Value, json};

use crate::{
    Result, picture,
    results::{LIMIT, Results, Variant},
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench");

/// Writes a file into `target/bench`.
pub(crate) fn write(name: &str, text: &str) -> Result<()> {
    fs::create_dir_all(FOLDER)?;
    Ok(fs::write(Path::new(FOLDER).join(name), text)?)
}

/// Prints the results and writes `latest.json` and `latest.svg`.
pub(crate) fn print(results: &Results) -> Result<()> {
    let limit = results.best_of(&[LIMIT]);
    println!("{} expired and as many live pastes", thousands(results.rows));
    println!("{}", results.settings.join(", "));
    let rows = results.variants.iter().map(|variant| row(variant, limit));
    println!(
        "{}",
        table(&["variant", "rows/s", "of the limit", "spread", "WAL bytes a row"], rows)
    );
    let claims: Vec<String> =
        results.claim_ms_by_decile().iter().map(|ms| format!("{ms:.0}")).collect();
    println!("claim time by tenths of the drain: {} ms", claims.join(" "));
    println!(
        "memory of a worker: peak {:.0} MiB, idle {:.0} MiB",
        results.peak_rss_mib(),
        results.idle_rss_mib
    );
    println!("round trips to Postgres per batch: {:.1}", results.round_trips_per_batch);
    println!("ratios: {}", results.ratios());
    write("latest.json", &format!("{:#}\n", as_json(results)))?;
    let bars: Vec<(&str, f64)> =
        results.variants.iter().map(|variant| (variant.name, variant.median())).collect();
    let title = format!("{} expired pastes, rows per second", thousands(results.rows));
    write("latest.svg", &picture::bars(&title, "rows/s", &bars))
}

fn row(variant: &Variant, limit: f64) -> Vec<String> {
    let wal = variant.drained.as_ref().map(|drained| drained.wal_bytes_per_row);
    vec![
        variant.name.into(),
        thousands(variant.median().round() as u64),
        format!("{:.2}", variant.median() / limit),
        format!("{:.0} %", variant.spread() * 100.0),
        wal.map_or(String::new(), |bytes| thousands(bytes.round() as u64)),
    ]
}

fn as_json(results: &Results) -> Value {
    let variant = |variant: &Variant| {
        let drained = variant.drained.as_ref();
        json!({
            "name": variant.name,
            "rows_per_second": variant.rates,
            "median": variant.median(),
            "spread": variant.spread(),
            "wal_bytes_per_row": drained.map(|drained| drained.wal_bytes_per_row),
            "peak_rss_mib": drained.map(|drained| drained.peak_rss_mib),
        })
    };
    json!({
        "rows": results.rows,
        "settings": results.settings,
        "variants": results.variants.iter().map(variant).collect::<Vec<_>>(),
        "claim_ms_by_decile": results.claim_ms_by_decile(),
        "peak_rss_mib": results.peak_rss_mib(),
        "idle_rss_mib": results.idle_rss_mib,
        "round_trips_per_batch": results.round_trips_per_batch,
        "ratios": results.ratios(),
    })
}

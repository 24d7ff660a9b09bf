//! The result for eyes, for scripts, and as a picture.

use std::{fs, path::Path};

use paste_cleanup::format::{table, thousands};
use serde_json::{Value, json};

use crate::{
    Result,
    figures::{Figures, LIMIT, Variant},
    picture,
};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/target/bench");

/// Writes a file into `target/bench`.
pub fn write(name: &str, text: &str) -> Result<()> {
    fs::create_dir_all(FOLDER)?;
    Ok(fs::write(Path::new(FOLDER).join(name), text)?)
}

pub fn tell(figures: &Figures) -> Result<()> {
    let limit = figures.best_of(&[LIMIT]);
    println!("{} expired and as many live pastes", thousands(figures.rows));
    println!("{}", figures.settings.join(", "));
    let rows = figures.variants.iter().map(|variant| row(variant, limit));
    println!(
        "{}",
        table(&["variant", "rows/s", "of the limit", "spread", "WAL bytes a row"], rows)
    );
    let claims: Vec<String> =
        figures.claim_ms_by_decile().iter().map(|ms| format!("{ms:.0}")).collect();
    println!("claim by tenths of the drain: {} ms", claims.join(" "));
    println!(
        "memory of a worker: {:.0} MiB at most, {:.0} MiB with nothing to do",
        figures.peak_rss_mib(),
        figures.idle_rss_mib
    );
    println!("round trips to Postgres for a batch: {:.1}", figures.round_trips_per_batch);
    println!("ratios: {}", figures.ratios());
    write("latest.json", &format!("{:#}\n", as_json(figures)))?;
    let bars: Vec<(&str, f64)> =
        figures.variants.iter().map(|variant| (variant.name, variant.median())).collect();
    let title = format!("{} expired pastes, rows per second", thousands(figures.rows));
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

fn as_json(figures: &Figures) -> Value {
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
        "rows": figures.rows,
        "settings": figures.settings,
        "variants": figures.variants.iter().map(variant).collect::<Vec<_>>(),
        "claim_ms_by_decile": figures.claim_ms_by_decile(),
        "peak_rss_mib": figures.peak_rss_mib(),
        "idle_rss_mib": figures.idle_rss_mib,
        "round_trips_per_batch": figures.round_trips_per_batch,
        "ratios": figures.ratios(),
    })
}

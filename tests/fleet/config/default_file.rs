//! The default file documents every setting, and changes none; the example for local servers is
//! complete.

use std::path::Path;

use paste_cleanup::config::{Settings, default_toml, defaults, load};

use super::File;
use crate::support::*;

const DEFAULT_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/default.toml");
const LOCAL_FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/config/local.toml");

/// All settings as text, without those that the environment of the tests sets.
fn shown(mut settings: Settings) -> String {
    (settings.postgres.url, settings.redis.url) = (None, None);
    (settings.s3.bucket, settings.s3.endpoint) = (None, None);
    format!("{settings:#?}")
}

#[test]
fn the_default_file_is_what_the_code_generates() {
    let file = std::fs::read_to_string(DEFAULT_FILE).expect(DEFAULT_FILE);
    assert!(file == default_toml(), "run `cleanupctl config > config/default.toml`");
}

#[tokio::test]
async fn cleanupctl_config_prints_the_default_file() {
    let printed = Process::new("cleanupctl").args(&["config"]).output().await;
    assert_eq!((printed.code(), printed.stderr().as_str()), (0, ""));
    assert_eq!(printed.stdout(), default_toml());
}

#[test]
fn every_key_of_the_default_file_is_documented_and_names_its_variable() {
    let text = default_toml();
    let (mut section, mut comment, mut keys) = (String::new(), String::new(), 0);
    for line in text.lines() {
        if let Some(text) = line.strip_prefix("# ") {
            comment.push_str(text);
            continue;
        }
        if let Some(name) = line.strip_prefix('[') {
            section = name.trim_end_matches(']').to_uppercase();
        } else if let Some((key, _)) = line.strip_prefix('#').and_then(|key| key.split_once(" =")) {
            let variable = format!("`CLEANUP_{section}_{}`", key.to_uppercase());
            let (words, rest) = comment.split_once("Can also be specified").expect("its variable");
            assert!(words.len() > 20 && rest.contains(&variable), "{section} {key}: {comment}");
            keys += 1;
        }
        if line != "#" {
            comment.clear();
        }
    }
    assert_eq!(keys, text.matches("Can also be specified").count());
}

#[test]
fn the_default_file_with_every_key_uncommented_is_the_defaults() {
    let mut uncommented = 0;
    let mut uncomment = |line: &str| match line.strip_prefix('#') {
        // Keys without a default have no value to uncomment.
        Some(key) if !key.starts_with(' ') && key.contains(" = ") => {
            uncommented += 1;
            format!("{key}\n")
        }
        _ => format!("{line}\n"),
    };
    let text: String = default_toml().lines().map(&mut uncomment).collect();
    assert_eq!(uncommented, text.matches("# Default value: ").count());
    let file = File::new(&text);
    let loaded = load(Some(&file.0)).expect("every default is valid in a file");
    assert_eq!(shown(loaded), shown(defaults()));
}

#[test]
fn the_default_file_as_it_is_changes_nothing() {
    let loaded = load(Some(Path::new(DEFAULT_FILE))).expect("load");
    assert_eq!(shown(loaded), shown(defaults()));
}

#[test]
fn the_example_for_the_local_servers_loads_and_is_complete() {
    let local = load(Some(Path::new(LOCAL_FILE))).expect("load");
    let own = [
        local.postgres.current_url().is_ok(),
        local.redis.current_url().is_ok(),
        local.bucket().is_ok(),
    ];
    assert_eq!(own, [true; 3]);
    assert_eq!(local.watchdog.stuck_after.as_secs(), 60);
    assert_eq!(local.cache.key_pattern, "paste:{short_code}");
}

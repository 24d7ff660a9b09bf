//! Settings: the whole file, and single values.

use std::{path::PathBuf, time::Duration};

use chrono::{NaiveTime, Utc};
use clap::Parser;
use paste_cleanup::{
    config::{Settings, default_toml, defaults, load, parse_cron, parse_duration},
    worker::cli::WorkerCli,
};
use proptest::prelude::*;

use crate::{SECRET, bytes::*, is_presentable, try_all};

/// A temporary file in the folder of the test run.
pub(crate) struct File(pub PathBuf);

impl File {
    pub(crate) fn new(bytes: &[u8]) -> Self {
        let folder =
            std::env::var("PASTE_CLEANUP_TEST_DIR").expect("start the servers with `ops/servers`");
        let path = PathBuf::from(folder).join(uuid::Uuid::new_v4().to_string());
        std::fs::write(&path, bytes).expect("write a file");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the default file with every key that has a default, and with passwords in its URLs.
fn whole_file() -> String {
    let mut file = String::new();
    for line in default_toml().lines() {
        let setting = line.strip_prefix('#').filter(|rest| rest.starts_with(char::is_alphabetic));
        file += &match setting {
            Some("url =") => format!("url = \"redis://user:{SECRET}@host/0\"\n"),
            Some(setting) if !setting.ends_with('=') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        };
    }
    file
}

#[test]
fn any_config_file_is_read_or_refused_in_one_line() {
    let file = whole_file();
    load(Some(&File::new(file.as_bytes()).0)).expect("the unchanged file is valid");
    let without_comments: String = file
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| format!("{line}\n"))
        .collect();
    let bytes = prop_oneof![
        1 => noise(300),
        2 => edited(file),
        4 => edited(without_comments),
        1 => edited(r#""a\n\u001b[2J"."\u202e" = { 'b' = "\r" }"#),
        2 => edited(format!("postgres.url = '{SECRET}'\n\"redis\".'url' = \"{SECRET}\"\nlog={{}}")),
    ];
    try_all(600, &bytes, |bytes| match load(Some(&File::new(bytes).0)) {
        Ok(settings) if format!("{settings:?}").contains(SECRET) => {
            Err("Debug shows the password".into())
        }
        Ok(_) => Ok(()),
        Err(error) => is_presentable(&error.to_string()),
    });
}

#[test]
fn any_duration_is_refused_or_can_be_used_in_calculations() {
    let valid =
        &["90s", "1h 30m", "0", "2h", "30d", "100y", "1months", "584y", "18446744073709551615s"];
    try_all(2000, &words(valid), |text| match parse_duration(text) {
        Ok(duration) => {
            // The calculations that the programs make.
            let most = duration * 3 + duration * 3 + Duration::from_secs(60);
            let moments = (std::time::Instant::now() + most, tokio::time::Instant::now() + most);
            let in_the_tables = duration.as_secs_f64() < 4e9;
            if moments.0.elapsed().is_zero() && in_the_tables { Ok(()) } else { Err("odd".into()) }
        }
        Err(reason) => is_presentable(&reason.to_string()),
    });
}

#[test]
fn any_cron_expression_is_refused_or_has_a_next_run() {
    let valid = &[
        "0 0 0 * * *",
        "*/5 0-30/7 1,2 L * *",
        "0 0 0 * * MON#2",
        "0 0 0 29 2 *",
        "0 0 0 31 2 *",
        "0 0 2 15W JAN-DEC FRI",
    ];
    try_all(1000, &words(valid), |text| {
        let mut settings = defaults();
        settings.schedule.cron = text.clone();
        if let Err(error) = settings.validate() {
            return is_presentable(&error.to_string());
        }
        let cron = parse_cron(text).map_err(|error| error.to_string())?;
        cron.find_next_occurrence(&Utc::now(), false).map(|_| ()).map_err(|error| error.to_string())
    });
}

#[test]
fn any_time_of_day_is_refused_or_valid() {
    try_all(1000, &words(&["06:00", "23:59", "24:00", "6:0", "00:00:00"]), |text| {
        let flag = format!("--until={text}");
        if WorkerCli::try_parse_from(["cleanup-worker", "run", &flag]).is_err() {
            return Ok(());
        }
        let same = NaiveTime::parse_from_str(text, "%H:%M").is_ok();
        if same { Ok(()) } else { Err("accepted".into()) }
    });
}

/// Returns settings with any value that the types allow.
fn odd_settings() -> impl Strategy<Value = Settings> {
    let duration = || (any::<u64>(), 0..1_000_000_000_u32);
    let texts = (
        words(&["paste:{short_code}"]),
        words(&["info,paste_cleanup::worker=debug", "[a{b=c}]=warn"]),
    );
    let numbers = (any::<u32>(), any::<usize>(), any::<usize>(), any::<u16>());
    let durations = [(); 4].map(|()| prop_oneof![duration(), (0..100_u64, 0..1_000_000_000_u32)]);
    (texts, numbers, durations).prop_map(|((pattern, filter), numbers, durations)| {
        let mut settings = defaults();
        (settings.cache.key_pattern, settings.log.filter) = (pattern, filter);
        let (batch_size, concurrency, pool_size, max_attempts) = numbers;
        settings.worker.batch_size = batch_size;
        settings.worker.concurrency = concurrency % 100;
        settings.postgres.pool_size = pool_size % 2000;
        settings.worker.max_attempts = max_attempts;
        let [heartbeat, stuck, ttl, tick] = durations.map(|(s, ns)| Duration::new(s, ns));
        (settings.worker.heartbeat_interval, settings.watchdog.stuck_after) = (heartbeat, stuck);
        (settings.lock.ttl, settings.watchdog.tick) = (ttl, tick);
        settings
    })
}

#[test]
fn any_values_are_accepted_or_refused_in_one_line() {
    try_all(1000, &odd_settings(), |settings| match settings.validate() {
        Ok(()) => Ok(()),
        Err(error) => is_presentable(&error.to_string()),
    });
}

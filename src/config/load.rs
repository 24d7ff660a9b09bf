//! Loads the settings from file, environment and defaults.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use confique::{
    Config, Layer,
    meta::{FieldKind, Meta},
};
use secrecy::SecretString;

use super::Settings;
use crate::{printable::printable, problem::Problem};

/// A setting or an option that is invalid or missing: exit code 2.
#[derive(thiserror::Error, Debug)]
#[error(transparent)]
pub struct ConfigError(Problem);

impl ConfigError {
    /// Creates an error from what is wrong and what to do about it.
    pub fn new(problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self(Problem::new(problem, remedy))
    }

    /// A setting with a value that it cannot have.
    pub fn invalid(problem: impl Into<String>) -> Self {
        Self::new(problem, "`cleanupctl config` explains every setting")
    }

    /// A secret that is needed and not set, with the variable that other tools read and its own.
    pub(super) fn missing(key: &str, [well_known, own]: [&str; 2]) -> Self {
        Self::new(
            format!("{key} is not set"),
            format!(
                "set {well_known} or {own}, or one of them with _FILE, or write `{key}` to the file \
                 of --config"
            ),
        )
    }
}

impl From<ConfigError> for Problem {
    fn from(ConfigError(problem): ConfigError) -> Self {
        problem
    }
}

/// Loads the settings from the environment, the file (if one is named) and the defaults.
pub fn load(file: Option<&Path>) -> Result<Settings, ConfigError> {
    refuse_unknown_variables()?;
    let from_file = match file {
        Some(path) => read_file(path)?,
        None => <Settings as Config>::Layer::empty(),
    };
    let settings = Settings::builder()
        .env()
        .preloaded(well_known_variables())
        .preloaded(from_file)
        .load()
        .map_err(|error| ConfigError::invalid(one_line(&error)))?;
    settings.validate()?;
    Ok(settings)
}

/// The default settings, from neither file nor environment.
pub fn defaults() -> Settings {
    let defaults = <Settings as Config>::Layer::default_values();
    Settings::from_layer(defaults).unwrap_or_else(|error| unreachable!("defaults: {error}"))
}

/// The commented settings file with all defaults: `config/default.toml`.
pub fn default_toml() -> String {
    let mut options = confique::toml::FormatOptions::default();
    options.general.comments = true;
    let text = confique::toml::template::<Settings>(options);
    text.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}

/// Puts an error with its causes on one line, as cron's mails need it; confique prints several lines.
fn one_line(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn read_file(path: &Path) -> Result<<Settings as Config>::Layer, ConfigError> {
    let name = printable(&path.display().to_string());
    let failed = |reason: String| {
        ConfigError::new(
            format!("cannot read the config file {name}: {}", printable(&reason)),
            "correct it, or name another one with --config",
        )
    };
    let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
    let table: toml::Table =
        toml::from_str(&text).map_err(|error| failed(toml_reason(&error, &text)))?;
    if let Some(key) = unknown_key(&table, &Settings::META, "") {
        return Err(ConfigError::new(
            format!("unknown key `{}` in {name}", printable(&key)),
            "`cleanupctl config` lists all keys",
        ));
    }
    toml::from_str(&text).map_err(|error| failed(toml_reason(&error, &text)))
}

/// The line number and reason of a parse error. The parser's own rendering quotes the offending line,
/// which may contain a password.
fn toml_reason(error: &toml::de::Error, text: &str) -> String {
    let line = error.span().map_or(1, |span| text[..span.start.min(text.len())].lines().count());
    format!("line {}: {}", line.max(1), error.message())
}

fn unknown_key(table: &toml::Table, meta: &Meta, path: &str) -> Option<String> {
    table.iter().find_map(|(name, value)| {
        let key = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let Some(field) = meta.fields.iter().find(|field| field.name == name) else {
            return Some(key);
        };
        match (field.kind, value) {
            (FieldKind::Nested { meta }, toml::Value::Table(inner)) => {
                unknown_key(inner, meta, &key)
            }
            _ => None,
        }
    })
}

fn refuse_unknown_variables() -> Result<(), ConfigError> {
    let known = variables(&Settings::META);
    let all = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let ours: BTreeSet<String> = all.filter(|name| name.starts_with("CLEANUP_")).collect();
    let unknown = ours
        .iter()
        .find(|name| !known.contains(&name.as_str()) && !is_of_a_kubernetes_service(name, &ours));
    unknown.map_or(Ok(()), |name| {
        Err(ConfigError::new(
            format!("unknown variable {}", printable(name)),
            "`cleanupctl config` lists all variables",
        ))
    })
}

/// Kubernetes sets variables for each Service of a namespace, in every pod of it. Those of a Service
/// named `cleanup-watchdog` begin as the settings do.
fn is_of_a_kubernetes_service(name: &str, all: &BTreeSet<String>) -> bool {
    let services = all.iter().filter_map(|name| name.strip_suffix("_SERVICE_HOST"));
    services.filter(|service| all.contains(&format!("{service}_SERVICE_PORT"))).any(|service| {
        let rest = name.strip_prefix(service).unwrap_or_default();
        let is_port = match rest.strip_prefix("_PORT") {
            Some("") => true,
            Some(port) => {
                port.strip_prefix('_').is_some_and(|port| port.starts_with(char::is_numeric))
            }
            None => false,
        };
        is_port || rest == "_SERVICE_HOST" || rest.starts_with("_SERVICE_PORT")
    })
}

fn variables(meta: &'static Meta) -> Vec<&'static str> {
    let of_field = |kind: FieldKind| match kind {
        FieldKind::Leaf { env, .. } => env.into_iter().collect(),
        FieldKind::Nested { meta } => variables(meta),
    };
    let mut names: Vec<_> = meta.fields.iter().flat_map(|field| of_field(field.kind)).collect();
    names.push("CLEANUP_CONFIG");
    names
}

/// The variables that other tools read, too. `CLEANUP_…` variables override them, and they override the
/// file.
fn well_known_variables() -> <Settings as Config>::Layer {
    let read = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let mut layer = <Settings as Config>::Layer::empty();
    layer.postgres.url = read("DATABASE_URL").map(SecretString::from);
    layer.postgres.url_file = read("DATABASE_URL_FILE").map(PathBuf::from);
    layer.redis.url = read("REDIS_URL").map(SecretString::from);
    layer.redis.url_file = read("REDIS_URL_FILE").map(PathBuf::from);
    layer.s3.bucket = read("S3_BUCKET");
    layer.s3.endpoint = read("AWS_ENDPOINT_URL_S3").or_else(|| read("AWS_ENDPOINT_URL"));
    layer
}

impl super::Postgres {
    /// The schema of the tables; `None`: the first schema of `search_path`.
    pub fn schema(&self) -> Option<&str> {
        self.schema.as_deref().filter(|name| !name.is_empty())
    }
}

impl Settings {
    /// The name of the bucket.
    pub fn bucket(&self) -> Result<&str, ConfigError> {
        self.s3.bucket.as_deref().filter(|name| !name.is_empty()).ok_or_else(|| {
            ConfigError::new(
                "s3.bucket is not set",
                "set S3_BUCKET or CLEANUP_S3_BUCKET, or write `s3.bucket` to the file of --config",
            )
        })
    }
}

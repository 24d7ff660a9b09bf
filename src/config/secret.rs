//! Secrets: the value of a setting, or the file that has it. A file is read again whenever the secret is
//! needed, that is, for each new connection: it may have been replaced.

use std::{
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret as _, SecretString};

use super::{ConfigError, Postgres, Redis, Settings};
use crate::printable::printable;

/// A setting that is a secret, with the setting that names its file.
struct Secret<'a> {
    key: &'static str,
    /// The variables of the value; with `_FILE`, those of the file.
    variables: [&'static str; 2],
    value: Option<&'a SecretString>,
    file: Option<&'a Path>,
}

impl<'a> Secret<'a> {
    /// What is set to nothing, as Compose does with variables that are not set, counts as not set.
    fn new(
        key: &'static str,
        variables: [&'static str; 2],
        value: &'a Option<SecretString>,
        file: &'a Option<PathBuf>,
    ) -> Self {
        let value = value.as_ref().filter(|value| !value.expose_secret().is_empty());
        let file = file.as_deref().filter(|file| !file.as_os_str().is_empty());
        Self { key, variables, value, file }
    }

    fn read(&self) -> Result<SecretString, ConfigError> {
        match (self.value, self.file) {
            (Some(value), _) => Ok(value.clone()),
            (None, Some(file)) => self.read_file(file),
            (None, None) => Err(ConfigError::missing(self.key, self.variables)),
        }
    }

    fn read_file(&self, file: &Path) -> Result<SecretString, ConfigError> {
        let [well_known, own] = self.variables;
        let invalid = |reason: &str| {
            ConfigError::new(
                format!("{}_file {} {reason}", self.key, name(file)),
                format!("correct the file, or its name in {well_known}_FILE or {own}_FILE"),
            )
        };
        let text = std::fs::read_to_string(file)
            .map_err(|error| invalid(&format!("cannot be read: {error}")))?;
        match text.trim() {
            "" => Err(invalid("is empty")),
            text => Ok(text.into()),
        }
    }

    fn check(&self) -> Result<(), ConfigError> {
        let ([well_known, own], key) = (self.variables, self.key);
        match (self.value, self.file) {
            (Some(_), Some(_)) => Err(ConfigError::new(
                format!("{key} and {key}_file are both set"),
                format!(
                    "keep one of them: {well_known} or {own}, one of these with _FILE, or `{key}` or \
                     `{key}_file` in the file of --config"
                ),
            )),
            _ => Ok(()),
        }
    }
}

impl Postgres {
    fn secret(&self) -> Secret<'_> {
        let variables = ["DATABASE_URL", "CLEANUP_POSTGRES_URL"];
        Secret::new("postgres.url", variables, &self.url, &self.url_file)
    }

    /// Returns the connection URL, as its file has it now.
    pub fn current_url(&self) -> Result<SecretString, ConfigError> {
        self.secret().read()
    }

    /// Returns the command that prints the password.
    pub fn password_command(&self) -> Option<&str> {
        self.password_command.as_deref().filter(|command| !command.is_empty())
    }

    /// Returns whether a new connection may need other values than the last one.
    pub fn has_files(&self) -> bool {
        [&self.url_file, &self.ca_file, &self.client_key_file].into_iter().any(Option::is_some)
    }
}

impl Redis {
    fn secret(&self) -> Secret<'_> {
        let variables = ["REDIS_URL", "CLEANUP_REDIS_URL"];
        Secret::new("redis.url", variables, &self.url, &self.url_file)
    }

    /// Returns the connection URL, as its file has it now.
    pub fn current_url(&self) -> Result<SecretString, ConfigError> {
        self.secret().read()
    }

    /// Returns whether a new connection may need other values than the last one.
    pub fn has_files(&self) -> bool {
        [&self.url_file, &self.ca_file, &self.client_key_file].into_iter().any(Option::is_some)
    }
}

impl Settings {
    /// Refuses a secret that is set in two ways, and half of a client certificate.
    pub(super) fn check_secrets(&self) -> Result<(), ConfigError> {
        self.postgres.secret().check()?;
        self.redis.secret().check()?;
        let certificates = [
            ("postgres", &self.postgres.client_cert_file, &self.postgres.client_key_file),
            ("redis", &self.redis.client_cert_file, &self.redis.client_key_file),
        ];
        for (section, certificate, key) in certificates {
            if certificate.is_some() != key.is_some() {
                return Err(ConfigError::invalid(format!(
                    "{section}.client_cert_file and {section}.client_key_file belong together, but only \
                     one is set"
                )));
            }
        }
        Ok(())
    }

    /// Returns a warning for each file with a secret that every user of the machine may read.
    pub fn exposed_secrets(&self) -> Vec<String> {
        let files = [
            ("postgres.url_file", &self.postgres.url_file),
            ("postgres.client_key_file", &self.postgres.client_key_file),
            ("redis.url_file", &self.redis.url_file),
            ("redis.client_key_file", &self.redis.client_key_file),
        ];
        let exposed = |(key, file): (&str, &Option<PathBuf>)| {
            let file = file.as_deref()?;
            let mode = std::fs::metadata(file).ok()?.permissions().mode();
            (mode & 0o004 != 0).then(|| {
                format!(
                    "{key} {} can be read by every user; chmod o-r (in Kubernetes: defaultMode 0440 and \
                     the pod's fsGroup 10001)",
                    name(file)
                )
            })
        };
        files.into_iter().filter_map(exposed).collect()
    }
}

fn name(file: &Path) -> String {
    printable(&file.display().to_string())
}

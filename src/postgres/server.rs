//! The server as the settings name it: the URL, read and checked, with TLS.

use std::time::Duration;

use secrecy::ExposeSecret;
use tokio_postgres::{
    Config,
    config::{Host, SslMode, TargetSessionAttrs},
};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::{CONNECT_TIMEOUT, session};
use crate::{
    config::{ConfigError, Postgres},
    tls::{self, Verify},
};

/// Where to connect. Has the password only if the URL has one.
pub(super) struct Server {
    pub config: Config,
    pub tls: Option<MakeRustlsConnect>,
    verify: Option<Verify>,
}

impl Server {
    /// Reads the settings and their files.
    pub(super) fn read(settings: &Postgres, name: &str) -> Result<Self, ConfigError> {
        let (url, verify) = split_sslmode(settings.current_url()?.expose_secret());
        let mut config: Config = url.parse().map_err(|error| bad_url(&error))?;
        if has_loose_at(&url) || !config.get_hosts().iter().all(is_host) {
            return Err(invalid_url(": percent-encode special characters in user and password"));
        }
        if settings.password_command().is_some() && config.get_password().is_some() {
            return Err(ConfigError::new(
                "postgres.url has a password, and postgres.password_command is set",
                "remove one of them",
            ));
        }
        config.application_name(name).connect_timeout(CONNECT_TIMEOUT);
        config.keepalives_idle(Duration::from_secs(10));
        config.keepalives_interval(Duration::from_secs(5)).keepalives_retries(3);
        config.tcp_user_timeout(Duration::from_secs(20));
        // All programs write, so a standby among the hosts is skipped.
        if !url.contains("target_session_attrs") {
            config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        }
        if config.get_target_session_attrs() == TargetSessionAttrs::ReadOnly {
            return Err(invalid_url(": all programs write; remove target_session_attrs=read-only"));
        }
        config.options(session::options(config.get_options(), settings.schema()));
        let tls = tls(&mut config, verify, settings)?;
        Ok(Self { config, tls, verify })
    }
}

impl Server {
    /// Refuses a URL that names more than another login: its sessions would be unchecked, and perhaps in
    /// another database.
    pub(super) fn check_replaces(&self, before: &Self) -> Result<(), ConfigError> {
        let (new, old) = (&self.config, &before.config);
        let is_same = new.get_hosts() == old.get_hosts()
            && new.get_hostaddrs() == old.get_hostaddrs()
            && ports(new) == ports(old)
            && new.get_dbname().or(new.get_user()) == old.get_dbname().or(old.get_user())
            && new.get_options() == old.get_options()
            && new.get_target_session_attrs() == old.get_target_session_attrs()
            && (new.get_ssl_mode(), self.verify) == (old.get_ssl_mode(), before.verify);
        match is_same {
            true => Ok(()),
            false => Err(ConfigError::new(
                "the URL of postgres.url_file changed in more than user and password: host, port, database, \
                 sslmode or options",
                "restart the program, or correct the file",
            )),
        }
    }
}

fn ports(config: &Config) -> &[u16] {
    match config.get_ports() {
        [] => &[5432],
        ports => ports,
    }
}

fn tls(
    config: &mut Config,
    verify: Option<Verify>,
    settings: &Postgres,
) -> Result<Option<MakeRustlsConnect>, ConfigError> {
    let verify = match verify {
        Some(verify) => {
            config.ssl_mode(SslMode::Require);
            verify
        }
        None if settings.ca_file.is_some() => Verify::Chain,
        None => Verify::Nothing,
    };
    Ok(match config.get_ssl_mode() {
        SslMode::Disable => None,
        _ => Some(MakeRustlsConnect::new(tls::client_config(verify, settings)?)),
    })
}

/// Splits off `sslmode=verify-…`, which tokio-postgres does not know: both are `require` plus a verifier.
fn split_sslmode(url: &str) -> (String, Option<Verify>) {
    for (mode, verify) in [("verify-full", Verify::Full), ("verify-ca", Verify::Chain)] {
        let option = format!("sslmode={mode}");
        if url.contains(&option) {
            return (url.replace(&option, "sslmode=require"), Some(verify));
        }
    }
    (url.to_string(), None)
}

/// Returns whether the URL has an unescaped `@`: a part of the password would be taken for the host or
/// the database, and printed.
fn has_loose_at(url: &str) -> bool {
    let address = url.split('?').next().unwrap_or_default();
    address.starts_with("postgres") && address.matches('@').count() > 1
}

fn is_host(host: &Host) -> bool {
    match host {
        Host::Tcp(name) => name.chars().all(|c| c.is_alphanumeric() || "-._:".contains(c)),
        Host::Unix(_) => true,
    }
}

/// Describes an invalid URL. The parser's message may quote a part of the URL, so only messages without
/// secrets are kept.
fn bad_url(error: &tokio_postgres::Error) -> ConfigError {
    use std::error::Error as _;
    let reason = error.source().map(ToString::to_string).unwrap_or_default();
    // The parser has no type for this one.
    let known = reason.starts_with("invalid value for option");
    let reason = if known { format!(": {reason}") } else { String::new() };
    invalid_url(&reason)
}

fn invalid_url(reason: &str) -> ConfigError {
    ConfigError::new(
        format!(
            "postgres.url (DATABASE_URL or CLEANUP_POSTGRES_URL) is not a valid Postgres URL{reason}"
        ),
        "write postgres://user:password@host:5432/database",
    )
}

//! `cleanupctl config`: prints every setting with its meaning, default and environment variable.

pub(super) fn print() {
    crate::cli::say(crate::config::default_toml().trim_end());
}

//! `cleanupctl config`: every setting, its meaning, its default, its variable.

pub(super) fn print() {
    crate::cli::say(crate::config::default_toml().trim_end());
}

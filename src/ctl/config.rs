//! `cleanupctl config`: every setting, its meaning, its default, its variable.

pub(super) fn print() {
    print!("{}", crate::config::default_toml());
}

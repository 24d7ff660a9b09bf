//! What a session must be: started with our settings, and nobody else's. A pooler between us and
//! Postgres can break both without a word; it is found at the start of a program.

use std::{fmt::Write as _, time::Duration};

use anyhow::{Result, bail};
use tokio_postgres::{
    Client, Error, GenericClient,
    error::SqlState,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::Target;

const SESSION_SETTINGS: &str = sql!("session/settings");
const SESSION_SCHEMA: &str = sql!("session/schema");
const SESSION_MARK: &str = sql!("session/mark");
const SESSION_MARKED: &str = sql!("session/marked");

/// As `statement_timeout` below says it.
pub const STATEMENT_TIMEOUT: Duration = Duration::from_secs(60);
/// Times are in milliseconds. No session holds anything for long: a worker frozen in the middle of
/// a transaction loses its locks, and writers and watchdog go on.
const SETTINGS: [(&str, &str); 15] = [
    ("statement_timeout", "60000"),
    ("lock_timeout", "5000"),
    ("idle_in_transaction_session_timeout", "5000"),
    // An audit and a pool keep sessions that do nothing for a while.
    ("idle_session_timeout", "0"),
    // A row's error is bisected and named in the same session.
    ("exit_on_error", "off"),
    ("default_transaction_isolation", "read committed"),
    ("synchronous_commit", "on"),
    // Below that Postgres would not tell of a COMMIT that the standby has not confirmed.
    ("client_min_messages", "warning"),
    ("plan_cache_mode", "force_custom_plan"),
    // Plans without sequential scans look dear to Postgres (1e10 where it needs one all the same, as
    // in the check of a foreign key without an index), and would be compiled for every row.
    ("jit", "off"),
    // A holder that a policy hides makes its body look like nobody's: an error, not fewer rows.
    ("row_security", "off"),
    ("TimeZone", "UTC"),
    // Names, types and predicates of the catalog are compared with those in our statements.
    ("quote_all_identifiers", "off"),
    // Patterns in our statements have backslashes.
    ("standard_conforming_strings", "on"),
    // The bounds of histograms are written as text.
    ("extra_float_digits", "1"),
];
/// A second connection that takes longer than this is not worth the wait.
const LOOK_WITHIN: Duration = Duration::from_secs(2);
pub(super) const POOLER_REMEDY: &str =
    "connect to Postgres itself, or pool by session and as ops/SECURITY.md says under PgBouncer";

/// Returns what every session of the fleet is started with, after the user's own options.
pub(super) fn options(own: Option<&str>, schema: Option<&str>) -> String {
    let mut options = own.unwrap_or_default().to_string();
    for (name, value) in SETTINGS {
        let _ = write!(options, " -c {name}={}", escaped(value));
    }
    if let Some(schema) = schema {
        let identifier = format!("\"{}\"", schema.replace('"', "\"\""));
        let _ = write!(options, " -c search_path={}", escaped(&identifier));
    }
    options
}

/// Escapes a value for the startup packet, which the server splits at white space.
fn escaped(value: &str) -> String {
    let needs_escape = |c: char| c.is_ascii_whitespace() || c == '\\';
    value.chars().flat_map(|c| needs_escape(c).then_some('\\').into_iter().chain([c])).collect()
}

/// PgBouncer knows few parameters, and refuses a client that brings others.
pub(super) fn is_refused_by_pooler(error: &Error) -> bool {
    error.as_db_error().is_some_and(|refusal| {
        refusal.code() == &SqlState::PROTOCOL_VIOLATION
            && refusal.message().contains("startup parameter")
    })
}

/// Refuses a session that is not what we asked for.
pub(super) async fn check(target: &Target, client: &Client) -> Result<()> {
    let astray = first_setting_astray(client).await.map_err(|error| target.explain(&error))?;
    if let Some((name, wanted, found)) = astray {
        bail!(
            "{}: {name} is {found:?}, but the session was started with {wanted:?}: a pooler drops \
             its settings; {POOLER_REMEDY}",
            target.describe()
        );
    }
    if let Some(schema) = &target.schema {
        check_schema(target, client, schema).await?;
    }
    if is_shared(target, client).await {
        bail!(
            "{}: a pooler hands this session to others between transactions (transaction or \
             statement pooling); {POOLER_REMEDY}",
            target.describe()
        );
    }
    Ok(())
}

/// Name, wanted value and found value.
async fn first_setting_astray(
    client: &Client,
) -> Result<Option<(&'static str, &'static str, String)>, Error> {
    let names: Vec<&str> = SETTINGS.iter().map(|(name, _)| *name).collect();
    let rows = client.query_typed(SESSION_SETTINGS, &[(&names, Type::TEXT_ARRAY)]).await?;
    for (name, wanted) in SETTINGS {
        let row = rows.iter().find(|row| row.get::<_, &str>("name") == name);
        let found: String = row.map(|row| row.get("setting")).unwrap_or_default();
        if found != wanted {
            return Ok(Some((name, wanted, found)));
        }
    }
    Ok(None)
}

/// Refuses a session that does not look for its tables in `schema` alone. Compared by what the server
/// makes of `search_path`: with a pooler it comes from the role, in whatever spelling.
async fn check_schema(target: &Target, client: &Client, schema: &String) -> Result<()> {
    let rows = client.query_typed(SESSION_SCHEMA, &[text(schema)]).await;
    let rows = rows.map_err(|error| target.explain(&error))?;
    let Some(row) = rows.first() else {
        bail!(
            "{}: schema {schema:?} does not exist; create it, or correct postgres.schema \
             (CLEANUP_POSTGRES_SCHEMA)",
            target.describe()
        );
    };
    if !row.get::<_, bool>("usable") {
        bail!(
            "{}: this login may not use schema {schema:?}; GRANT USAGE ON SCHEMA {} TO {}",
            target.describe(),
            row.get::<_, &str>("identifier"),
            row.get::<_, &str>("login"),
        );
    }
    let (found, is_path) = (row.get::<_, &str>("search_path"), row.get::<_, bool>("is_path"));
    if !is_path {
        bail!(
            "{}: search_path is {found:?}, but the session was started with postgres.schema \
             {schema:?}: a pooler drops its settings; {POOLER_REMEDY}",
            target.describe()
        );
    }
    Ok(())
}

/// Is the session shared with other clients? Marks it, and looks for the mark from a second
/// connection, which a pooler would likely give the session that was used last, and, while that
/// one is in a transaction, once more from the first. Whatever keeps us from looking is no proof:
/// it says false.
async fn is_shared(target: &Target, client: &Client) -> bool {
    let mark = Uuid::new_v4().to_string();
    let look = async {
        client.query_typed(SESSION_MARK, &[text(&mark)]).await?;
        let mut other = target.connect().await?;
        let holding = match other.transaction().await {
            Ok(holding) => holding,
            // Postgres never refuses to begin; PgBouncer does in statement mode.
            Err(error) => return Ok(error.code() == Some(&SqlState::PROTOCOL_VIOLATION)),
        };
        Ok::<_, Error>(is_marked(&holding, &mark).await? || !is_marked(client, &mark).await?)
    };
    matches!(tokio::time::timeout(LOOK_WITHIN, look).await, Ok(Ok(true)))
}

async fn is_marked(client: &impl GenericClient, mark: &String) -> Result<bool, Error> {
    let rows = client.query_typed(SESSION_MARKED, &[text(mark)]).await?;
    Ok(rows.first().is_some_and(|row| row.get("marked")))
}

/// As a parameter of a statement without a name: prepared ones go astray in a shared session.
fn text(value: &String) -> (&(dyn ToSql + Sync), Type) {
    (value, Type::TEXT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_with_any_name_is_one_identifier_in_one_option() {
        let path =
            |schema| options(None, Some(schema)).rsplit_once(" -c ").map(|last| last.1.to_string());
        assert_eq!(path("app").as_deref(), Some(r#"search_path="app""#));
        let odd = r#"a b",public\"#;
        assert_eq!(path(odd).as_deref(), Some(r#"search_path="a\ b"",public\\""#));
    }

    #[test]
    fn the_statement_timeout_is_what_the_sessions_are_started_with() {
        let wanted = STATEMENT_TIMEOUT.as_millis().to_string();
        assert!(SETTINGS.contains(&("statement_timeout", &wanted)));
    }
}

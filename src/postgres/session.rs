//! The settings of every session, and the check that a session has them and is not shared. A pooler
//! between the program and Postgres can break both without an error; each program checks at its start.

use std::{fmt::Write as _, time::Duration};

use tokio::time::{Instant, timeout, timeout_at};
use tokio_postgres::{
    Client, Error, GenericClient,
    error::SqlState,
    types::{ToSql, Type},
};
use uuid::Uuid;

use super::Target;
use crate::problem::Problem;

const SESSION_SETTINGS: &str = sql!("session/settings");
const SESSION_SCHEMA: &str = sql!("session/schema");
const SESSION_MARK: &str = sql!("session/mark");
const SESSION_MARKED: &str = sql!("session/marked");

/// Times are in milliseconds. No session keeps locks for long: a worker frozen in the middle of a
/// transaction loses its locks, so that writers and watchdog can continue.
const SETTINGS: [(&str, &str); 15] = [
    ("statement_timeout", "60000"),
    ("lock_timeout", "5000"),
    ("idle_in_transaction_session_timeout", "5000"),
    // Sessions of an audit or a pool may be idle for minutes.
    ("idle_session_timeout", "0"),
    // After a row error, the bisection continues in the same session.
    ("exit_on_error", "off"),
    ("default_transaction_isolation", "read committed"),
    ("synchronous_commit", "on"),
    // Needed for the warning about a COMMIT that the standby has not confirmed.
    ("client_min_messages", "warning"),
    ("plan_cache_mode", "force_custom_plan"),
    // With enable_seqscan off, a plan that needs a sequential scan all the same (as in the check of a
    // foreign key without an index) has a cost of 1e10, and would be JIT-compiled for every row.
    ("jit", "off"),
    // With a reference hidden by a policy, content would look unreferenced: raise an error instead.
    ("row_security", "off"),
    ("TimeZone", "UTC"),
    // Names, types and predicates of the catalog are compared with texts in our statements.
    ("quote_all_identifiers", "off"),
    // Patterns in our statements contain backslashes.
    ("standard_conforming_strings", "on"),
    // The bounds of histograms are stored as text.
    ("extra_float_digits", "1"),
];
/// Time limit of the check for a shared session.
const CHECK_WITHIN: Duration = Duration::from_secs(10);
/// Time limit of its second connection. A pool by session may have no session left for it, because the
/// first connection keeps its own; a pool by transaction has that one.
const SECOND_WITHIN: Duration = Duration::from_secs(5);

/// Returns the startup options of every session, after the options in the URL.
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

/// Refuses a session without the fleet's settings.
pub(super) async fn check_settings(target: &Target, client: &Client) -> Result<(), Problem> {
    let wrong = first_wrong_setting(client).await.map_err(|error| target.explain(error))?;
    if let Some((name, wanted, found)) = wrong {
        return Err(dropped(target, name, &found, &format!("{wanted:?}")));
    }
    match target.settings.schema() {
        Some(schema) => check_schema(target, client, &schema.to_string()).await,
        None => Ok(()),
    }
}

/// A setting of the session is not the one that it was started with.
fn dropped(target: &Target, name: &str, found: &str, wanted: &str) -> Problem {
    let pooler = target.pooler();
    let problem = format!(
        "{name} is {found:?}, but the session was started with {wanted}: {} drops the session's \
         settings",
        pooler.name()
    );
    target.problem(problem, pooler.remedy())
}

/// Refuses a session that is shared, and one of which that is not known: two programs in one session
/// would take each other's locks and settings for their own.
pub(super) async fn check_unshared(target: &Target, client: &Client) -> Result<(), Problem> {
    let pooler = target.pooler();
    let shares =
        format!("{} shares this session with other clients between transactions", pooler.name());
    let within = CHECK_WITHIN + target.password_timeout();
    let Ok(checked) = timeout(within, is_shared(target, client)).await else {
        let within = within.as_secs();
        return Err(target.problem(
            format!("could not find out within {within} s whether {shares}"),
            format!("try again when Postgres is less busy, or {}", pooler.remedy()),
        ));
    };
    match checked.map_err(|error| target.explain(error))? {
        true => {
            let problem = format!("{shares} (transaction or statement pooling)");
            Err(target.problem(problem, pooler.remedy()))
        }
        false => Ok(()),
    }
}

/// Returns name, wanted value and actual value of the first setting that differs.
async fn first_wrong_setting(
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

/// Refuses a session whose only schema is not `schema`. Compares what the server makes of `search_path`:
/// with a pooler it comes from the role, and may be spelled in another way.
async fn check_schema(target: &Target, client: &Client, schema: &String) -> Result<(), Problem> {
    let rows = client.query_typed(SESSION_SCHEMA, &[text(schema)]).await;
    let rows = rows.map_err(|error| target.explain(error))?;
    let Some(row) = rows.first() else {
        return Err(target.problem(
            format!("schema {schema:?} does not exist"),
            "create it, or correct postgres.schema (CLEANUP_POSTGRES_SCHEMA)",
        ));
    };
    if !row.get::<_, bool>("usable") {
        let (identifier, login): (&str, &str) = (row.get("identifier"), row.get("login"));
        return Err(target.problem(
            format!("this login may not use schema {schema:?}"),
            format!("GRANT USAGE ON SCHEMA {identifier} TO {login}"),
        ));
    }
    match row.get("is_path") {
        true => Ok(()),
        false => {
            let wanted = format!("postgres.schema {schema:?}");
            Err(dropped(target, "search_path", row.get("search_path"), &wanted))
        }
    }
}

/// Returns whether the session is shared with other clients. Marks the session, and checks for the mark
/// on a second connection, to which a pooler would likely assign the session that was used last; then,
/// while the second one is in a transaction, again on the first.
async fn is_shared(target: &Target, client: &Client) -> Result<bool, Error> {
    let mark = Uuid::new_v4().to_string();
    client.query_typed(SESSION_MARK, &[text(&mark)]).await?;
    let until = Instant::now() + SECOND_WITHIN + target.password_timeout();
    let mut other = match timeout_at(until, target.connect()).await {
        Ok(Ok(other)) => other,
        // Postgres refuses it: the login may be limited to one connection.
        Ok(Err(error)) if error.code() == Some(&SqlState::TOO_MANY_CONNECTIONS) => {
            return Ok(false);
        }
        Ok(Err(error)) => return Err(error),
        Err(_) => return Ok(!is_marked(client, &mark).await?),
    };
    let holding = match timeout_at(until, other.transaction()).await {
        Ok(Ok(holding)) => holding,
        // Postgres never refuses to begin; PgBouncer does in statement mode.
        Ok(Err(error)) if error.code() == Some(&SqlState::PROTOCOL_VIOLATION) => return Ok(true),
        Ok(Err(error)) => return Err(error),
        Err(_) => return Ok(!is_marked(client, &mark).await?),
    };
    Ok(is_marked(&holding, &mark).await? || !is_marked(client, &mark).await?)
}

async fn is_marked(client: &impl GenericClient, mark: &String) -> Result<bool, Error> {
    let rows = client.query_typed(SESSION_MARKED, &[text(mark)]).await?;
    Ok(rows.first().is_some_and(|row| row.get("marked")))
}

/// Returns a parameter of an unnamed statement: prepared statements get lost in a shared session.
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
}

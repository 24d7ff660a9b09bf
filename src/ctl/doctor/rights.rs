//! Checks that the login has every privilege that a worker needs. Without this check a missing one is
//! found only when a run reaches the step that needs it.

use tokio_postgres::{Client, Row};

use super::finding::{Outcome, failure, left_out, ok};
use crate::problem::Problem;

const RIGHTS: &str = sql!("doctor/rights");
const LOGIN: &str = sql!("doctor/login");
/// Missing privileges to name; the remedy is the same for all.
const NAMED: usize = 3;

pub(super) async fn rights(client: &Client) -> Result<Outcome, Problem> {
    let login = client.query_one(LOGIN, &[]).await?;
    let rights = client.query(RIGHTS, &[]).await?;
    if rights.is_empty() {
        return Ok(left_out("the schema does not exist"));
    }
    let missing: Vec<&str> = without(&rights, "held").collect();
    Ok(match missing.is_empty() {
        true => ok(describe(&login)),
        false => failure(
            format!(
                "{} lacks privileges that a worker needs: {}",
                name(&login),
                first_of(&missing)
            ),
            remedy(&login, without(&rights, "group_holds").next().is_none()),
        ),
    })
}

/// The privileges that are not granted, by this column of the query.
fn without<'a>(rights: &'a [Row], granted: &'a str) -> impl Iterator<Item = &'a str> {
    rights.iter().filter(move |right| !right.get::<_, bool>(granted)).map(|right| right.get("what"))
}

fn name(login: &Row) -> &str {
    login.get("login")
}

/// Too many privileges are no warning: an operator who migrates and tries things out is the owner.
fn describe(login: &Row) -> String {
    let name = name(login);
    let more = match (login.get("is_superuser"), login.get("is_owner")) {
        (true, _) => "is a superuser",
        (false, true) => "owns the tables",
        (false, false) => return format!("{name} has all privileges that a worker needs"),
    };
    format!("{name} {more}; for workers, the role cleanup_worker is enough")
}

fn first_of(missing: &[&str]) -> String {
    let named = missing.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match missing.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The remedy. The role cleanup_worker may itself lack the privilege: roles belong to the whole server,
/// their privileges to one database.
fn remedy(login: &Row, group_is_complete: bool) -> String {
    let migrate = "run `cleanupctl migrate --roles` as the owner";
    let grant = format!("GRANT cleanup_worker TO {}", name(login));
    match (group_is_complete, login.get::<_, bool>("is_worker")) {
        (true, _) => grant,
        (false, true) => migrate.into(),
        (false, false) => format!("{migrate}, then {grant}"),
    }
}

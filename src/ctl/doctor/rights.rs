//! The login: may it do what a worker does? A right that is missing shows only when a run gets to
//! the step that needs it.

use anyhow::Result;
use tokio_postgres::{Client, Row};

use super::{
    finding::{Outcome, failure, left_out, ok},
    postgres::failed,
};

const RIGHTS: &str = sql!("doctor/rights");
const LOGIN: &str = sql!("doctor/login");
/// So many are named; the remedy is the same for all.
const NAMED: usize = 3;

pub(super) async fn rights(client: &Client) -> Result<Outcome> {
    let login = client.query_one(LOGIN, &[]).await.map_err(failed)?;
    let rights = client.query(RIGHTS, &[]).await.map_err(failed)?;
    if rights.is_empty() {
        return Ok(left_out("the schema is not there"));
    }
    let missing: Vec<&str> = without(&rights, "held").collect();
    Ok(match missing.is_empty() {
        true => ok(describe(&login)),
        false => failure(
            format!("{} lacks what a worker needs: {}", name(&login), first_of(&missing)),
            remedy(&login, without(&rights, "group_holds").next().is_none()),
        ),
    })
}

fn without<'a>(rights: &'a [Row], who: &'a str) -> impl Iterator<Item = &'a str> {
    rights.iter().filter(move |right| !right.get::<_, bool>(who)).map(|right| right.get("what"))
}

fn name(login: &Row) -> &str {
    login.get("login")
}

/// No warning for too much: whoever migrates and tries things out is the owner, and right to be.
fn describe(login: &Row) -> String {
    let name = name(login);
    let more = match (login.get("is_superuser"), login.get("is_owner")) {
        (true, _) => "is a superuser",
        (false, true) => "owns the tables",
        (false, false) => return format!("{name} has what a worker needs"),
    };
    format!("{name} {more}: for workers a login with no more than cleanup_worker is enough")
}

fn first_of(missing: &[&str]) -> String {
    let named = missing.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match missing.len().saturating_sub(NAMED) {
        0 => named,
        more => format!("{named} and {more} more"),
    }
}

/// The group may lack it itself: roles belong to the whole server, their rights to one database.
fn remedy(login: &Row, group_is_complete: bool) -> String {
    let migrate = "run `cleanupctl migrate --roles` as the owner";
    let grant = format!("GRANT cleanup_worker TO {}", name(login));
    match (group_is_complete, login.get::<_, bool>("is_worker")) {
        (true, _) => grant,
        (false, true) => migrate.into(),
        (false, false) => format!("{migrate}, then {grant}"),
    }
}

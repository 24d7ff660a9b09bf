//! A fresh database for every test, created from a template with the schema, the roles and the
//! fleet's logins.

use std::time::Duration;

use paste_cleanup::migrate;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::env;

const TEMPLATE: &str = "paste_cleanup_template";
/// The fleet's logins, and the groups of `sql/roles.sql` that grant all their rights. Roles belong
/// to the whole server; they are created together with the template.
pub const WORKER: &str = "suite_worker";
pub const WATCHDOG: &str = "suite_watchdog";
pub const AUDITOR: &str = "suite_auditor";
const LOGINS: &str = "
    CREATE ROLE suite_worker LOGIN PASSWORD 'suite' IN ROLE cleanup_worker;
    CREATE ROLE suite_watchdog LOGIN PASSWORD 'suite' IN ROLE cleanup_watchdog;
    CREATE ROLE suite_auditor LOGIN PASSWORD 'suite' IN ROLE cleanup_auditor";

/// Connects to any URL; the connection ends with the test.
pub async fn connect(url: &str) -> Client {
    try_connect(url).await.expect("connect")
}

/// Returns `None` if the server is unavailable.
pub async fn try_connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

pub fn url_of(database: &str) -> String {
    let maintenance = env("DATABASE_URL");
    let (server, _) = maintenance.rsplit_once('/').expect("a URL with a database");
    format!("{server}/{database}")
}

/// The same URL, with a login of the fleet.
pub fn url_as(login: &str, url: &str) -> String {
    let (_, server) = url.split_once('@').expect("a URL with a user");
    format!("postgres://{login}:suite@{server}")
}

/// Creates a database without any tables.
pub async fn empty_database() -> (String, Client) {
    let name = format!("t{}", Uuid::new_v4().simple());
    let maintenance = connect(&env("DATABASE_URL")).await;
    maintenance.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("create database");
    let url = url_of(&name);
    let client = connect(&url).await;
    (url, client)
}

/// Creates a migrated database from a template that the first test migrates.
pub async fn migrated_database() -> String {
    let maintenance = connect(&env("DATABASE_URL")).await;
    let lock = "SELECT pg_advisory_lock(4711)";
    maintenance.batch_execute(lock).await.expect("template lock");
    let template = maintenance
        .query_opt("SELECT FROM pg_database WHERE datname = $1 AND datistemplate", &[&TEMPLATE])
        .await
        .expect("select template");
    if template.is_none() {
        let _ = maintenance.batch_execute(&format!("DROP DATABASE IF EXISTS {TEMPLATE}")).await;
        maintenance.batch_execute(&format!("CREATE DATABASE {TEMPLATE}")).await.expect("template");
        migrate_at(&url_of(TEMPLATE)).await;
        let done = format!("ALTER DATABASE {TEMPLATE} IS_TEMPLATE true");
        maintenance.batch_execute(&done).await.expect("finish template");
    }
    let name = format!("t{}", Uuid::new_v4().simple());
    // CREATE DATABASE fails while the last session on the template is still ending.
    for _ in 0..50 {
        let create = format!("CREATE DATABASE {name} TEMPLATE {TEMPLATE}");
        if maintenance.batch_execute(&create).await.is_ok() {
            maintenance.batch_execute("SELECT pg_advisory_unlock(4711)").await.expect("unlock");
            return name;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("cannot create a database from {TEMPLATE}");
}

/// Migrates the first database of a server, and creates the server's logins.
pub async fn migrate_at(url: &str) {
    let client = connect(url).await;
    let options = migrate::Options { roles: true, ..Default::default() };
    migrate::migrate(&client, &options, &mut |_| {}).await.expect("migrate");
    let drop_logins = format!("DROP ROLE IF EXISTS {WORKER}, {WATCHDOG}, {AUDITOR}");
    client.batch_execute(&drop_logins).await.expect("drop old logins");
    client.batch_execute(LOGINS).await.expect("logins");
}

//! A fresh database for every test, created from a template with the schema, the roles and the
//! fleet's logins.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::LazyLock,
    time::Duration,
};

use paste_cleanup::migrate;
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use super::{env, hash, hex};

/// The fleet's logins, and the groups of `sql/roles.sql` that grant all their rights. Roles belong
/// to the whole server; they are created together with the template.
pub(crate) const WORKER: &str = "suite_worker";
pub(crate) const WATCHDOG: &str = "suite_watchdog";
pub(crate) const AUDITOR: &str = "suite_auditor";
const LOGINS: &str = "
    CREATE ROLE suite_worker LOGIN PASSWORD 'suite' IN ROLE cleanup_worker;
    CREATE ROLE suite_watchdog LOGIN PASSWORD 'suite' IN ROLE cleanup_watchdog;
    CREATE ROLE suite_auditor LOGIN PASSWORD 'suite' IN ROLE cleanup_auditor";

/// Connects to any URL; the connection ends with the test.
pub(crate) async fn connect(url: &str) -> Client {
    try_connect(url).await.unwrap_or_else(|| {
        panic!("no Postgres at {url}: the servers of the tests are started with `ops/servers`")
    })
}

/// Returns `None` if the server is unavailable.
pub(crate) async fn try_connect(url: &str) -> Option<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.ok()?;
    tokio::spawn(connection);
    Some(client)
}

pub(crate) fn url_of(database: &str) -> String {
    let maintenance = env("DATABASE_URL");
    let (server, _) = maintenance.rsplit_once('/').expect("a URL with a database");
    format!("{server}/{database}")
}

/// The same URL, with a login of the fleet.
pub(crate) fn url_as(login: &str, url: &str) -> String {
    let (_, server) = url.split_once('@').expect("a URL with a user");
    format!("postgres://{login}:suite@{server}")
}

/// Creates a database without any tables.
pub(crate) async fn empty_database() -> (String, Client) {
    let name = format!("t{}", Uuid::new_v4().simple());
    let maintenance = connect(&env("DATABASE_URL")).await;
    maintenance.batch_execute(&format!("CREATE DATABASE {name}")).await.expect("create database");
    let url = url_of(&name);
    let client = connect(&url).await;
    (url, client)
}

/// The name of the template of this schema. Servers that `ops/servers` started outlive a change of it.
static TEMPLATE: LazyLock<String> = LazyLock::new(|| {
    let sql = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/sql"));
    let migrations = fs::read_dir(sql.join("migrations")).expect("migrations");
    let mut files: Vec<PathBuf> = migrations.map(|file| file.expect("a file").path()).collect();
    files.push(sql.join("roles.sql"));
    files.sort();
    let text: String =
        files.iter().map(|file| fs::read_to_string(file).expect("a file of SQL")).collect();
    format!("template_{}", &hex(&hash(&text))[..16])
});

/// Creates a migrated database from a template that the first test migrates.
pub(crate) async fn migrated_database() -> String {
    let template = TEMPLATE.as_str();
    let maintenance = connect(&env("DATABASE_URL")).await;
    let lock = "SELECT pg_advisory_lock(4711)";
    maintenance.batch_execute(lock).await.expect("template lock");
    let migrated = maintenance
        .query_opt("SELECT FROM pg_database WHERE datname = $1 AND datistemplate", &[&template])
        .await
        .expect("select template");
    if migrated.is_none() {
        let _ = maintenance.batch_execute(&format!("DROP DATABASE IF EXISTS {template}")).await;
        maintenance.batch_execute(&format!("CREATE DATABASE {template}")).await.expect("template");
        migrate_at(&url_of(template)).await;
        let done = format!("ALTER DATABASE {template} IS_TEMPLATE true");
        maintenance.batch_execute(&done).await.expect("finish template");
    }
    let name = format!("t{}", Uuid::new_v4().simple());
    // CREATE DATABASE fails while the last session on the template is still ending.
    for _ in 0..50 {
        let create = format!("CREATE DATABASE {name} TEMPLATE {template}");
        if maintenance.batch_execute(&create).await.is_ok() {
            maintenance.batch_execute("SELECT pg_advisory_unlock(4711)").await.expect("unlock");
            return name;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    panic!("cannot create a database from {template}");
}

/// Migrates the first database of a server, and creates the server's logins.
pub(crate) async fn migrate_at(url: &str) {
    let client = connect(url).await;
    let options = migrate::Options { roles: true, ..Default::default() };
    migrate::migrate(&client, &options, &mut |_| {}).await.expect("migrate");
    let drop_logins = format!("DROP ROLE IF EXISTS {WORKER}, {WATCHDOG}, {AUDITOR}");
    client.batch_execute(&drop_logins).await.expect("drop old logins");
    client.batch_execute(LOGINS).await.expect("logins");
}

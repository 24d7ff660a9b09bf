//! The databases: one is filled, and copied for every measurement, so that all measurements start from
//! the same pages.

use std::collections::HashSet;

use tokio_postgres::{Client, NoTls};

use crate::Result;

const FILL: &str = include_str!("fill.sql");
const TEMPLATE: &str = "bench_template";
/// The server settings that the results depend on.
const SETTINGS: &str = "
    SELECT name || ' ' || current_setting(name) FROM unnest(ARRAY['server_version', 'fsync',
        'synchronous_commit', 'wal_level', 'shared_buffers', 'max_wal_size', 'autovacuum']) AS name";

/// The server, and the database that the others are copied from.
pub(crate) struct Stage {
    server: String,
    maintenance: Client,
}

/// A copy for one measurement.
pub(crate) struct Copy {
    pub name: String,
    pub url: String,
    pub db: Client,
}

impl Stage {
    /// Fills the template with `rows` expired and as many live pastes.
    pub(crate) async fn fill(rows: u64) -> Result<Self> {
        let url = std::env::var("PASTE_CLEANUP_TEST_DATABASE_URL").map_err(
            |_| "PASTE_CLEANUP_TEST_DATABASE_URL is not set: start the benchmark with ops/bench",
        )?;
        let (server, _) =
            url.rsplit_once('/').ok_or("the URL of the test database has no database name")?;
        let maintenance = connect(&url).await?;
        let stage = Self { server: server.into(), maintenance };
        stage.create(TEMPLATE, "template0").await?;
        let template = connect(&stage.url(TEMPLATE)).await?;
        let options = paste_cleanup::migrate::Options::default();
        paste_cleanup::migrate::migrate(&template, &options, &mut |_| {}).await?;
        template.batch_execute(&FILL.replace("$rows", &rows.to_string())).await?;
        for table in ["pastes", "content"] {
            template.batch_execute(&format!("VACUUM (ANALYZE, FREEZE) {table}")).await?;
        }
        drop(template);
        Ok(stage)
    }

    /// `host:port`.
    pub(crate) fn address(&self) -> &str {
        self.server.rsplit('@').next().unwrap_or(&self.server)
    }

    /// Creates a database with the schema and no pastes.
    pub(crate) async fn empty(&self, name: &str) -> Result<Copy> {
        let copy = self.copy(name).await?;
        copy.db.batch_execute("TRUNCATE pastes, content").await?;
        Ok(copy)
    }

    pub(crate) async fn settings(&self) -> Result<Vec<String>> {
        let rows = self.maintenance.query(SETTINGS, &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }

    /// Creates a copy, and writes its pages to disk before the measurement.
    pub(crate) async fn copy(&self, name: &str) -> Result<Copy> {
        self.create(name, TEMPLATE).await?;
        self.maintenance.batch_execute("CHECKPOINT").await?;
        let url = self.url(name);
        let db = connect(&url).await?;
        Ok(Copy { name: name.into(), url, db })
    }

    pub(crate) async fn drop(&self, copy: Copy) -> Result<()> {
        let sql = format!("DROP DATABASE {} WITH (FORCE)", copy.name);
        Ok(self.maintenance.batch_execute(&sql).await?)
    }

    async fn create(&self, name: &str, template: &str) -> Result<()> {
        let clear = format!(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = '{template}'"
        );
        self.maintenance.batch_execute(&clear).await?;
        self.maintenance.batch_execute(&format!("DROP DATABASE IF EXISTS {name}")).await?;
        let create = format!("CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY");
        Ok(self.maintenance.batch_execute(&create).await?)
    }

    fn url(&self, database: &str) -> String {
        format!("{}/{database}", self.server)
    }

    /// Returns the position of the write-ahead log in bytes.
    pub(crate) async fn wal(&self) -> Result<i64> {
        let sql = "SELECT (pg_current_wal_insert_lsn() - '0/0')::bigint";
        Ok(self.maintenance.query_one(sql, &[]).await?.get(0))
    }
}

impl Copy {
    pub(crate) async fn count(&self, sql: &str) -> Result<i64> {
        Ok(self.db.query_one(sql, &[]).await?.get(0))
    }

    pub(crate) async fn keys(&self) -> Result<HashSet<String>> {
        let rows = self.db.query("SELECT s3_key FROM content", &[]).await?;
        Ok(rows.iter().map(|row| row.get(0)).collect())
    }
}

pub(crate) async fn connect(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

//! SQL on the database of a test, and waiting for rows to be committed.

use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::World;

impl World {
    pub async fn count(&self, sql: &str) -> i64 {
        self.count_with(sql, &[]).await
    }

    pub async fn count_with(&self, sql: &str, args: &[&(dyn ToSql + Sync)]) -> i64 {
        self.db.query_one(sql, args).await.expect(sql).get(0)
    }

    pub async fn run_sql(&self, sql: &str) {
        self.db.batch_execute(sql).await.expect(sql);
    }

    /// One value as text, for messages and comparisons.
    pub async fn text(&self, sql: &str) -> Option<String> {
        self.db.query_opt(sql, &[]).await.expect(sql).and_then(|row| row.get(0))
    }

    /// Polls until the query returns true. Tests wait for committed rows instead of sleeping.
    pub async fn until(&self, what: &str, sql: &str) {
        for _ in 0..3000 {
            if self.db.query_one(sql, &[]).await.expect(sql).get(0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never happened: {what}");
    }

    /// Waits until this number of workers' statements wait for a lock in this database.
    pub async fn until_workers_wait(&self, statements: i64) {
        let waiting = format!(
            "SELECT count(*) = {statements} FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'
               AND application_name LIKE 'cleanup-worker%'"
        );
        self.until("the workers wait for a lock", &waiting).await;
    }
}

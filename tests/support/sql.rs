//! SQL on the database of a test, and waiting for rows to be committed.

use std::time::Duration;

use tokio_postgres::{Client, types::ToSql};

use super::World;

const TIMEOUT: Duration = Duration::from_secs(60);

impl World {
    pub(crate) async fn count(&self, sql: &str) -> i64 {
        self.count_with(sql, &[]).await
    }

    pub(crate) async fn count_with(&self, sql: &str, args: &[&(dyn ToSql + Sync)]) -> i64 {
        self.db.query_one(sql, args).await.expect(sql).get(0)
    }

    pub(crate) async fn run_sql(&self, sql: &str) {
        self.db.batch_execute(sql).await.expect(sql);
    }

    /// One value as text, for messages and comparisons.
    pub(crate) async fn text(&self, sql: &str) -> Option<String> {
        self.db.query_opt(sql, &[]).await.expect(sql).and_then(|row| row.get(0))
    }

    /// Polls until the query returns true. Tests wait for committed rows instead of sleeping.
    pub(crate) async fn until(&self, what: &str, sql: &str) {
        for _ in 0..3000 {
            if self.db.query_one(sql, &[]).await.expect(sql).get(0) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("never happened: {what}");
    }

    /// Executes `sql` on the connection as soon as this number of statements of programs whose
    /// application_name is LIKE `program` wait for a lock. The server itself waits for that, so that
    /// their lock_timeout is not over before the test has noticed.
    pub(crate) async fn when_it_waits(
        &self,
        program: &str,
        statements: usize,
        connection: &Client,
        sql: &str,
    ) {
        let waits = format!(
            "DO $$
             BEGIN
                 WHILE (SELECT count(*) FROM pg_locks JOIN pg_stat_activity USING (pid)
                        WHERE NOT granted AND datname = current_database()
                          AND application_name LIKE '{program}') < {statements} LOOP
                     PERFORM pg_sleep(0.005);
                     PERFORM pg_stat_clear_snapshot();
                 END LOOP;
             END $$;
             {sql}"
        );
        let done = tokio::time::timeout(TIMEOUT, connection.batch_execute(&waits)).await;
        done.expect("the program never waits for a lock").expect(sql);
    }

    /// Executes `sql` on the connection as soon as a worker waits for a lock.
    pub(crate) async fn when_a_worker_waits(&self, connection: &Client, sql: &str) {
        self.when_it_waits("cleanup-worker%", 1, connection, sql).await;
    }

    /// Waits until this number of workers' statements wait for a lock in this database.
    pub(crate) async fn until_workers_wait(&self, statements: i64) {
        let waiting = format!(
            "SELECT count(*) = {statements} FROM pg_stat_activity
             WHERE datname = current_database() AND wait_event_type = 'Lock'
               AND application_name LIKE 'cleanup-worker%'"
        );
        self.until("the workers wait for a lock", &waiting).await;
    }
}

//! How programs log in: passwords as libpq has them, commands, secrets in files that are replaced while
//! a run is going on, and the identities that AWS gives to a pod or a machine.

mod aws;
mod files;
mod passwords;
mod rotation;

use crate::support::*;

/// A login of the test's own, with the rights of a worker.
struct Login {
    name: String,
}

impl Login {
    async fn create(world: &World, password: &str) -> Self {
        let login = Self { name: format!("night_{}", uuid::Uuid::new_v4().simple()) };
        let create = format!(
            "CREATE ROLE {} LOGIN PASSWORD '{password}' IN ROLE cleanup_worker",
            login.name
        );
        world.run_sql(&create).await;
        login
    }

    /// Replaces the password, and ends the login's sessions.
    async fn change(&self, world: &World, password: &str) {
        let Self { name } = self;
        world
            .run_sql(&format!(
                "ALTER ROLE {name} PASSWORD '{password}';
                 SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{name}'"
            ))
            .await;
    }

    /// Returns the URL of a world's database with this login: `name` or `name:password`.
    fn url(&self, world: &World, password: Option<&str>) -> String {
        let address = world.database_url.rsplit_once('@').expect("an address").1;
        let password = password.map(|password| format!(":{password}")).unwrap_or_default();
        format!("postgres://{}{password}@{address}", self.name)
    }
}

//! A database without the fleet's schema, or with another version of it, is refused with the
//! command that helps.

use super::{PROGRAMS, assert_gives_up, assert_untouched, world};
use crate::support::*;

#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_was_not_migrated_is_refused_with_the_command() {
    let world = world().await;
    let (url, empty) = empty_database().await;
    for (program, args) in PROGRAMS {
        let process = world.program(program).args(args).env("DATABASE_URL", &url);
        assert_gives_up(process, &["run `cleanupctl migrate`"]).await;
    }
    let dry_run = world.program("cleanup-worker").args(&["run", "--dry-run"]);
    assert_gives_up(dry_run.env("DATABASE_URL", &url), &["run `cleanupctl migrate`"]).await;
    let tables = "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'";
    let made: i64 = empty.query_one(tables, &[]).await.expect("count").get(0);
    assert_eq!(made, 0, "nothing was created");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_schema_of_another_version_is_refused_with_the_remedy() {
    let world = world().await;
    let newer = "INSERT INTO cleanup_migrations (version, name) VALUES (999, 'future')";
    world.run_sql(newer).await;
    for (program, args) in PROGRAMS {
        assert_gives_up(world.program(program).args(args), &["999", "upgrade"]).await;
    }
    world.run_sql("DELETE FROM cleanup_migrations WHERE version > 1").await;
    for (program, args) in PROGRAMS {
        let process = world.program(program).args(args);
        assert_gives_up(process, &["version 1", "run `cleanupctl migrate`"]).await;
    }
    assert_untouched(&world).await;
}

//! Checks the standbys: an acknowledged decrement must survive a failover, so one standby must be
//! synchronous.

use tokio_postgres::{Client, Row};

use super::finding::{Outcome, failure, left_out, ok, warning};
use crate::problem::Problem;

const STANDBYS: &str = sql!("doctor/standbys");
const SET: &str = "set synchronous_standby_names, for example to 'ANY 1 (*)'";

pub(super) async fn synchronous(client: &Client) -> Result<Outcome, Problem> {
    let row = client.query_one(STANDBYS, &[]).await?;
    Ok(judge(&Standbys::from(&row)))
}

struct Standbys {
    /// This server is itself a standby.
    is_standby: bool,
    /// The setting `synchronous_standby_names`.
    wanted: String,
    all: i64,
    /// Standbys whose state this role may see.
    visible: i64,
    synchronous: i64,
}

impl From<&Row> for Standbys {
    fn from(row: &Row) -> Self {
        Self {
            is_standby: row.get("is_standby"),
            wanted: row.get("wanted"),
            all: row.get("standbys"),
            visible: row.get("visible"),
            synchronous: row.get("synchronous"),
        }
    }
}

fn judge(standbys: &Standbys) -> Outcome {
    let Standbys { is_standby, wanted, all, visible, synchronous } = standbys;
    if *is_standby {
        return left_out("this server is a standby; only the primary lists its standbys");
    }
    if visible < all {
        return warning(
            format!("{all} connected, but this role may not see whether any is synchronous"),
            "GRANT pg_monitor to this role and run doctor again",
        );
    }
    match (all, synchronous, wanted.is_empty()) {
        (0, _, true) => ok("none"),
        (_, 0, false) => failure(
            format!("synchronous_standby_names is {wanted:?}, but no such standby is connected"),
            "every COMMIT waits: start the standby, or correct the setting",
        ),
        (_, 0, true) => warning(
            format!("{all} connected, none of them synchronous"),
            format!(
                "a failover can undo a decrement whose objects are already deleted, and a new paste \
                 would share a deleted object: {SET}, and promote only a synchronous standby"
            ),
        ),
        _ => ok(format!("{all} connected, {synchronous} synchronous")),
    }
}

//! What the owner of the tables and operators do to them: triggers, deletes, locks, claims ended by
//! hand or truncated.

use std::sync::Arc;

use paste_cleanup::worker::{Worker, batch::claim::Wanted, report::PhaseTimes};

use crate::{
    reference::Status,
    scenario::OwnerTrigger,
    servers::{Environment, TRIGGER_ERROR, text},
    step::{Answer, Step},
    support::{database::WORKER, hash},
};

pub(super) const FINISH: &str = "WITH ended AS (
        UPDATE deletion_claims SET finished_at = now()
        WHERE id = $1 AND finished_at IS NULL AND reset_at IS NULL RETURNING 1)
     SELECT count(*) > 0 FROM ended";
pub(super) const RESET: &str = "WITH ended AS (
        UPDATE deletion_claims SET reset_at = now()
        WHERE id = $1 AND finished_at IS NULL AND reset_at IS NULL RETURNING 1)
     SELECT count(*) > 0 FROM ended";
/// Deletes the row $1 if it still has status $2 and claim $3.
const DELETE_ROW: &str = "WITH removed AS (
        DELETE FROM pastes
        WHERE short_code = $1 AND deletion_status::text = $2 AND claim_id IS NOT DISTINCT FROM $3
        RETURNING 1)
     SELECT count(*) > 0 FROM removed";
/// Resets the row $1 if it is still in progress under claim $2.
const RESET_BY_HAND: &str = "WITH reset AS (
        UPDATE pastes SET deletion_status = 'NOT_EXPIRED', deletion_initiated_at = NULL, claim_id = NULL
        WHERE short_code = $1 AND deletion_status = 'DELETION_IN_PROGRESS'
          AND claim_id IS NOT DISTINCT FROM $2
        RETURNING 1)
     SELECT count(*) > 0 FROM reset";
/// Truncates the claims. No worker has touched the rows in progress for hours.
const TRUNCATE_CLAIMS: &str = "TRUNCATE deletion_claims RESTART IDENTITY;
     UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'
     WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NOT NULL";
const LOCK_CONTENT: &str = "SELECT FROM content WHERE content_hash = $1 FOR UPDATE";
/// Lets a worker find that rows can be deleted: a later failure is then a row error.
const PLAIN: &str = "INSERT INTO pastes (short_code, expires_at) VALUES ('plain', now())";

impl Environment {
    /// Empties the tables, and creates the owner's trigger if there is one.
    pub(crate) async fn set_owner(&self, owner: Option<OwnerTrigger>) {
        let empty = "DROP TRIGGER IF EXISTS owner ON pastes;
                     TRUNCATE pastes, content, deletion_claims RESTART IDENTITY";
        self.world.run_sql(empty).await;
        let Some(owner) = owner else {
            return;
        };
        for worker in &self.workers {
            self.world.run_sql(PLAIN).await;
            delete_one(worker).await;
            self.world.run_sql(empty).await;
        }
        let keeps = match owner {
            OwnerTrigger::Raises => format!("RAISE EXCEPTION '{TRIGGER_ERROR}';"),
            OwnerTrigger::Violates => {
                format!("RAISE EXCEPTION '{TRIGGER_ERROR}' USING ERRCODE = '23514';")
            }
            OwnerTrigger::Swallows => "RETURN NULL;".into(),
        };
        let trigger = format!(
            "CREATE OR REPLACE FUNCTION owner() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN {keeps} END $$;
             CREATE TRIGGER owner BEFORE DELETE ON pastes FOR EACH ROW
             WHEN (current_user = '{WORKER}' AND substr(OLD.short_code, 2)::int % 4 = 3)
             EXECUTE FUNCTION owner()"
        );
        self.world.run_sql(&trigger).await;
    }

    pub(crate) async fn drop_owner_trigger(&self) -> Answer {
        self.world.run_sql("DROP TRIGGER IF EXISTS owner ON pastes").await;
        Answer::Done
    }

    /// Retries after deadlocks: a reset by hand can deadlock with the end of the row's claim.
    pub(crate) async fn reset_by_hand(&self, slot: usize, code: &str, found: Status) -> Answer {
        let claim = match found {
            Status::InProgress(claim) => claim,
            Status::UnknownClaim(claim) => Some(claim),
            Status::NotExpired | Status::Deleted => return Answer::Changed(false),
        };
        loop {
            match self.change(slot, RESET_BY_HAND, &[&code, &claim]).await {
                Answer::Error(error) if error.contains("deadlock") => {}
                answer => return answer,
            }
        }
    }

    pub(crate) async fn delete_row(&self, slot: usize, code: &str, found: Status) -> Answer {
        let (status, claim) = match found {
            Status::NotExpired => ("NOT_EXPIRED", None),
            Status::InProgress(claim) => ("DELETION_IN_PROGRESS", claim),
            Status::UnknownClaim(claim) => ("DELETION_IN_PROGRESS", Some(claim)),
            Status::Deleted => ("DELETED", None),
        };
        self.change(slot, DELETE_ROW, &[&code, &status, &claim]).await
    }

    /// The workers of these claims count as dead.
    pub(crate) async fn truncate_claims(&self) -> Answer {
        self.world.run_sql(TRUNCATE_CLAIMS).await;
        self.batches.lock().expect("batches").clear();
        Answer::Done
    }

    /// Runs the step while another transaction locks the content row.
    pub(crate) async fn while_locked(&self, content_id: u8, step: &Step) -> Answer {
        self.lock_holder.batch_execute("BEGIN").await.expect("begin");
        self.lock_holder
            .query(LOCK_CONTENT, &[&hash(&text(content_id))])
            .await
            .expect("lock content");
        let answer = self.perform(step, 0).await;
        self.lock_holder.batch_execute("ROLLBACK").await.expect("rollback");
        answer
    }
}

async fn delete_one(worker: &Arc<Worker>) {
    let wanted = Wanted { size: 1, mark: None, busy: false, until: None };
    let claim = worker.claim(wanted).await.expect("claim").expect("a plain paste");
    let decremented = worker.decrement(&claim).await.expect("decrement");
    let gone = worker.delete_objects(&claim, &decremented).await.expect("no objects");
    worker.finish(&claim, &gone, &PhaseTimes::default()).await.expect("finish");
}

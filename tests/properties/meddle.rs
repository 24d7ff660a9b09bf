//! What the owners of the tables do to them, for real: triggers, deletions, locks, claims ended by hand
//! or forgotten.

use std::sync::Arc;

use paste_cleanup::worker::{Worker, batch::claim::Wanted, report::PhaseTimes};

use super::{
    reference::Status,
    stage::{KEPT, Stage, text},
    steps::{Answer, Step},
    story::Owner,
    support::{database::WORKER, hash},
};

pub const FINISH: &str = "WITH ended AS (
        UPDATE deletion_claims SET finished_at = now()
        WHERE id = $1 AND finished_at IS NULL AND reset_at IS NULL RETURNING 1)
     SELECT count(*) > 0 FROM ended";
pub const RESET: &str = "WITH ended AS (
        UPDATE deletion_claims SET reset_at = now()
        WHERE id = $1 AND finished_at IS NULL AND reset_at IS NULL RETURNING 1)
     SELECT count(*) > 0 FROM ended";
/// $2: its status, $3: its claim.
const REMOVE: &str = "WITH removed AS (
        DELETE FROM pastes
        WHERE short_code = $1 AND deletion_status::text = $2 AND claim_id IS NOT DISTINCT FROM $3
        RETURNING 1)
     SELECT count(*) > 0 FROM removed";
/// $2: its claim.
const PUT_BACK: &str = "WITH back AS (
        UPDATE pastes SET deletion_status = 'NOT_EXPIRED', deletion_initiated_at = NULL, claim_id = NULL
        WHERE short_code = $1 AND deletion_status = 'DELETION_IN_PROGRESS'
          AND claim_id IS NOT DISTINCT FROM $2
        RETURNING 1)
     SELECT count(*) > 0 FROM back";
/// Nobody was at work on these rows for hours.
const FORGET: &str = "TRUNCATE deletion_claims RESTART IDENTITY;
     UPDATE pastes SET deletion_initiated_at = now() - interval '3 hours'
     WHERE deletion_status = 'DELETION_IN_PROGRESS' AND claim_id IS NOT NULL";
const HOLD: &str = "SELECT FROM content WHERE content_hash = $1 FOR UPDATE";
/// For a worker to find that rows can be deleted: then those that cannot are to blame themselves.
const PLAIN: &str = "INSERT INTO pastes (short_code, expires_at) VALUES ('plain', now())";

impl Stage {
    /// Empties the tables, and gives them an owner with or without a trigger.
    pub async fn set_owner(&self, owner: Option<Owner>) {
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
            Owner::Raises => format!("RAISE EXCEPTION '{KEPT}';"),
            Owner::Violates => format!("RAISE EXCEPTION '{KEPT}' USING ERRCODE = '23514';"),
            Owner::Swallows => "RETURN NULL;".into(),
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

    pub async fn owner_relents(&self) -> Answer {
        self.world.run_sql("DROP TRIGGER IF EXISTS owner ON pastes").await;
        Answer::Done
    }

    /// Again and again, if need be: whoever puts a row back while its claim ends may be in a deadlock.
    pub async fn put_back(&self, slot: usize, code: &str, found: Status) -> Answer {
        let claim = match found {
            Status::InProgress(claim) => claim,
            Status::Stale(claim) => Some(claim),
            Status::NotExpired | Status::Deleted => return Answer::Changed(false),
        };
        loop {
            match self.ask(slot, PUT_BACK, &[&code, &claim]).await {
                Answer::Broke(error) if error.contains("deadlock") => {}
                answer => return answer,
            }
        }
    }

    pub async fn remove(&self, slot: usize, code: &str, found: Status) -> Answer {
        let (status, claim) = match found {
            Status::NotExpired => ("NOT_EXPIRED", None),
            Status::InProgress(claim) => ("DELETION_IN_PROGRESS", claim),
            Status::Stale(claim) => ("DELETION_IN_PROGRESS", Some(claim)),
            Status::Deleted => ("DELETED", None),
        };
        self.ask(slot, REMOVE, &[&code, &status, &claim]).await
    }

    /// Whoever works on them is as good as dead.
    pub async fn forget_claims(&self) -> Answer {
        self.world.run_sql(FORGET).await;
        self.held.lock().expect("held").clear();
        Answer::Done
    }

    /// Another transaction holds the content row from before the step until after it.
    pub async fn while_held(&self, body: u8, step: &Step) -> Answer {
        self.holder.batch_execute("BEGIN").await.expect("begin");
        self.holder.query(HOLD, &[&hash(&text(body))]).await.expect("hold");
        let answer = self.perform(step, 0).await;
        self.holder.batch_execute("ROLLBACK").await.expect("let go");
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

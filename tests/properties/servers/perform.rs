//! Performs steps on the real servers and returns their answers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use paste_cleanup::{
    claim::{Claim, StepError, reset::Reset},
    postgres::describe,
    watchdog::{Depth, sweep},
    worker::{
        batch::{claim::Wanted, delete_objects::ObjectsDeleted},
        report::PhaseTimes,
    },
};
use tokio::time::timeout;

use crate::{
    reference::{ClaimedPaste, When},
    servers::owner::{FINISH, RESET},
    servers::{Batch, Environment, size_bytes, text},
    step::{Answer, Step, Sweep},
    support::{faulty_s3::Mode, hash},
};

/// How long to wait for a finish before the decrement, which retries because it is refused.
const REFUSED_FOR: Duration = Duration::from_millis(80);
const TIMEOUT: Duration = Duration::from_secs(120);
/// Also expires the lease of an ended claim, which gets no heartbeats any more.
const EXPIRE_LEASE: &str =
    "UPDATE deletion_claims SET heartbeat_at = now() - interval '3 hours' WHERE id = $1";
/// A plain UPDATE that a writer can use instead of paste_extend.
const EXTEND: &str = "WITH extended AS (
        UPDATE pastes SET expires_at = $2
        WHERE short_code = $1 AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NOT NULL
        RETURNING 1)
     SELECT count(*) > 0 FROM extended";

impl Environment {
    /// Performs the step. `slot` numbers the concurrent steps of a round.
    pub(crate) async fn perform(&self, step: &Step, slot: usize) -> Answer {
        let performing = async {
            match step {
                Step::Claim { worker, size, busy, after } => {
                    self.claim(*worker, *size, *busy, *after).await
                }
                Step::Decrement(id) => self.decrement(*id).await,
                Step::DeleteObjects(id) => self.delete_objects(*id).await,
                Step::Finish(id) => self.finish(*id).await,
                Step::Release(id) => self.release(*id).await,
                Step::ExpireLease(id) => self.execute(slot, EXPIRE_LEASE, &[id]).await,
                Step::Sweep => self.sweep().await,
                Step::EndBackoff(due) => self.end_backoff(due).await,
                Step::Put { code, content_id, key, expires } => {
                    self.put(slot, code, *content_id, key, *expires).await
                }
                Step::Extend { code, expires, plain_update } => {
                    let extend = if *plain_update { EXTEND } else { "SELECT paste_extend($1, $2)" };
                    self.change(slot, extend, &[code, &self.at(*expires)]).await
                }
                Step::ExpireNow(code) => {
                    self.change(slot, "SELECT paste_expire_now($1)", &[code]).await
                }
                Step::Refuse(text) => {
                    self.s3.set_mode(text.as_ref().map_or(Mode::Normal, |text| Mode::Refusing {
                        text: text.clone(),
                        code: "ObjectLocked",
                    }));
                    Answer::Done
                }
                Step::DeleteRow { code, found } => self.delete_row(slot, code, *found).await,
                Step::ResetByHand { code, found } => self.reset_by_hand(slot, code, *found).await,
                Step::EndByHand { claim, finished } => {
                    let end = if *finished { FINISH } else { RESET };
                    self.change(slot, end, &[claim]).await
                }
                Step::TruncateClaims => self.truncate_claims().await,
                Step::WhileLocked(content_id, step) => {
                    Box::pin(self.while_locked(*content_id, step)).await
                }
                Step::DropOwnerTrigger => self.drop_owner_trigger().await,
            }
        };
        let late = Answer::Error(format!("no answer within {TIMEOUT:?}"));
        timeout(TIMEOUT, performing).await.unwrap_or(late)
    }

    async fn claim(&self, worker: usize, size: u32, busy: bool, after: Option<i64>) -> Answer {
        let worker = &self.workers[worker];
        let mark = after.map(|claim| self.batch(claim).claim.last_due);
        let claim = match worker.claim(Wanted { size, mark, busy, until: None }).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return Answer::Claimed(None),
            Err(error) => return Answer::Error(error.to_string()),
        };
        let (id, claimed) = (claim.fence.claim, self.claimed(&claim));
        let batch = Batch { worker: Arc::clone(worker), claim, decremented: None, gone: None };
        self.batches.lock().expect("batches").insert(id, batch);
        Answer::Claimed(Some((id, claimed)))
    }

    fn claimed(&self, claim: &Claim) -> BTreeMap<String, ClaimedPaste> {
        let claimed = claim.pastes.iter().map(|paste| {
            let claimed = ClaimedPaste {
                content_id: paste.content_hash.as_ref().map(|hash| self.content_id_of(hash)),
                pending_s3_key: paste.pending_s3_key.clone(),
                attempts: paste.attempts,
            };
            (paste.short_code.clone(), claimed)
        });
        claimed.collect()
    }

    async fn decrement(&self, id: i64) -> Answer {
        let batch = self.batch(id);
        let decremented = match batch.worker.decrement(&batch.claim).await {
            Ok(decremented) => decremented,
            Err(error) => return failed(&error),
        };
        let unreferenced = decremented.unreferenced.iter();
        let unreferenced: BTreeMap<String, String> = unreferenced
            .map(|unreferenced| (unreferenced.s3_key.clone(), unreferenced.pending_owner.clone()))
            .collect();
        if unreferenced.len() != decremented.unreferenced.len() || !decremented.failed.is_empty() {
            return Answer::Error(format!("{decremented:?}"));
        }
        let answer = Answer::Decremented {
            unreferenced,
            bytes: decremented.bytes,
            drift: decremented.drift,
        };
        self.update_batch(id, |batch| batch.decremented = Some(decremented));
        answer
    }

    async fn delete_objects(&self, id: i64) -> Answer {
        let batch = self.batch(id);
        let decremented =
            batch.decremented.expect("a scenario deletes objects only after the decrement");
        match batch.worker.delete_objects(&batch.claim, &decremented).await {
            Ok(gone) => {
                let deleted = gone.deleted;
                self.update_batch(id, |batch| batch.gone = Some(Arc::new(gone)));
                Answer::Deleted(deleted)
            }
            Err(error) => failed(&error),
        }
    }

    async fn finish(&self, id: i64) -> Answer {
        let batch = self.batch(id);
        let nothing = Arc::new(ObjectsDeleted::default());
        let gone = batch.gone.as_ref().unwrap_or(&nothing);
        let times = PhaseTimes::default();
        let finishing = batch.worker.finish(&batch.claim, gone, &times);
        let finished = match batch.decremented {
            Some(_) => finishing.await,
            None => match timeout(REFUSED_FOR, finishing).await {
                Ok(finished) => finished,
                Err(_) if self.has_ended(id).await => {
                    // It was slow, not refused.
                    batch.worker.finish(&batch.claim, gone, &times).await
                }
                Err(_) => return Answer::Refused,
            },
        };
        match finished {
            Ok(finished) => {
                let failed = finished.failed.into_iter().map(|(code, _)| code).collect();
                Answer::Finished { rows: finished.rows, gone: finished.gone, failed }
            }
            Err(error) => failed(&error),
        }
    }

    /// Returns whether the claim has ended. The cancelled attempt may still be waiting for a lock,
    /// so this first waits until all workers are idle, twice, in case it is between two statements.
    async fn has_ended(&self, id: i64) -> bool {
        let idle = "SELECT count(*) = 0 FROM pg_stat_activity
                    WHERE datname = current_database() AND state <> 'idle'
                      AND application_name LIKE 'cleanup-worker%'";
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.world.until("the workers are idle", idle).await;
        }
        let ended =
            "SELECT count(coalesce(finished_at, reset_at)) FROM deletion_claims WHERE id = $1";
        self.world.count_with(ended, &[&id]).await > 0
    }

    async fn release(&self, id: i64) -> Answer {
        let batch = self.batch(id);
        match batch.worker.release(batch.claim.fence, "by the scenario").await {
            Ok(reset) => Answer::Released(of_claims(&reset)),
            Err(error) => failed(&error),
        }
    }

    async fn sweep(&self) -> Answer {
        match sweep(&self.watchdog, &self.world.settings, Depth::Thorough).await {
            Ok(swept) => {
                Answer::Swept(Sweep { stranded: swept.stranded, ..of_claims(&swept.reset) })
            }
            Err(error) => Answer::Error(error.to_string()),
        }
    }

    async fn end_backoff(&self, due: &[(String, i64)]) -> Answer {
        // A deferred row is recognized by a retry_at later than its deletion_initiated_at.
        let end = "UPDATE pastes SET retry_at = $2::timestamptz,
                          deletion_initiated_at = CASE deletion_status
                              WHEN 'DELETION_IN_PROGRESS' THEN $2::timestamptz - interval '1 second' END
                   WHERE short_code = $1";
        for (code, second) in due {
            match self.execute(0, end, &[code, &self.at(When::Past(*second))]).await {
                Answer::Done => {}
                is_error => return is_error,
            }
        }
        Answer::Done
    }

    /// Follows the writer's contract: upload, put, and delete the upload if it is not in use.
    async fn put(
        &self,
        slot: usize,
        code: &str,
        content_id: u8,
        key: &str,
        expires: When,
    ) -> Answer {
        self.world.upload(key, &text(content_id)).await;
        let put = "SELECT outcome, s3_key, drop_upload FROM paste_put($1, $2, $3, $4, $5)";
        let hash = hash(&text(content_id));
        let row = self.writers[slot]
            .query_one(put, &[&code, &hash, &key, &size_bytes(content_id), &self.at(expires)])
            .await;
        let row = match row {
            Ok(row) => row,
            Err(error) => return Answer::Error(describe(&error)),
        };
        let dropped = row.get("drop_upload");
        if dropped {
            let drop = self.world.s3.delete_object().bucket(&self.world.bucket).key(key);
            drop.send().await.expect("drop the upload");
        }
        Answer::Put { outcome: row.get("outcome"), key: row.get("s3_key"), dropped }
    }

    pub(crate) async fn execute(
        &self,
        slot: usize,
        sql: &str,
        args: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Answer {
        match self.writers[slot].execute(sql, args).await {
            Ok(_) => Answer::Done,
            Err(error) => Answer::Error(describe(&error)),
        }
    }

    pub(crate) async fn change(
        &self,
        slot: usize,
        sql: &str,
        args: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Answer {
        match self.writers[slot].query_one(sql, args).await {
            Ok(row) => Answer::Changed(row.get(0)),
            Err(error) => Answer::Error(describe(&error)),
        }
    }

    fn update_batch(&self, id: i64, change: impl FnOnce(&mut Batch)) {
        change(
            self.batches.lock().expect("batches").get_mut(&id).expect("a claim of the scenario"),
        );
    }
}

fn of_claims(reset: &Reset) -> Sweep {
    let Reset { claims, rows, dead_letters, left: deferred } = *reset;
    Sweep { claims, rows, deferred, dead_letters, stranded: 0 }
}

fn failed(error: &StepError) -> Answer {
    match error {
        StepError::LeaseLost(_) => Answer::LeaseLost,
        error => Answer::Error(error.to_string()),
    }
}

//! Steps on the real thing, and what it answers.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use paste_cleanup::{
    claim::{Claim, StepError, reset::Reset},
    postgres::describe,
    watchdog::{Depth, sweep},
    worker::{
        batch::{claim::Wanted, delete_objects::ObjectsGone},
        report::PhaseTimes,
    },
};
use tokio::time::timeout;

use super::{
    meddle::{FINISH, RESET},
    reference::{Taken, When},
    stage::{Held, Stage, size_bytes, text},
    steps::{Answer, Step, Sweep},
    support::{faulty_s3::Mode, hash},
};

/// A finish before the decrement is refused again and again; so long is waited for a wrong one.
const REFUSED_FOR: Duration = Duration::from_millis(80);
const TIMEOUT: Duration = Duration::from_secs(20);
/// Of a claim that is over, too: nobody heartbeats it any more.
const SILENT: &str =
    "UPDATE deletion_claims SET heartbeat_at = now() - interval '3 hours' WHERE id = $1";
/// What a writer may say instead of paste_extend.
const EXTEND: &str = "WITH extended AS (
        UPDATE pastes SET expires_at = $2
        WHERE short_code = $1 AND deletion_status = 'NOT_EXPIRED' AND content_hash IS NOT NULL
        RETURNING 1)
     SELECT count(*) > 0 FROM extended";

impl Stage {
    /// Does the step for real. `slot` tells apart what happens at the same time.
    pub async fn perform(&self, step: &Step, slot: usize) -> Answer {
        let performing = async {
            match step {
                Step::Claim { worker, size, busy, after } => {
                    self.claim(*worker, *size, *busy, *after).await
                }
                Step::Decrement(id) => self.decrement(*id).await,
                Step::DeleteObjects(id) => self.delete_objects(*id).await,
                Step::Finish(id) => self.finish(*id).await,
                Step::Release(id) => self.release(*id).await,
                Step::ExpireLease(id) => self.execute(slot, SILENT, &[id]).await,
                Step::Sweep => self.sweep().await,
                Step::EndBackoff(due) => self.end_backoff(due).await,
                Step::Put { code, body, key, expires } => {
                    self.put(slot, code, *body, key, *expires).await
                }
                Step::Extend { code, expires, plainly } => {
                    let extend = if *plainly { EXTEND } else { "SELECT paste_extend($1, $2)" };
                    self.ask(slot, extend, &[code, &self.at(*expires)]).await
                }
                Step::ExpireNow(code) => {
                    self.ask(slot, "SELECT paste_expire_now($1)", &[code]).await
                }
                Step::Refuse(text) => {
                    self.s3.set_mode(text.as_ref().map_or(Mode::Normal, |text| Mode::Refusing {
                        text: text.clone(),
                        code: "ObjectLocked",
                    }));
                    Answer::Done
                }
                Step::Remove { code, found } => self.remove(slot, code, *found).await,
                Step::PutBack { code, found } => self.put_back(slot, code, *found).await,
                Step::EndByHand { claim, finished } => {
                    let end = if *finished { FINISH } else { RESET };
                    self.ask(slot, end, &[claim]).await
                }
                Step::ForgetClaims => self.forget_claims().await,
                Step::Holding(body, step) => Box::pin(self.while_held(*body, step)).await,
                Step::OwnerRelents => self.owner_relents().await,
            }
        };
        let late = Answer::Broke(format!("no answer within {TIMEOUT:?}"));
        timeout(TIMEOUT, performing).await.unwrap_or(late)
    }

    async fn claim(&self, worker: usize, size: u32, busy: bool, after: Option<i64>) -> Answer {
        let worker = &self.workers[worker];
        let mark = after.map(|claim| self.held(claim).claim.last_due);
        let claim = match worker.claim(Wanted { size, mark, busy, until: None }).await {
            Ok(Some(claim)) => claim,
            Ok(None) => return Answer::Claimed(None),
            Err(error) => return Answer::Broke(error.to_string()),
        };
        let (id, taken) = (claim.fence.claim, self.taken(&claim));
        let held = Held { worker: Arc::clone(worker), claim, decremented: None, gone: None };
        self.held.lock().expect("held").insert(id, held);
        Answer::Claimed(Some((id, taken)))
    }

    fn taken(&self, claim: &Claim) -> BTreeMap<String, Taken> {
        let taken = claim.pastes.iter().map(|paste| {
            let taken = Taken {
                body: paste.content_hash.as_ref().map(|hash| self.body_of(hash)),
                pending_s3_key: paste.pending_s3_key.clone(),
                attempts: paste.attempts,
            };
            (paste.short_code.clone(), taken)
        });
        taken.collect()
    }

    async fn decrement(&self, id: i64) -> Answer {
        let held = self.held(id);
        let decremented = match held.worker.decrement(&held.claim).await {
            Ok(decremented) => decremented,
            Err(error) => return failed(&error),
        };
        let unreferenced = decremented.unreferenced.iter();
        let unreferenced: BTreeMap<String, String> = unreferenced
            .map(|unreferenced| (unreferenced.s3_key.clone(), unreferenced.pending_owner.clone()))
            .collect();
        if unreferenced.len() != decremented.unreferenced.len() || !decremented.failed.is_empty() {
            return Answer::Broke(format!("{decremented:?}"));
        }
        let answer = Answer::Decremented {
            unreferenced,
            bytes: decremented.bytes,
            drift: decremented.drift,
        };
        self.hold(id, |held| held.decremented = Some(decremented));
        answer
    }

    async fn delete_objects(&self, id: i64) -> Answer {
        let held = self.held(id);
        let decremented = held.decremented.expect("a story deletes after it has decremented");
        match held.worker.delete_objects(&held.claim, &decremented).await {
            Ok(gone) => {
                let deleted = gone.deleted;
                self.hold(id, |held| held.gone = Some(Arc::new(gone)));
                Answer::Deleted(deleted)
            }
            Err(error) => failed(&error),
        }
    }

    async fn finish(&self, id: i64) -> Answer {
        let held = self.held(id);
        let nothing = Arc::new(ObjectsGone::default());
        let gone = held.gone.as_ref().unwrap_or(&nothing);
        let times = PhaseTimes::default();
        let finishing = held.worker.finish(&held.claim, gone, &times);
        let finished = match held.decremented {
            Some(_) => finishing.await,
            None => match timeout(REFUSED_FOR, finishing).await {
                Ok(finished) => finished,
                Err(_) if self.is_over(id).await => {
                    // It was slow, not refused.
                    held.worker.finish(&held.claim, gone, &times).await
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

    /// Has the claim ended? The try that was broken off may still be on its way to a lock: waits
    /// until all workers are idle, twice, lest it be between two statements.
    async fn is_over(&self, id: i64) -> bool {
        let idle = "SELECT count(*) = 0 FROM pg_stat_activity
                    WHERE datname = current_database() AND state <> 'idle'
                      AND application_name LIKE 'cleanup-worker%'";
        for _ in 0..2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
            self.world.until("the workers are idle", idle).await;
        }
        let over =
            "SELECT count(coalesce(finished_at, reset_at)) FROM deletion_claims WHERE id = $1";
        self.world.count_with(over, &[&id]).await > 0
    }

    async fn release(&self, id: i64) -> Answer {
        let held = self.held(id);
        match held.worker.release(held.claim.fence, "told to").await {
            Ok(reset) => Answer::Released(of_claims(&reset)),
            Err(error) => failed(&error),
        }
    }

    async fn sweep(&self) -> Answer {
        match sweep(&self.watchdog, &self.world.settings, Depth::Thorough).await {
            Ok(swept) => {
                Answer::Swept(Sweep { stranded: swept.stranded, ..of_claims(&swept.reset) })
            }
            Err(error) => Answer::Broke(error.to_string()),
        }
    }

    async fn end_backoff(&self, due: &[(String, i64)]) -> Answer {
        // A row that waits for its content says so by a time to retry after it was put aside.
        let end = "UPDATE pastes SET retry_at = $2::timestamptz,
                          deletion_initiated_at = CASE deletion_status
                              WHEN 'DELETION_IN_PROGRESS' THEN $2::timestamptz - interval '1 second' END
                   WHERE short_code = $1";
        for (code, second) in due {
            match self.execute(0, end, &[code, &self.at(When::Past(*second))]).await {
                Answer::Done => {}
                broke => return broke,
            }
        }
        Answer::Done
    }

    /// By the writer's contract: upload, store, and drop the upload if it is not in use.
    async fn put(&self, slot: usize, code: &str, body: u8, key: &str, expires: When) -> Answer {
        self.world.upload(key, &text(body)).await;
        let put = "SELECT outcome, s3_key, drop_upload FROM paste_put($1, $2, $3, $4, $5)";
        let hash = hash(&text(body));
        let row = self.writers[slot]
            .query_one(put, &[&code, &hash, &key, &size_bytes(body), &self.at(expires)])
            .await;
        let row = match row {
            Ok(row) => row,
            Err(error) => return Answer::Broke(describe(&error)),
        };
        let dropped = row.get("drop_upload");
        if dropped {
            let drop = self.world.s3.delete_object().bucket(&self.world.bucket).key(key);
            drop.send().await.expect("drop the upload");
        }
        Answer::Put { outcome: row.get("outcome"), key: row.get("s3_key"), dropped }
    }

    pub async fn execute(
        &self,
        slot: usize,
        sql: &str,
        args: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Answer {
        match self.writers[slot].execute(sql, args).await {
            Ok(_) => Answer::Done,
            Err(error) => Answer::Broke(describe(&error)),
        }
    }

    pub async fn ask(
        &self,
        slot: usize,
        sql: &str,
        args: &[&(dyn tokio_postgres::types::ToSql + Sync)],
    ) -> Answer {
        match self.writers[slot].query_one(sql, args).await {
            Ok(row) => Answer::Changed(row.get(0)),
            Err(error) => Answer::Broke(describe(&error)),
        }
    }

    fn hold(&self, id: i64, change: impl FnOnce(&mut Held)) {
        change(self.held.lock().expect("held").get_mut(&id).expect("a claim of the story"));
    }
}

fn of_claims(reset: &Reset) -> Sweep {
    let Reset { claims, rows, dead_letters, left } = *reset;
    Sweep { claims, rows, left, dead_letters, stranded: 0 }
}

fn failed(error: &StepError) -> Answer {
    match error {
        StepError::Lost(_) => Answer::Lost,
        error => Answer::Broke(error.to_string()),
    }
}

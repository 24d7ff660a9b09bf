//! Bodies that nobody holds are removed as a decrement would let them go, row first: under the lock, and
//! counted once more, the row becomes the sentinel of its key. After the commit the object is
//! deleted. Ended in between, the next walk over the bucket finds an object under a sentinel; that
//! walk comes after the counts, so going on from there passes by it, too.

use std::collections::HashSet;

use tokio_postgres::{Error, Transaction};

use super::{
    Audit, AuditError,
    bodies::{Body, barred, correct, count_locked, unreferenced_content, wrong_count},
    error::{ALONE, RepairError, TOGETHER, repair_error},
    sentinel::{SENTINEL, SENTINELS},
    spellings::{Spelling, ambiguous_body, spellings, take_spelled},
};

const DELETE_UNREFERENCED: &str = sql!("content/delete_unreferenced");

/// What became of some bodies.
#[derive(Default)]
struct Removed {
    /// Sentinels keep these keys: their objects may go.
    keys: HashSet<String>,
    /// Held again, and miscounted still.
    corrected: Vec<Body>,
    /// Still held by nobody, but they must stay.
    barred: Vec<(Body, String)>,
    /// As `barred`: other content may spell their key in another way.
    ambiguous: Vec<(Body, Spelling)>,
}

impl Audit {
    /// What is held again by now is left alone. False: they do not go together, only one by one.
    pub(super) async fn remove_bodies(&mut self, bodies: &[Body]) -> Result<bool, AuditError> {
        let wait = if bodies.len() > 1 { TOGETHER } else { ALONE };
        match self.make_sentinels(bodies, wait).await {
            Ok(removed) => self.erase_bodies(bodies, removed).await?,
            Err(error) => match (repair_error(&error), bodies) {
                (Some(RepairError::Held), [_]) => self.report.undecided += 1,
                (Some(RepairError::Refused(reason)), [body]) => {
                    self.note(unreferenced_content(body, &reason))
                }
                (Some(_), _) => return Ok(false),
                (None, _) => return Err(error.into()),
            },
        }
        Ok(true)
    }

    async fn make_sentinels(&mut self, bodies: &[Body], wait: &str) -> Result<Removed, Error> {
        let hashes: Vec<Vec<u8>> = bodies.iter().map(|body| body.hash.clone()).collect();
        let keys: Vec<&str> = bodies.iter().map(|body| &*body.key).collect();
        let transaction = self.db.transaction().await?;
        let mut wrong = count_locked(&transaction, &hashes, 0.0, wait).await?;
        // Another body by now, under a key of its own: not the one that was judged.
        wrong.retain(|body| keys.contains(&&*body.key));
        let (mut unreferenced, corrected): (Vec<Body>, Vec<Body>) =
            wrong.into_iter().partition(|body| body.holders == 0);
        let spelled = spellings(&transaction, keys.iter().copied()).await?;
        let ambiguous = take_spelled(&mut unreferenced, &spelled, |body| &body.key);
        correct(&transaction, &corrected).await?;
        let barred = match barred(&transaction).await? {
            Some(reason) => unreferenced.into_iter().map(|body| (body, reason.clone())).collect(),
            None => {
                replace(&transaction, &unreferenced).await?;
                Vec::new()
            }
        };
        // Also those of an attempt whose answer was lost.
        let rows = transaction.query(SENTINELS, &[&keys]).await?;
        transaction.commit().await?;
        let mut keys: HashSet<String> = rows.iter().map(|row| row.get("s3_key")).collect();
        keys.retain(|key| !spelled.contains_key(key));
        Ok(Removed { keys, corrected, barred, ambiguous })
    }

    /// Their rows are sentinels by now; the objects follow.
    async fn erase_bodies(&mut self, bodies: &[Body], removed: Removed) -> Result<(), AuditError> {
        let gone: Vec<&Body> =
            bodies.iter().filter(|body| removed.keys.contains(&body.key)).collect();
        let keys: Vec<String> = gone.iter().map(|body| body.key.clone()).collect();
        let mut left = self.erase(&keys).await?;
        for body in gone {
            let finding = match left.remove(&body.key) {
                Some(reason) => unreferenced_content(body, &reason),
                None => {
                    self.report.bytes_deleted += body.bytes;
                    unreferenced_content(body, "").repaired()
                }
            };
            self.note(finding);
        }
        for body in &removed.corrected {
            self.note(wrong_count(body, "").repaired());
        }
        for (body, reason) in &removed.barred {
            self.note(unreferenced_content(body, reason));
        }
        for (body, other) in &removed.ambiguous {
            self.note(ambiguous_body(body, other));
        }
        Ok(())
    }
}

async fn replace(transaction: &Transaction<'_>, bodies: &[Body]) -> Result<(), Error> {
    let hashes: Vec<&[u8]> = bodies.iter().map(|body| &*body.hash).collect();
    let keys: Vec<&str> = bodies.iter().map(|body| &*body.key).collect();
    transaction.execute(DELETE_UNREFERENCED, &[&hashes]).await?;
    transaction.execute(SENTINEL, &[&keys]).await?;
    Ok(())
}

//! Content rows whose object was not listed: is it really missing?
//!
//! An object goes only after the row that knew it (a decrement commits first). So the bucket is asked
//! first and the row last: if the row is still there *after* the object was not, no decrement came in
//! between, and the object should have been there. The other way round, a decrement between the two
//! looks would make a missing object of a unreferenced one. Repairing is not for an audit: the row is all
//! that is left of that body, and a live paste may point to it.

use std::collections::HashMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio_postgres::{Client, Error};

use super::{Audit, AuditError, Finding, Kind};
use crate::objects::Listed;

const BODIES: &str = sql!("audit/content");
const HOLDERS: &str = sql!("audit/references");
/// Questions to the bucket that are on their way at once.
const AT_ONCE: usize = 16;

/// Who holds a body.
#[derive(Debug, Default)]
pub(super) struct Holders {
    pub pastes: i64,
    pub live: i64,
    pub short_codes: Vec<String>,
    pub has_content: bool,
}

impl Audit {
    pub(super) async fn judge_missing(&mut self, keys: Vec<String>) -> Result<(), AuditError> {
        // Most of them went their way since they were read: that costs no question to the bucket.
        let candidates: Vec<String> = bodies(&self.db, &keys).await?.into_keys().collect();
        let looked = self.look_for(&candidates).await?;
        let absent = candidates.into_iter().filter(|key| !looked.contains_key(key));
        let absent = self.unconfirmed(absent.collect()).await;
        let mut missing: Vec<(String, Vec<u8>)> =
            bodies(&self.db, &absent).await?.into_iter().collect();
        missing.sort();
        // They come in the order of their keys.
        missing.retain(|(key, _)| self.missing_up_to.as_ref().is_none_or(|last| key > last));
        let hashes: Vec<&[u8]> = missing.iter().map(|(_, hash)| &**hash).collect();
        let mut holders = holders(&self.db, &hashes).await?;
        for (key, hash) in missing {
            let held = holders.remove(&hash).unwrap_or_default();
            self.note(missing_object(&key, &hash, held));
            self.missing_up_to = Some(key);
        }
        Ok(())
    }

    /// A listing may lag behind, or spell keys in its own way: those that are not listed are asked for
    /// by their names. The audit's policy need not allow that; then the list has told.
    async fn unconfirmed(&self, keys: Vec<String>) -> Vec<String> {
        let asked = stream::iter(keys)
            .map(async |key| (self.objects.is_confirmed_by_head(&key).await, key));
        let asked = asked
            .buffer_unordered(AT_ONCE)
            .filter_map(async |(there, key)| (!there).then_some(key));
        asked.collect().await
    }

    /// Which of these are in the bucket right now.
    pub(super) async fn look_for(
        &self,
        keys: &[String],
    ) -> Result<HashMap<String, Listed>, AuditError> {
        let found: Vec<Option<Listed>> = stream::iter(keys)
            .map(|key| self.objects.find(key))
            .buffer_unordered(AT_ONCE)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().map(|object| (object.key.clone(), object)).collect())
    }
}

fn missing_object(key: &str, hash: &[u8], held: Holders) -> Finding {
    let what = match held.live {
        0 => "the object is missing; no live paste needs it".to_string(),
        live => format!("the object is missing, and with it the body of {live} live pastes"),
    };
    let remedy = match held.live {
        0 => "nothing: the next runs erase the pastes and the row",
        _ => {
            "bring the object back under this key (a backup, a noncurrent version), or expire the pastes"
        }
    };
    let mut finding = Finding::new(Kind::MissingObject, what, remedy).key(key).content_hash(hash);
    finding.live_pastes = u64::try_from(held.live).unwrap_or_default();
    finding.short_codes = held.short_codes;
    finding
}

/// Which of these keys are bodies, and their hashes.
async fn bodies(db: &Client, keys: &[String]) -> Result<HashMap<String, Vec<u8>>, Error> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = db.query(BODIES, &[&keys]).await?;
    Ok(rows.iter().map(|row| (row.get("s3_key"), row.get("content_hash"))).collect())
}

/// Who holds each of these bodies.
pub(super) async fn holders(
    db: &Client,
    hashes: &[&[u8]],
) -> Result<HashMap<Vec<u8>, Holders>, Error> {
    if hashes.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = db.query(HOLDERS, &[&hashes]).await?;
    let holders = |row: &tokio_postgres::Row| Holders {
        pastes: row.get("pastes"),
        live: row.get("live"),
        short_codes: row.get("short_codes"),
        has_content: row.get("has_content"),
    };
    Ok(rows.iter().map(|row| (row.get("content_hash"), holders(row))).collect())
}

//! Content rows whose object was not listed: is the object really missing?
//!
//! A worker deletes an object only after the commit that removed its content row. So the bucket is
//! checked first and the row last: if the row still exists *after* the object was not found, no
//! decrement has removed it in between, and the object should have been there. In the other order, a
//! decrement between the two checks would make an object that was rightly deleted look missing.
//! Nothing is repaired: the row is all that is left of that content, and a live paste may need it.

use std::collections::HashMap;

use futures_util::{StreamExt, TryStreamExt, stream};
use tokio_postgres::{Client, Error};

use super::{Audit, AuditError, Finding, Kind};
use crate::{format::thousands, objects::Listed};

const CONTENT: &str = sql!("audit/content");
const REFERENCES: &str = sql!("audit/references");
/// Requests to the bucket that are open at the same time.
const CONCURRENT_REQUESTS: usize = 16;

/// The pastes that reference some content.
#[derive(Debug, Default)]
pub(super) struct References {
    pub pastes: i64,
    pub live: i64,
    /// Some of the live ones.
    pub short_codes: Vec<String>,
    pub has_content: bool,
}

impl Audit {
    /// Checks content rows whose objects were not listed, and reports those whose object is missing.
    pub(super) async fn confirm_missing(&mut self, keys: Vec<String>) -> Result<(), AuditError> {
        // Most of them were erased since they were read: those cost no request to the bucket.
        let candidates: Vec<String> = content_of(&self.db, &keys).await?.into_keys().collect();
        let found = self.find_objects(&candidates).await?;
        let absent = candidates.into_iter().filter(|key| !found.contains_key(key));
        let absent = self.without_head(absent.collect()).await;
        let mut missing: Vec<(String, Vec<u8>)> =
            content_of(&self.db, &absent).await?.into_iter().collect();
        missing.sort();
        // The walk is in the order of the keys, so these were reported before the page was repeated.
        missing.retain(|(key, _)| self.missing_up_to.as_ref().is_none_or(|last| key > last));
        let hashes: Vec<&[u8]> = missing.iter().map(|(_, hash)| &**hash).collect();
        let mut references = references(&self.db, &hashes).await?;
        for (key, hash) in missing {
            let references = references.remove(&hash).unwrap_or_default();
            self.note(missing_object(&key, &hash, references));
            self.missing_up_to = Some(key);
        }
        Ok(())
    }

    /// Returns the keys that HEAD does not find either. A listing may lag behind, or spell keys in
    /// another way. The audit's policy need not allow HEAD; without it, the listing decides.
    async fn without_head(&self, keys: Vec<String>) -> Vec<String> {
        let heads = stream::iter(keys)
            .map(async |key| (self.objects.is_confirmed_by_head(&key).await, key))
            .buffer_unordered(CONCURRENT_REQUESTS);
        heads.filter_map(async |(exists, key)| (!exists).then_some(key)).collect().await
    }

    /// Returns those of these objects that the bucket has now.
    pub(super) async fn find_objects(
        &self,
        keys: &[String],
    ) -> Result<HashMap<String, Listed>, AuditError> {
        let found: Vec<Option<Listed>> = stream::iter(keys)
            .map(|key| self.objects.find(key))
            .buffer_unordered(CONCURRENT_REQUESTS)
            .try_collect()
            .await?;
        Ok(found.into_iter().flatten().map(|object| (object.key.clone(), object)).collect())
    }
}

fn missing_object(key: &str, hash: &[u8], references: References) -> Finding {
    let what = match references.live {
        0 => "the object is missing; no live paste needs it".to_string(),
        1 => "the object is missing: 1 live paste has lost its body".to_string(),
        live => {
            format!("the object is missing: {} live pastes have lost their body", thousands(live))
        }
    };
    let remedy = match references.live {
        0 => "nothing to do: the next runs erase the pastes and the row",
        _ => {
            "restore the object under this key (from a backup or a noncurrent version), or expire \
             the pastes"
        }
    };
    let mut finding = Finding::new(Kind::MissingObject, what, remedy).key(key).content_hash(hash);
    finding.live_pastes = u64::try_from(references.live).unwrap_or_default();
    finding.short_codes = references.short_codes;
    finding
}

/// Returns those of these keys that a content row has, with its hash.
async fn content_of(db: &Client, keys: &[String]) -> Result<HashMap<String, Vec<u8>>, Error> {
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = db.query(CONTENT, &[&keys]).await?;
    Ok(rows.iter().map(|row| (row.get("s3_key"), row.get("content_hash"))).collect())
}

/// Counts the pastes that reference each of these hashes.
pub(super) async fn references(
    db: &Client,
    hashes: &[&[u8]],
) -> Result<HashMap<Vec<u8>, References>, Error> {
    if hashes.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = db.query(REFERENCES, &[&hashes]).await?;
    let references = |row: &tokio_postgres::Row| References {
        pastes: row.get("pastes"),
        live: row.get("live"),
        short_codes: row.get("short_codes"),
        has_content: row.get("has_content"),
    };
    Ok(rows.iter().map(|row| (row.get("content_hash"), references(row))).collect())
}

//! Other spellings of a key: some stores treat `/a/b`, `a//b` and `a\b` as the object `a/b`.
//!
//! Such a store lists `a/b` for the content row `/a/b`, so a live object looks like an orphan. And the
//! content `a//b` that no paste references may share its object with the live content `a/b`. No
//! request to the store can tell them apart, because both keys answer. So an object whose key could
//! be another spelling of a content row's key is reported and never deleted.
//!
//! Pending object deletes (`pending_s3_keys`, `pending_s3_key`) do not count: deleting their object is
//! intended. Nor do sentinels: they have no object.

use std::collections::HashMap;

use tokio_postgres::{Error, GenericClient};

use super::{Finding, Kind, recount::Content};
use crate::{objects::Listed, printable::printable};

const SPELLINGS: &str = sql!("content/other_spellings");

/// A content row whose key has the same canonical form as another key.
#[derive(Debug, Clone)]
pub(super) struct Spelling {
    key: String,
    content_hash: Vec<u8>,
}

/// Finds the content rows whose keys may be other spellings of these keys, one for each.
pub(super) async fn spellings<'a>(
    db: &impl GenericClient,
    keys: impl IntoIterator<Item = &'a str>,
) -> Result<HashMap<String, Spelling>, Error> {
    // No row has a key with a NUL in it, and no statement takes one.
    let keys: Vec<&str> = keys.into_iter().filter(|key| !key.contains('\0')).collect();
    if keys.is_empty() {
        return Ok(HashMap::new());
    }
    let rows = db.query(SPELLINGS, &[&keys, &Vec::<&str>::new()]).await?;
    let spelling = |row: &tokio_postgres::Row| Spelling {
        key: row.get("other_key"),
        content_hash: row.get("content_hash"),
    };
    Ok(rows.iter().map(|row| (row.get("s3_key"), spelling(row))).collect())
}

/// Removes and returns the items whose key may be another spelling of a content row's key.
pub(super) fn take_ambiguous<T>(
    items: &mut Vec<T>,
    spellings: &HashMap<String, Spelling>,
    key: impl Fn(&T) -> &String,
) -> Vec<(T, Spelling)> {
    let taken = items.extract_if(.., |item| spellings.contains_key(key(item)));
    let with_other = |item| {
        let other = spellings[key(&item)].clone();
        (item, other)
    };
    taken.map(with_other).collect()
}

/// Reports an object whose key no row has, unless in another spelling.
pub(super) fn ambiguous_object(object: &Listed, other: &Spelling) -> Finding {
    let what = format!(
        "no content row has this key, but \"{}\" may be another spelling of it",
        printable(&other.key)
    );
    let remedy = "not deleted: if the store keeps the two keys apart, delete this object by hand; \
                  if it does not, copy the object to a plain key, set content.s3_key to that key, \
                  and audit again";
    Finding::new(Kind::Ambiguous, what, remedy).key(&object.key).content_hash(&other.content_hash)
}

/// Reports content that no paste references, and whose object may be that of other content.
pub(super) fn ambiguous_content(content: &Content, other: &Spelling) -> Finding {
    let what = format!(
        "no paste references this content, but the key \"{}\" of other content may be another \
         spelling of its key",
        printable(&other.key)
    );
    let remedy = "not deleted: if the store keeps the two keys apart, delete row and object by \
                  hand; if it does not, delete only the row";
    Finding::new(Kind::Ambiguous, what, remedy).key(&content.key).content_hash(&content.hash)
}

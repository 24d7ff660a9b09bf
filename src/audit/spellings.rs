//! Other spellings of a key: some stores take `/a/b`, `a//b` and `a\b` for the object `a/b`.
//!
//! Such a store lists `a/b` for the content row `/a/b`, so that a live body looks like an orphan. And
//! the content `a//b` that no paste references may share its object with the live content `a/b`. The
//! store cannot be asked which it is: both keys answer. So whatever could be another spelling of a
//! content row's key is reported and never deleted.
//!
//! Keys that are pending deletion (`pending_s3_keys`, `pending_s3_key`) do not count: deleting their object
//! is intended. Nor do sentinels: they have none.

use std::collections::HashMap;

use tokio_postgres::{Error, GenericClient};

use super::{Finding, Kind, bodies::Body};
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

/// Takes out those whose key is spelled in another way somewhere.
pub(super) fn take_spelled<T>(
    items: &mut Vec<T>,
    spelled: &HashMap<String, Spelling>,
    key: impl Fn(&T) -> &String,
) -> Vec<(T, Spelling)> {
    let taken = items.extract_if(.., |item| spelled.contains_key(key(item)));
    let with_other = |item| {
        let other = spelled[key(&item)].clone();
        (item, other)
    };
    taken.map(with_other).collect()
}

/// An object that no row names, unless by another spelling.
pub(super) fn ambiguous_object(object: &Listed, other: &Spelling) -> Finding {
    let what = format!(
        "no content row has this key, but \"{}\" may be another spelling of it",
        printable(&other.key)
    );
    let remedy = "not deleted: if the store keeps the two keys apart, delete this object by hand; \
                  if it does not, copy the object to a plain key, set content.s3_key to that, and \
                  audit again";
    Finding::new(Kind::Ambiguous, what, remedy).key(&object.key).content_hash(&other.content_hash)
}

/// Content that no paste references, and whose object may be that of another content row.
pub(super) fn ambiguous_body(body: &Body, other: &Spelling) -> Finding {
    let what = format!(
        "no paste references this content, but the key \"{}\" of other content may be another \
         spelling of its key",
        printable(&other.key)
    );
    let remedy = "not removed: if the store keeps the two keys apart, delete row and object by \
                  hand; if it does not, delete only the row";
    Finding::new(Kind::Ambiguous, what, remedy).key(&body.key).content_hash(&body.hash)
}

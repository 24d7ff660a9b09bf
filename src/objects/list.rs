//! Lists the bucket, page by page in the store's own order. Needs `s3:ListBucket` and nothing else;
//! workers never list.

use std::sync::Arc;

use aws_sdk_s3::{
    config::{
        ConfigBag, Intercept, RuntimeComponents,
        interceptors::BeforeDeserializationInterceptorContextRef,
    },
    error::BoxError,
    operation::list_objects_v2::ListObjectsV2Output,
    primitives::{DateTime, DateTimeFormat},
    types::EncodingType,
};
use percent_encoding::percent_decode_str;

use super::{
    Action, Objects, ObjectsError,
    classify::{CallError, Refusal},
    undecodable::{Undecodable, as_listed},
};
use crate::{backoff::Retries, mutex::Mutex};

/// An object as the listing shows it.
#[derive(Debug, Clone)]
pub struct Listed {
    /// The full key, with the prefix.
    pub key: String,
    /// The key as the listing spells it.
    pub(super) spelled: String,
    /// The key may be another one: the listing cannot express it.
    pub is_undecodable: bool,
    /// The size; 0 if the store does not name it.
    pub bytes: u64,
    /// Time of the last change by the store's clock, in seconds since 1970.
    pub modified_s: Option<i64>,
}

/// One page of the listing.
#[derive(Debug)]
pub struct Page {
    /// In the store's own order. An empty page need not be the last one.
    pub objects: Vec<Listed>,
    /// Where the next page begins; `None` after the last one.
    pub next: Option<Start>,
    /// The `Date` of the answer, in seconds since 1970: the clock that `modified_s` is read from.
    pub store_time_s: Option<i64>,
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// After this key; empty: at the beginning.
    After(String),
    /// After the page that returned this continuation token.
    Token(String),
}

impl Listed {
    /// Whether this is the object of a key, in a listing of keys that begin with it: also if the store
    /// ignored the encoding that was asked for, or encoded without saying so.
    pub(super) fn is(&self, key: &str) -> bool {
        self.key == key
            || self.spelled == key
            || decode(&self.spelled) == key
            || (self.is_undecodable && self.spelled == as_listed(key))
    }
}

impl Objects {
    /// Lists the next objects under the prefix. Retries until the deadline.
    pub async fn list(&self, start: &Start, most: usize) -> Result<Page, ObjectsError> {
        let page = self.list_under(&self.prefix, start, most).await?;
        if page.next.as_ref() == Some(start) {
            return Err(self.unavailable("its listing returned the same page twice"));
        }
        Ok(page)
    }

    /// Lists the next objects under any prefix. Retries until the deadline.
    pub(super) async fn list_under(
        &self,
        prefix: &str,
        start: &Start,
        most: usize,
    ) -> Result<Page, ObjectsError> {
        let mut retries = Retries::within(self.deadline);
        loop {
            match self.try_list(prefix, start, most).await {
                Ok(page) => return Ok(page),
                Err(CallError::Retry { .. }) if !retries.are_over() => retries.pause().await,
                Err(error) => return Err(self.error(error, Action::List)),
            }
        }
    }

    async fn try_list(&self, prefix: &str, start: &Start, most: usize) -> Result<Page, CallError> {
        let clock = StoreClock::default();
        let request = self.client.list_objects_v2().bucket(&self.bucket).prefix(prefix);
        // XML cannot express every key, so ask for URL encoding. Not every store knows it.
        let request =
            request.encoding_type(EncodingType::Url).max_keys(i32::try_from(most).unwrap_or(1000));
        let request = match start {
            Start::After(key) if key.is_empty() => request,
            Start::After(key) => request.start_after(key),
            Start::Token(token) => request.continuation_token(token),
        };
        let undecodable = Undecodable::default();
        let request =
            request.customize().interceptor(clock.clone()).interceptor(undecodable.clone());
        let answer = request.send().await?;
        let (is_truncated, token) =
            (answer.is_truncated.unwrap_or_default(), answer.next_continuation_token.clone());
        let objects = objects(answer, &undecodable);
        let next = if is_truncated { Some(next(token, &objects, &undecodable)?) } else { None };
        Ok(Page { objects, next, store_time_s: clock.seconds() })
    }
}

/// Returns where the next page begins. A store that returns no token continues after the last key.
fn next(
    token: Option<String>,
    objects: &[Listed],
    undecodable: &Undecodable,
) -> Result<Start, CallError> {
    let token = token.filter(|token| !token.is_empty()).map(Start::Token);
    let after_last = || objects.last().map(|last| Start::After(last.key.clone()));
    let reason = match token.or_else(after_last) {
        Some(Start::Token(text) | Start::After(text)) if undecodable.may_have_changed(&text) => {
            "its listing is not URL-encoded, and a page ends at a key with control characters: rename or \
             delete that object"
        }
        Some(start) => return Ok(start),
        None => "its listing has more pages but returned neither a key nor a continuation token",
    };
    Err(CallError::Rejected(Refusal { reason: reason.into(), has_code: false }))
}

fn objects(answer: ListObjectsV2Output, undecodable: &Undecodable) -> Vec<Listed> {
    let is_encoded = answer.encoding_type == Some(EncodingType::Url);
    let object = |object: aws_sdk_s3::types::Object| {
        let spelled = object.key?;
        Some(Listed {
            key: if is_encoded { decode(&spelled) } else { spelled.clone() },
            is_undecodable: undecodable.may_have_changed(&spelled),
            spelled,
            bytes: object.size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default(),
            modified_s: object.last_modified.map(|time| time.secs()),
        })
    };
    answer.contents.unwrap_or_default().into_iter().filter_map(object).collect()
}

/// Decodes `a+b%2Fc` to `a b/c`. S3 encodes a plus sign as `%2B`.
fn decode(encoded: &str) -> String {
    percent_decode_str(&encoded.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// Reads the `Date` of the answer.
#[derive(Debug, Clone, Default)]
struct StoreClock(Arc<Mutex<Option<i64>>>);

impl StoreClock {
    fn seconds(&self) -> Option<i64> {
        *self.0.lock()
    }
}

impl Intercept for StoreClock {
    fn name(&self) -> &'static str {
        "StoreClock"
    }

    fn read_before_deserialization(
        &self,
        context: &BeforeDeserializationInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let date = context.response().headers().get("date");
        let time = date.and_then(|date| DateTime::from_str(date, DateTimeFormat::HttpDate).ok());
        *self.0.lock() = time.map(|time| time.secs());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_encoded_keys_are_decoded() {
        assert_eq!(decode("a+b%2Bc%2Fd/e%25f%01g%C3%A4"), "a b+c/d/e%f\u{1}gä");
    }
}

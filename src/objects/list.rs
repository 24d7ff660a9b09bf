//! What is in the bucket, page by page in the store's own order. Needs `s3:ListBucket` and nothing
//! else; workers never list.

use std::sync::{Arc, Mutex, PoisonError};

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
use tokio::time::Instant;

use super::{Objects, ObjectsError, classify::CallError};
use crate::backoff::backoff;

/// An object as the listing tells of it.
#[derive(Debug, Clone)]
pub struct Listed {
    pub key: String,
    pub bytes: u64,
    /// By the store's clock, in seconds since 1970.
    pub modified_s: Option<i64>,
}

/// Some of the bucket, and how to go on.
#[derive(Debug)]
pub struct Page {
    pub objects: Vec<Listed>,
    /// `None`: that was the last.
    pub next: Option<Start>,
    /// What the store's clock said when it answered: the one that `modified_s` is told by.
    pub store_time_s: Option<i64>,
}

/// Where a page begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// After this key; empty = at the beginning.
    After(String),
    /// Where the page before ended, in the store's own words.
    Token(String),
}

impl Objects {
    /// The next objects under the prefix, trying again within the deadline.
    pub async fn list(&self, start: &Start, most: usize) -> Result<Page, ObjectsError> {
        let page = self.list_under(&self.prefix, start, most).await?;
        if page.next.as_ref() == Some(start) {
            return Err(self.unavailable("its listing goes round in circles".into()));
        }
        Ok(page)
    }

    /// Is it there right now? By a listing, for which the right to list suffices: HEAD would need
    /// the right to read all bodies.
    pub async fn look_for(&self, key: &str) -> Result<Option<Listed>, ObjectsError> {
        let mut start = Start::After(String::new());
        loop {
            let page = self.list_under(key, &start, super::KEYS_PER_CALL).await?;
            let found = page.objects.into_iter().find(|object| object.key == key);
            match page.next {
                Some(next) if found.is_none() && next != start => start = next,
                _ => return Ok(found),
            }
        }
    }

    async fn list_under(
        &self,
        prefix: &str,
        start: &Start,
        most: usize,
    ) -> Result<Page, ObjectsError> {
        let give_up = Instant::now() + self.deadline;
        for tries in 1.. {
            let pause = backoff(tries);
            match self.try_list(prefix, start, most).await {
                Ok(page) => return Ok(page),
                Err(CallError::Again { .. }) if Instant::now() + pause < give_up => {
                    tokio::time::sleep(pause).await;
                }
                Err(CallError::Denied(reason) | CallError::Rejected(reason)) => {
                    return Err(ObjectsError::NotListed { bucket: self.bucket.clone(), reason });
                }
                Err(error) => return Err(self.blame(error)),
            }
        }
        unreachable!("it gives up after the deadline")
    }

    async fn try_list(&self, prefix: &str, start: &Start, most: usize) -> Result<Page, CallError> {
        let clock = StoreClock::default();
        let ask = self.client.list_objects_v2().bucket(&self.bucket).prefix(prefix);
        // XML cannot express every key: a store that can spells them as in a URL.
        let ask =
            ask.encoding_type(EncodingType::Url).max_keys(i32::try_from(most).unwrap_or(1000));
        let ask = match start {
            Start::After(key) if key.is_empty() => ask,
            Start::After(key) => ask.start_after(key),
            Start::Token(token) => ask.continuation_token(token),
        };
        let answer = ask.customize().interceptor(clock.clone()).send().await?;
        let (is_truncated, token) =
            (answer.is_truncated.unwrap_or_default(), answer.next_continuation_token.clone());
        let objects = objects(answer);
        let next = if is_truncated { Some(next(token, &objects)?) } else { None };
        Ok(Page { objects, next, store_time_s: clock.seconds() })
    }
}

/// Where the next page begins. A store that has more and gives no token goes on after a key, too.
fn next(token: Option<String>, objects: &[Listed]) -> Result<Start, CallError> {
    let token = token.filter(|token| !token.is_empty()).map(Start::Token);
    let after_last = || objects.last().map(|last| Start::After(last.key.clone()));
    token.or_else(after_last).ok_or_else(|| {
        CallError::Rejected("its listing has more pages, but does not say where they begin".into())
    })
}

fn objects(answer: ListObjectsV2Output) -> Vec<Listed> {
    let spelled = answer.encoding_type == Some(EncodingType::Url);
    let object = |object: aws_sdk_s3::types::Object| {
        let key = object.key?;
        Some(Listed {
            key: if spelled { plain(&key) } else { key },
            bytes: object.size.and_then(|size| u64::try_from(size).ok()).unwrap_or_default(),
            modified_s: object.last_modified.map(|time| time.secs()),
        })
    };
    answer.contents.unwrap_or_default().into_iter().filter_map(object).collect()
}

/// `a+b%2Fc` → `a b/c`. S3 spells a plus sign as `%2B`.
fn plain(spelled: &str) -> String {
    percent_decode_str(&spelled.replace('+', " ")).decode_utf8_lossy().into_owned()
}

/// Remembers the time that the answer's `Date` tells.
#[derive(Debug, Clone, Default)]
struct StoreClock(Arc<Mutex<Option<i64>>>);

impl StoreClock {
    fn seconds(&self) -> Option<i64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
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
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = time.map(|time| time.secs());
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_are_spelled_as_in_a_url_are_read_as_they_are() {
        assert_eq!(plain("a+b%2Bc%2Fd/e%25f%01g%C3%A4"), "a b+c/d/e%f\u{1}gä");
    }
}

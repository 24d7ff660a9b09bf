//! The delete requests: DeleteObjects for up to a thousand keys, DeleteObject for a key that XML
//! cannot express and that DeleteObjects therefore cannot name.

use std::time::Duration;

use aws_sdk_s3::{
    error::BuildError,
    types::{Delete, ObjectIdentifier},
};
use tokio::time::Instant;

use super::{
    KEYS_PER_CALL, Objects,
    classify::{Answer, CallError, Later, Refusal},
    md5::ContentMd5,
};
use crate::failpoint;

/// XML 1.0 has no control characters except tab and the line ends, and neither U+FFFE nor U+FFFF.
pub(super) fn is_expressible_in_xml(key: &str) -> bool {
    let inexpressible = |c| match c {
        '\t' | '\n' | '\r' => false,
        c => c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}'),
    };
    !key.contains(inexpressible)
}

/// Splits keys into calls: as many as one DeleteObjects takes, or one that needs DeleteObject.
pub(super) fn split(keys: &[String]) -> Vec<Vec<String>> {
    let (plain, odd): (Vec<String>, Vec<String>) =
        keys.iter().cloned().partition(|key| is_expressible_in_xml(key));
    let plain = plain.chunks(KEYS_PER_CALL).map(<[String]>::to_vec);
    plain.chain(odd.into_iter().map(|key| vec![key])).collect()
}

impl Objects {
    /// Sends one delete request. Breaker and metrics learn from its outcome.
    pub(super) async fn call(&self, keys: &[String]) -> Result<Answer, CallError> {
        let called = self.send(keys).await;
        self.note_in_breaker(&called);
        called
    }

    /// Sends one delete request when the pace allows it, and calls `progress` before. The pace learns
    /// from its outcome. Also returns how long it waited.
    pub(super) async fn send_in_pace(
        &self,
        keys: &[String],
        progress: &impl Fn(),
    ) -> (Result<Answer, CallError>, Duration) {
        let waited = self.pace.acquire(keys.len()).await;
        progress();
        failpoint::reached("objects.before_call");
        let sent_at = Instant::now();
        let answered = self.send(keys).await;
        failpoint::reached("objects.after_call");
        match &answered {
            Ok(answer) if !answer.slow_down => self.pace.recover(keys.len()),
            Ok(_) | Err(CallError::Retry { why: Later::Throttled, .. }) => {
                self.pace.slow_down(sent_at);
            }
            Err(_) => {}
        }
        (answered, waited)
    }

    /// Sends one delete request.
    pub(super) async fn send(&self, keys: &[String]) -> Result<Answer, CallError> {
        let sent = match keys {
            [key] if self.bulk.is_off() || !is_expressible_in_xml(key) => {
                self.delete_one(key).await
            }
            keys => self.delete_many(keys).await,
        };
        self.error_counts.note(&sent);
        sent
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Answer, CallError> {
        let invalid = |error: BuildError| {
            CallError::Rejected(Refusal { reason: error.to_string(), has_code: false })
        };
        let objects = keys.iter().map(|key| ObjectIdentifier::builder().key(key).build());
        let objects = objects.collect::<Result<Vec<_>, _>>().map_err(invalid)?;
        let delete = Delete::builder().set_objects(Some(objects)).build().map_err(invalid)?;
        let request = self.client.delete_objects().bucket(&self.bucket).delete(delete);
        let sent = match self.md5 {
            true => request.customize().interceptor(ContentMd5).send().await,
            false => request.send().await,
        };
        sent.map(|output| Answer::new(keys, output)).map_err(CallError::from)
    }
}

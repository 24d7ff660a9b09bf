//! The delete requests: DeleteObjects for up to a thousand keys, DeleteObject for a key that XML
//! cannot express and that DeleteObjects therefore cannot name.

use aws_sdk_s3::{
    error::{BuildError, ProvideErrorMetadata},
    types::{Delete, ObjectIdentifier},
};

use super::{
    KEYS_PER_CALL, Objects,
    classify::{Answer, CallError, Verdict},
    md5::ContentMd5,
};

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
        let called = match keys {
            [key] if !is_expressible_in_xml(key) => self.delete_one(key).await,
            keys => self.delete_many(keys).await,
        };
        self.note_in_breaker(&called);
        self.error_counts.note(&called);
        called
    }

    async fn delete_many(&self, keys: &[String]) -> Result<Answer, CallError> {
        let invalid = |error: BuildError| CallError::Rejected(error.to_string());
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

    /// Deletes one key. Returns the answer that a call for many keys would give.
    async fn delete_one(&self, key: &str) -> Result<Answer, CallError> {
        let sent = self.client.delete_object().bucket(&self.bucket).key(key).send().await;
        let verdict = match sent {
            Ok(_) => Verdict::Gone,
            Err(error) if error.code() == Some("NoSuchKey") => Verdict::Gone,
            Err(error) => match CallError::from(error) {
                // Perhaps about this object alone: the caller probes a key beside it.
                CallError::Denied(reason) => Verdict::Denied(reason),
                error => return Err(error),
            },
        };
        Ok(Answer {
            verdicts: vec![(key.into(), verdict)],
            unanswered: Vec::new(),
            slow_down: false,
        })
    }
}

//! Keys that XML cannot express: DeleteObjects cannot name them, so they go one by one.

use aws_sdk_s3::error::ProvideErrorMetadata;

use super::{
    KEYS_PER_CALL, Objects,
    classify::{Answer, CallError, Verdict},
};

/// XML 1.0 has no control characters but tab and line ends, and neither of the last two.
pub(super) fn xml_can_say(key: &str) -> bool {
    let unsayable = |c| match c {
        '\t' | '\n' | '\r' => false,
        c => c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}'),
    };
    !key.contains(unsayable)
}

/// What goes into one call each: as many keys as fit, or one that goes alone.
pub(super) fn calls(keys: &[String]) -> Vec<Vec<String>> {
    let (plain, odd): (Vec<String>, Vec<String>) =
        keys.iter().cloned().partition(|key| xml_can_say(key));
    let plain = plain.chunks(KEYS_PER_CALL).map(<[String]>::to_vec);
    plain.chain(odd.into_iter().map(|key| vec![key])).collect()
}

impl Objects {
    /// Deletes one key; answers as a call of many would.
    pub(super) async fn delete_one(&self, key: &str) -> Result<Answer, CallError> {
        let sent = self.client.delete_object().bucket(&self.bucket).key(key).send().await;
        let verdict = match sent {
            Ok(_) => Verdict::Gone,
            Err(error) if error.code() == Some("NoSuchKey") => Verdict::Gone,
            Err(error) => match CallError::from(error) {
                // Perhaps this object's own: a key beside it tells.
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

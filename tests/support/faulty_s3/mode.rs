//! What [`FaultyS3`](super::FaultyS3) does with a call.

use std::time::Duration;

/// The end of a key that no object has.
pub(super) const PROBE: &str = ".paste-cleanup-probe";

#[derive(Clone)]
pub(crate) enum Mode {
    /// Deletes, but refuses keys that contain `text`, with this error code.
    Refusing { text: String, code: &'static str },
    /// Deletes, but refuses keys that contain `text`, with this error message.
    RefusingWith { text: String, message: &'static str },
    /// Answers every call like a store whose bucket is in another region: a redirect names the
    /// region in a header, an error in its body.
    OtherRegion { status: u16, code: &'static str, region: &'static str },
    /// Answers every call with this status and error code, and deletes nothing.
    Failing { status: u16, code: &'static str },
    /// Answers 200 with an error as its body, and deletes nothing.
    ErrorInBody { code: &'static str },
    /// Answers 200 with a text of this type, like a proxy that wants a login, and deletes nothing.
    Page { content_type: &'static str },
    /// Answers 200 without mentioning any key, and deletes nothing.
    EmptyAnswer,
    /// Rejects a call as a whole if one of its keys contains `text`.
    RejectingCall { text: String },
    /// Deletes, but does not answer until [`let_go`](super::FaultyS3::let_go) is called.
    Holding,
    /// Never answers, and deletes only after `by`.
    Late { by: Duration },
    /// Deletes and answers, and deletes the same keys again after `after`.
    Repeating { after: Duration },
    /// Waits for `by`, then deletes and answers.
    Slow { by: Duration },
    /// Deletes, and cuts the connection in the middle of the answer.
    Cutting,
    /// Accepts only calls with Content-MD5, or only calls without it.
    Checksum { md5: bool },
    /// Deletes and answers.
    Normal,
}

impl Mode {
    pub(super) fn refuses(&self, key: &str) -> bool {
        // A probe beside a key is for another object.
        let is_beside = |text: &str| key.strip_prefix(text) == Some(PROBE);
        matches!(self, Self::Refusing { text, .. } | Self::RefusingWith { text, .. }
            if key.contains(text) && !is_beside(text))
    }
}

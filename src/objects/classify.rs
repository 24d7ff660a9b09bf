//! Classifies what S3 answers, for a whole call and for each key: is it the key, the credentials, or
//! the store?

use std::{collections::HashMap, error::Error};

use aws_credential_types::provider::error::CredentialsError;
use aws_sdk_s3::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    operation::delete_objects::DeleteObjectsOutput,
};

use crate::printable::printable;

/// Codes of throttling, besides everything that begins with `SlowDown` (MinIO has several).
const THROTTLED: [&str; 4] =
    ["Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"];
/// Parts of the codes of transient failures, on AWS and elsewhere.
const TRANSIENT: [&str; 6] = ["Internal", "Unavailable", "Timeout", "Busy", "Aborted", "XMinio"];
/// The few codes that are certainly about one key.
const KEY_ERRORS: [&str; 6] = [
    "ObjectLocked",
    "InvalidObjectState",
    "KeyTooLongError",
    "InvalidArgument",
    "InvalidRequest",
    "MethodNotAllowed",
];
const CREDENTIALS: [&str; 8] = [
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
    "AccountProblem",
    "NotSignedUp",
];

/// The outcome for one key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Deleted, or already gone.
    Gone,
    /// Throttled or a transient failure: send it again.
    Retry(String),
    /// Denied, or a code that is not known: about this object, the credentials or the store.
    Denied(String),
    /// A 4xx that is about this key.
    Refused(String),
}

/// An answer with status 200.
#[derive(Debug)]
pub(super) struct Answer {
    pub verdicts: Vec<(String, Verdict)>,
    /// Keys that the answer does not mention, as in a 200 that contains an error document.
    pub unanswered: Vec<String>,
    pub slow_down: bool,
    /// Some of the keys were not sent, because the store failed others.
    pub was_cut_short: bool,
}

impl Answer {
    pub(super) fn new(keys: &[String], output: DeleteObjectsOutput) -> Self {
        let mut answered: HashMap<String, Verdict> = HashMap::with_capacity(keys.len());
        let mut slow_down = false;
        for deleted in output.deleted.unwrap_or_default() {
            answered.extend(deleted.key.map(|key| (key, Verdict::Gone)));
        }
        for error in output.errors.unwrap_or_default() {
            let code = error.code.unwrap_or_default();
            slow_down |= is_throttled(&code);
            let verdict = classify_key(&code, error.message.as_deref().unwrap_or_default());
            answered.extend(error.key.map(|key| (key, verdict)));
        }
        let (mut verdicts, mut unanswered) = (Vec::with_capacity(keys.len()), Vec::new());
        for key in keys {
            match answered.remove(key) {
                Some(verdict) => verdicts.push((key.clone(), verdict)),
                None => unanswered.push(key.clone()),
            }
        }
        Self { verdicts, unanswered, slow_down, was_cut_short: false }
    }

    /// Whether at least one of the keys was deleted, or was already gone.
    pub(super) fn any_gone(&self) -> bool {
        self.verdicts.iter().any(|(_, verdict)| *verdict == Verdict::Gone)
    }

    /// Returns the store's failure, if it deleted none of the keys and the keys are not the cause.
    pub(super) fn failure(&self) -> Option<String> {
        let mut failures = self.verdicts.iter().map(|(_, verdict)| match verdict {
            Verdict::Gone | Verdict::Refused(_) => None,
            Verdict::Retry(reason) | Verdict::Denied(reason) => Some(reason),
        });
        let worked = self.slow_down || failures.clone().any(|failure| failure.is_none());
        let unacknowledged = || "the store did not acknowledge a delete".to_string();
        (!worked).then(|| failures.next().flatten().cloned().unwrap_or_else(unacknowledged))
    }
}

fn is_throttled(code: &str) -> bool {
    code.starts_with("SlowDown") || THROTTLED.contains(&code)
}

fn is_transient(code: &str) -> bool {
    code.is_empty() || TRANSIENT.iter().any(|part| code.contains(part))
}

/// A code that is neither transient nor certainly about the key is `Denied`: a probe decides whether
/// the store or the key is at fault. An outage must never turn rows into dead letters.
fn classify_key(code: &str, message: &str) -> Verdict {
    let reason = printable(&format!("S3 {code}: {message}"));
    match code {
        "NoSuchKey" | "NoSuchVersion" => Verdict::Gone,
        code if is_throttled(code) || is_transient(code) => Verdict::Retry(reason),
        code if KEY_ERRORS.contains(&code) => Verdict::Refused(reason),
        _ => Verdict::Denied(reason),
    }
}

/// Why a call may succeed later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Later {
    Throttled,
    Unavailable,
    /// Nothing was sent, because there were no credentials to sign it with.
    NoCredentials,
}

/// A request that was not carried out, whichever keys it named.
#[derive(Debug, Clone)]
pub(super) struct Refusal {
    pub reason: String,
    /// The answer has an error code, so it is S3's own and not that of a web server at a wrong address.
    pub has_code: bool,
}

/// A call that failed as a whole.
#[derive(Debug, Clone)]
pub(super) enum CallError {
    NoBucket,
    Denied(String),
    /// The store does not know the call, or requires another checksum.
    Unsupported(Refusal),
    /// The bucket is in another region than the one that requests are signed for.
    WrongRegion {
        reason: String,
        /// The region that the store expects, if its answer names one.
        region: Option<String>,
    },
    /// A 4xx about the request, and perhaps about one of its keys.
    Rejected(Refusal),
    Retry {
        why: Later,
        reason: String,
    },
}

impl<E: ProvideErrorMetadata + Error + 'static> From<SdkError<E>> for CallError {
    fn from(error: SdkError<E>) -> Self {
        let SdkError::ServiceError(answered) = &error else {
            return unanswered(&error);
        };
        let status = answered.raw().status().as_u16();
        let code = answered.err().code().unwrap_or_default();
        let message = answered.err().message().unwrap_or("no message");
        let reason = printable(&format!("S3 {status} {code}: {message}"));
        let region = region(answered.raw());
        // The SDK makes "NotFound" of any 404 without a body.
        let has_code = !code.is_empty() && (status, code) != (404, "NotFound");
        let refusal = |reason| Refusal { reason, has_code };
        match (status, code) {
            (_, "NoSuchBucket") => Self::NoBucket,
            (_, "PermanentRedirect") => Self::WrongRegion { reason, region },
            (301, _) if region.is_some() => Self::WrongRegion { reason, region },
            (_, "AuthorizationHeaderMalformed") => match region {
                Some(_) => Self::WrongRegion { reason, region },
                None => Self::Denied(reason),
            },
            (501, _) | (_, "MissingContentMD5" | "NotImplemented") => {
                Self::Unsupported(refusal(reason))
            }
            (_, code) if is_throttled(code) => Self::Retry { why: Later::Throttled, reason },
            (_, code) if !code.is_empty() && is_transient(code) => {
                Self::Retry { why: Later::Unavailable, reason }
            }
            (_, code) if CREDENTIALS.contains(&code) => Self::Denied(reason),
            (429, _) => Self::Retry { why: Later::Throttled, reason },
            (401 | 403, _) => Self::Denied(reason),
            (400..=499, _) => Self::Rejected(refusal(reason)),
            _ => Self::Retry { why: Later::Unavailable, reason },
        }
    }
}

/// Returns the region that a refusal names, in a header or in its XML.
fn region(answer: &HttpResponse) -> Option<String> {
    let header = answer.headers().get("x-amz-bucket-region").map(str::to_string);
    let in_body = || {
        let body = String::from_utf8_lossy(answer.body().bytes()?).into_owned();
        let (_, rest) = body.split_once("<Region>")?;
        rest.split_once("</Region>").map(|(region, _)| region.to_string())
    };
    header.or_else(in_body).filter(|region| !region.is_empty()).map(|region| printable(&region))
}

/// Classifies a call without an answer. The reason is the innermost cause: the SDK's outer messages are
/// only "dispatch failure".
fn unanswered(error: &(dyn Error + 'static)) -> CallError {
    let chain = || std::iter::successors(Some(error), |&cause| cause.source());
    let cause = chain().last().unwrap_or(error).to_string();
    let credentials = chain().find_map(|cause| cause.downcast_ref::<CredentialsError>());
    let (why, reason) = match credentials {
        // The cause continues with a line for each place that was tried.
        Some(CredentialsError::CredentialsNotLoaded(_)) => {
            (Later::NoCredentials, "no AWS credentials found".into())
        }
        Some(_) => {
            let cause = cause.trim_end_matches('.');
            (Later::NoCredentials, format!("cannot load AWS credentials: {cause}"))
        }
        None => (Later::Unavailable, format!("{error}: {cause}")),
    };
    let reason = printable(&reason.split_whitespace().collect::<Vec<_>>().join(" "));
    CallError::Retry { why, reason }
}

//! Whose fault is it? Reads what S3 answers, for a whole call and for each key.

use std::collections::HashMap;

use aws_sdk_s3::{
    config::http::HttpResponse,
    error::{ProvideErrorMetadata, SdkError},
    operation::delete_objects::DeleteObjectsOutput,
};

use crate::printable::printable;

/// Beside everything that begins with `SlowDown` (MinIO has several).
const THROTTLED: [&str; 4] =
    ["Throttling", "ThrottlingException", "RequestLimitExceeded", "BandwidthLimitExceeded"];
/// Parts of codes that speak of the store's own failures, on AWS and elsewhere.
const PASSING: [&str; 6] = ["Internal", "Unavailable", "Timeout", "Busy", "Aborted", "XMinio"];
/// The few codes that are certainly about one key.
const OWN: [&str; 6] = [
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

/// What became of one key.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Deleted, or not there any more.
    Gone,
    /// The store has no time: try again.
    Again(String),
    /// Not allowed, or not known: this object's own, or the credentials' or the store's.
    Denied(String),
    /// This key's own 4xx.
    Refused(String),
}

/// A whole answer with status 200.
#[derive(Debug)]
pub(super) struct Answer {
    pub verdicts: Vec<(String, Verdict)>,
    /// Keys that the answer does not mention, as in a 200 whose body is an error.
    pub unanswered: Vec<String>,
    pub slow_down: bool,
}

impl Answer {
    pub fn new(keys: &[String], output: DeleteObjectsOutput) -> Self {
        let mut told: HashMap<String, Verdict> = HashMap::with_capacity(keys.len());
        let mut slow_down = false;
        for deleted in output.deleted.unwrap_or_default() {
            told.extend(deleted.key.map(|key| (key, Verdict::Gone)));
        }
        for error in output.errors.unwrap_or_default() {
            let code = error.code.unwrap_or_default();
            slow_down |= is_throttled(&code);
            let verdict = judge_key(&code, error.message.as_deref().unwrap_or_default());
            told.extend(error.key.map(|key| (key, verdict)));
        }
        let (mut verdicts, mut unanswered) = (Vec::with_capacity(keys.len()), Vec::new());
        for key in keys {
            match told.remove(key) {
                Some(verdict) => verdicts.push((key.clone(), verdict)),
                None => unanswered.push(key.clone()),
            }
        }
        Self { verdicts, unanswered, slow_down }
    }

    /// What the store suffers from, if it did nothing for any of the keys and that is none of
    /// theirs.
    pub fn failure(&self) -> Option<String> {
        let mut failures = self.verdicts.iter().map(|(_, verdict)| match verdict {
            Verdict::Gone | Verdict::Refused(_) => None,
            Verdict::Again(reason) | Verdict::Denied(reason) => Some(reason),
        });
        let worked = self.slow_down || failures.clone().any(|failure| failure.is_none());
        let silent = || "it did not acknowledge a deletion".to_string();
        (!worked).then(|| failures.next().flatten().cloned().unwrap_or_else(silent))
    }
}

fn is_throttled(code: &str) -> bool {
    code.starts_with("SlowDown") || THROTTLED.contains(&code)
}

fn is_passing(code: &str) -> bool {
    code.is_empty() || PASSING.iter().any(|part| code.contains(part))
}

/// What is neither known as passing nor as the key's own is `Denied`: a probe decides whether the
/// store or the key is at fault. An outage must never turn rows into dead letters.
fn judge_key(code: &str, message: &str) -> Verdict {
    let reason = printable(&format!("S3 {code}: {message}"));
    match code {
        "NoSuchKey" | "NoSuchVersion" => Verdict::Gone,
        code if is_throttled(code) || is_passing(code) => Verdict::Again(reason),
        code if OWN.contains(&code) => Verdict::Refused(reason),
        _ => Verdict::Denied(reason),
    }
}

/// A call that failed as a whole.
#[derive(Debug)]
pub(super) enum CallError {
    NoBucket,
    Denied(String),
    /// The store does not know the call, or wants it with another checksum.
    Unsupported(String),
    /// The bucket is in another region than the one that requests are signed for.
    WrongRegion {
        reason: String,
        /// The region that the store expects, if it says so.
        region: Option<String>,
    },
    /// A 4xx about what was asked: perhaps one key's fault.
    Rejected(String),
    Again {
        reason: String,
        slow_down: bool,
    },
}

impl<E: ProvideErrorMetadata + std::error::Error + 'static> From<SdkError<E>> for CallError {
    fn from(error: SdkError<E>) -> Self {
        let SdkError::ServiceError(answered) = &error else {
            let reason = innermost(&error);
            return Self::Again { reason, slow_down: false };
        };
        let status = answered.raw().status().as_u16();
        let code = answered.err().code().unwrap_or_default();
        let message = answered.err().message().unwrap_or("no message");
        let reason = printable(&format!("S3 {status} {code}: {message}"));
        let region = region(answered.raw());
        match (status, code) {
            (_, "NoSuchBucket") => Self::NoBucket,
            (_, "PermanentRedirect") => Self::WrongRegion { reason, region },
            (301, _) if region.is_some() => Self::WrongRegion { reason, region },
            (_, "AuthorizationHeaderMalformed") => match region {
                Some(_) => Self::WrongRegion { reason, region },
                None => Self::Denied(reason),
            },
            (501, _) | (_, "MissingContentMD5" | "NotImplemented") => Self::Unsupported(reason),
            (_, code) if is_throttled(code) => Self::Again { reason, slow_down: true },
            (_, code) if !code.is_empty() && is_passing(code) => {
                Self::Again { reason, slow_down: false }
            }
            (_, code) if CREDENTIALS.contains(&code) => Self::Denied(reason),
            (429, _) => Self::Again { reason, slow_down: true },
            (401 | 403, _) => Self::Denied(reason),
            (400..=499, _) => Self::Rejected(reason),
            _ => Self::Again { reason, slow_down: false },
        }
    }
}

/// The region that a refusal names, in a header or in its body.
fn region(answer: &HttpResponse) -> Option<String> {
    let header = answer.headers().get("x-amz-bucket-region").map(str::to_string);
    let in_body = || {
        let body = String::from_utf8_lossy(answer.body().bytes()?).into_owned();
        let (_, rest) = body.split_once("<Region>")?;
        rest.split_once("</Region>").map(|(region, _)| region.to_string())
    };
    header.or_else(in_body).filter(|region| !region.is_empty()).map(|region| printable(&region))
}

/// The reason of a call that was not sent because the SDK found no credentials.
pub(super) const NO_CREDENTIALS: &str = "no AWS credentials found";
/// The reason of a call that was not sent because a source of credentials failed begins with this.
pub(super) const CREDENTIALS_FAILED: &str = "cannot load AWS credentials";

/// The SDK's outer messages say only "dispatch failure"; the cause is what helps.
fn innermost(error: &dyn std::error::Error) -> String {
    let (mut cause, mut about_credentials) = (error, false);
    while let Some(next) = cause.source() {
        cause = next;
        about_credentials |= cause.to_string().contains("credential");
    }
    // The SDK lists every place that it looked at, over many lines.
    if cause.to_string().contains("no credentials") {
        return NO_CREDENTIALS.into();
    }
    if about_credentials {
        return printable(format!("{CREDENTIALS_FAILED}: {cause}").trim_end_matches('.'));
    }
    // Some of them are lists with a line for each thing tried.
    let text = format!("{error}: {cause}");
    printable(&text.split_whitespace().collect::<Vec<_>>().join(" "))
}

//! The HTTP answers of [`FaultyS3`](super::FaultyS3): S3's XML, and how each mode bends it.

use axum::{
    body::{Body, Bytes},
    http::{Method, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use percent_encoding::percent_decode_str;

use super::{Kind, Mode};

/// Returns the answer of a mode that deletes nothing, `None` if this call is to be carried out.
pub(super) fn refusal(mode: &Mode, keys: &[String], has_md5: bool) -> Option<Response> {
    match mode {
        Mode::Checksum { md5: true } if !has_md5 => Some(failure(400, "MissingContentMD5")),
        Mode::Checksum { md5: false } if has_md5 => Some(failure(400, "InvalidRequest")),
        Mode::Failing { status, code } => Some(failure(*status, code)),
        Mode::OtherRegion { status, code, region } => Some(other_region(*status, code, region)),
        Mode::ErrorInBody { code } => Some(xml(error(code))),
        Mode::Page { content_type } => {
            Some(([(CONTENT_TYPE, *content_type)], "<html>log in</html>").into_response())
        }
        Mode::EmptyAnswer => Some(xml("<DeleteResult></DeleteResult>".into())),
        Mode::RejectingCall { text } if keys.iter().any(|key| key.contains(text)) => {
            Some((StatusCode::BAD_REQUEST, error("MalformedXML")).into_response())
        }
        _ => None,
    }
}

/// Returns the answer to HEAD of the bucket, and to any request for another bucket.
pub(super) fn of_bucket(kind: &Kind, method: &Method, uri: &Uri, bucket: &str) -> Option<Response> {
    let path = uri.path().trim_start_matches('/');
    let (named, key) = path.split_once('/').unwrap_or((path, ""));
    match kind.any_bucket {
        Some(status) if method == Method::HEAD && key.is_empty() => {
            Some(StatusCode::from_u16(status).expect("status").into_response())
        }
        None if method == Method::HEAD && key.is_empty() => Some(StatusCode::OK.into_response()),
        None if named != bucket => Some(failure(404, "NoSuchBucket")),
        _ => None,
    }
}

/// Returns the key of a DeleteObject.
pub(super) fn single_key(method: &Method, uri: &Uri) -> Option<String> {
    let key = uri.path().trim_start_matches('/').split_once('/').map(|(_, key)| key)?;
    let key = percent_decode_str(key).decode_utf8_lossy().into_owned();
    (method == Method::DELETE).then_some(key)
}

/// Builds the answer to a DeleteObject.
pub(super) fn verdict(mode: &Mode, deleted: bool) -> Response {
    let code = match mode {
        Mode::Refusing { code, .. } if !deleted => *code,
        Mode::RefusingWith { .. } if !deleted => "ObjectLocked",
        // The type of a body that there is none of; some frameworks add it.
        _ => return (StatusCode::NO_CONTENT, [(CONTENT_TYPE, "text/html")]).into_response(),
    };
    let status = match code {
        "AccessDenied" => 403,
        "NoSuchKey" => 404,
        "InternalError" => 500,
        "SlowDown" => 503,
        _ => 400,
    };
    failure(status, code)
}

/// Builds the answer that lists what happened to each key.
pub(super) fn verdicts(mode: &Mode, good: &[String], bad: &[String]) -> String {
    let (code, message) = match mode {
        Mode::Refusing { code, .. } => (*code, "no"),
        Mode::RefusingWith { message, .. } => ("ObjectLocked", *message),
        _ => ("", "no"),
    };
    let good = good.iter().map(|key| format!("<Deleted><Key>{}</Key></Deleted>", escape(key)));
    let bad = bad.iter().map(|key| {
        let key = escape(key);
        format!("<Error><Key>{key}</Key><Code>{code}</Code><Message>{message}</Message></Error>")
    });
    let all: String = good.chain(bad).collect();
    format!("<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{all}</DeleteResult>")
}

pub(super) fn xml(body: String) -> Response {
    ([(CONTENT_TYPE, "application/xml")], format!("<?xml version=\"1.0\"?>{body}")).into_response()
}

/// Sends half of the answer, then ends the connection.
pub(super) fn cut(answer: String) -> Response {
    let half = Bytes::from(answer).split_to(20);
    let end = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    let pieces = futures_util::stream::iter([Ok(half), Err(end)]);
    ([(CONTENT_TYPE, "application/xml")], Body::from_stream(pieces)).into_response()
}

pub(super) fn failure(status: u16, code: &str) -> Response {
    let status = StatusCode::from_u16(status).expect("status");
    match code {
        "" => status.into_response(),
        code => (status, [(CONTENT_TYPE, "application/xml")], error(code)).into_response(),
    }
}

/// A redirect names the region in a header, any other status in its body.
fn other_region(status: u16, code: &str, region: &str) -> Response {
    let mut answer = match status {
        301 => failure(status, code),
        _ => {
            let named = format!("<Region>{region}</Region></Error>");
            failure(status, code).map(|_| Body::from(error(code).replace("</Error>", &named)))
        }
    };
    if status == 301 {
        answer.headers_mut().insert("x-amz-bucket-region", region.parse().expect("a header"));
    }
    answer
}

fn error(code: &str) -> String {
    format!("<Error><Code>{code}</Code><Message>injected by the test</Message></Error>")
}

pub(super) fn keys_in(body: &str) -> Vec<String> {
    let mut keys = Vec::new();
    for part in body.split("<Key>").skip(1) {
        let key = part.split("</Key>").next().unwrap_or_default();
        keys.push(
            key.replace("&lt;", "<")
                .replace("&gt;", ">")
                .replace("&quot;", "\"")
                .replace("&apos;", "'")
                .replace("&amp;", "&"),
        );
    }
    keys
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

//! The HTTP answers of [`MemoryS3`](super::MemoryS3): its objects, and S3's XML for lists and
//! deletions.

use std::{fmt::Write, ops::Bound};

use axum::{
    http::{StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use super::{Call, MemoryS3, Quirk};

impl MemoryS3 {
    pub(super) fn get(&self, key: &str) -> Response {
        match self.objects().get(key) {
            Some(object) => object.body.clone().into_response(),
            None => {
                (StatusCode::NOT_FOUND, "<Error><Code>NoSuchKey</Code></Error>").into_response()
            }
        }
    }

    pub(super) fn head(&self, key: &str) -> Response {
        if matches!(self.quirk(), Some(Quirk::NoReading | Quirk::NoEncoding)) {
            return StatusCode::FORBIDDEN.into_response();
        }
        match self.has(key) {
            true => StatusCode::OK.into_response(),
            false => StatusCode::NOT_FOUND.into_response(),
        }
    }

    pub(super) async fn delete(&self, body: &[u8]) -> Response {
        self.wait_if_held(Call::Delete).await;
        let body = String::from_utf8_lossy(body);
        let mut answer = String::from("<DeleteResult>");
        for key in body.split("<Key>").skip(1).filter_map(|part| part.split("</Key>").next()) {
            let plain = key.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", "\"");
            let plain = plain.replace("&apos;", "'").replace("&#xA;", "\n").replace("&amp;", "&");
            let locked = self.locked.lock().expect("locked").clone();
            if locked.is_some_and(|text| plain.contains(&text)) {
                let _ = write!(
                    answer,
                    "<Error><Key>{key}</Key><Code>ObjectLocked</Code><Message>kept</Message></Error>"
                );
                continue;
            }
            self.remove(&plain);
            let _ = write!(answer, "<Deleted><Key>{key}</Key></Deleted>");
        }
        xml(answer + "</DeleteResult>")
    }

    pub(super) fn list(&self, query: &Query) -> Response {
        let prefix = query.get("prefix").unwrap_or_default();
        let after = query.get("continuation-token").or_else(|| query.get("start-after"));
        let most = query.get("max-keys").and_then(|most| most.parse().ok()).unwrap_or(1000);
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix.clone()),
        };
        let quirk = self.quirk();
        let is_encoded = query.get("encoding-type").is_some() && quirk != Some(Quirk::NoEncoding);
        let encode: fn(&str) -> String = if is_encoded { url_encoded } else { escaped };
        let objects = self.objects();
        let unlisted =
            |key: &str| matches!(quirk, Some(Quirk::Unlisted(some)) if key.starts_with(some));
        let most = if quirk == Some(Quirk::NoTokensNoKeys) { 0 } else { most };
        let under = objects.range((from, Bound::Unbounded));
        let mut under =
            under.take_while(|(key, _)| key.starts_with(&prefix)).filter(|(key, _)| !unlisted(key));
        let mut answer = String::from("<ListBucketResult>");
        let mut last = None;
        for (key, object) in under.by_ref().take(most) {
            let time = aws_sdk_s3::primitives::DateTime::from_secs(object.modified_s.cast_signed());
            let time = time.fmt(aws_sdk_s3::primitives::DateTimeFormat::DateTime).expect("time");
            let (name, size) = (encode(key), object.size);
            let _ = write!(
                answer,
                "<Contents><Key>{name}</Key><LastModified>{time}</LastModified><Size>{size}</Size></Contents>"
            );
            last = Some(key);
        }
        let more = under.next().is_some();
        let _ = write!(answer, "<IsTruncated>{more}</IsTruncated>");
        if let Some(last) = last.filter(|_| more && quirk != Some(Quirk::NoTokens)) {
            let token = escaped(last);
            let _ = write!(answer, "<NextContinuationToken>{token}</NextContinuationToken>");
        }
        if is_encoded {
            answer.push_str("<EncodingType>url</EncodingType>");
        }
        xml(answer + "</ListBucketResult>")
    }
}

pub(super) struct Query(Vec<(String, String)>);

impl Query {
    pub(super) fn of(uri: &Uri) -> Self {
        let plain = |text: &str| {
            percent_decode_str(&text.replace('+', " ")).decode_utf8_lossy().into_owned()
        };
        let pairs = uri.query().unwrap_or_default().split('&');
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        Self(pairs.map(|(name, value)| (plain(name), plain(value))).collect())
    }

    pub(super) fn get(&self, name: &str) -> Option<String> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone())
    }
}

/// Encodes a key as AWS does: a space becomes a plus sign.
fn url_encoded(key: &str) -> String {
    utf8_percent_encode(key, NON_ALPHANUMERIC).to_string().replace("%20", "+")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

pub(super) fn no_bucket() -> Response {
    (StatusCode::NOT_FOUND, "<Error><Code>NoSuchBucket</Code></Error>").into_response()
}

pub(super) fn no_bulk() -> Response {
    (StatusCode::NOT_IMPLEMENTED, "<Error><Code>NotImplemented</Code></Error>").into_response()
}

fn xml(body: String) -> Response {
    ([(CONTENT_TYPE, "application/xml")], format!("<?xml version=\"1.0\"?>{body}")).into_response()
}

//! An S3 endpoint with DeleteObject and, if wanted, DeleteObjects, with a fixed latency. It records the
//! keys.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Bytes,
    http::{Method, StatusCode, Uri, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};

use crate::Result;

/// The end of the keys that a worker deletes when it starts, to check the bucket.
const PROBE: &str = ".paste-cleanup-probe";

#[derive(Clone)]
pub(crate) struct Stub {
    pub url: String,
    deleted: Arc<Mutex<HashSet<String>>>,
}

impl Stub {
    /// Starts a stub whose calls take this long.
    pub(crate) async fn start(latency: Duration) -> Result<Self> {
        Self::start_with(latency, true).await
    }

    /// Starts a stub that has no DeleteObjects.
    pub(crate) async fn without_bulk(latency: Duration) -> Result<Self> {
        Self::start_with(latency, false).await
    }

    async fn start_with(latency: Duration, bulk: bool) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let stub = Self { url, deleted: Arc::default() };
        let shared = stub.clone();
        let app = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| {
            let shared = shared.clone();
            async move {
                tokio::time::sleep(latency).await;
                match method {
                    Method::HEAD => StatusCode::OK.into_response(),
                    Method::DELETE => shared.delete_one(&uri),
                    Method::POST if !bulk => {
                        let error = "<Error><Code>NotImplemented</Code></Error>";
                        (StatusCode::NOT_IMPLEMENTED, error).into_response()
                    }
                    _ => shared.answer(&uri, &body),
                }
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(stub)
    }

    fn delete_one(&self, uri: &Uri) -> Response {
        let key = uri.path().splitn(3, '/').nth(2).unwrap_or_default();
        if !key.ends_with(PROBE) {
            self.deleted.lock().unwrap_or_else(PoisonError::into_inner).insert(key.into());
        }
        StatusCode::NO_CONTENT.into_response()
    }

    fn answer(&self, uri: &Uri, body: &[u8]) -> Response {
        let is_delete = uri.query().is_some_and(|query| query.contains("delete"));
        let Some(body) = std::str::from_utf8(body).ok().filter(|_| is_delete) else {
            return StatusCode::BAD_REQUEST.into_response();
        };
        let keys = body.split("<Key>").skip(1).filter_map(|part| part.split("</Key>").next());
        let mut answer = String::with_capacity(body.len() + 200);
        answer.push_str("<?xml version=\"1.0\"?><DeleteResult>");
        let mut deleted = self.deleted.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            answer.push_str("<Deleted><Key>");
            answer.push_str(key);
            answer.push_str("</Key></Deleted>");
            if !key.ends_with(PROBE) {
                deleted.insert(key.to_string());
            }
        }
        answer.push_str("</DeleteResult>");
        ([(CONTENT_TYPE, "application/xml")], answer).into_response()
    }

    /// Returns the keys that were deleted since the last call.
    pub(crate) fn take(&self) -> HashSet<String> {
        std::mem::take(&mut *self.deleted.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

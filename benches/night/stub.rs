//! An S3 endpoint with DeleteObjects and DeleteObject, with a fixed latency. It records the keys of
//! every DeleteObjects.

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

/// The key that a worker deletes when it starts, to check the bucket.
const PROBE: &str = ".paste-cleanup-probe";

#[derive(Clone)]
pub(crate) struct Stub {
    pub url: String,
    deleted: Arc<Mutex<HashSet<String>>>,
}

impl Stub {
    /// Starts a stub whose calls take this long.
    pub(crate) async fn start(latency: Duration) -> Result<Self> {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let stub = Self { url, deleted: Arc::default() };
        let shared = stub.clone();
        let app = Router::new().fallback(move |method: Method, uri: Uri, body: Bytes| {
            let shared = shared.clone();
            async move {
                tokio::time::sleep(latency).await;
                match method {
                    Method::DELETE => StatusCode::NO_CONTENT.into_response(),
                    _ => shared.answer(&uri, &body),
                }
            }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        Ok(stub)
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
            if key != PROBE {
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

//! An S3 endpoint that carries deletions out on the real one, and misbehaves as told.

use std::sync::{Arc, Mutex};

use aws_sdk_s3::types::{Delete, ObjectIdentifier};
use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode, header::CONTENT_TYPE},
    response::{IntoResponse, Response},
};
use tokio::sync::{Notify, watch};

use super::{World, invariants::Store};

/// What a call is answered.
#[derive(Clone)]
pub enum Mood {
    /// Deletes, but refuses keys that contain a text, with this code.
    Refusing { text: String, code: &'static str },
    /// Answers every call with this status and error code, deleting nothing.
    Failing { status: u16, code: &'static str },
    /// Deletes nothing and answers 200 with an error as its body.
    ErrorInBody { code: &'static str },
    /// Deletes nothing and answers 200 without a word about any key.
    Mute,
    /// Rejects a call as a whole when one of its keys contains a text.
    Choking { text: String },
    /// Carries calls out, but answers only when it is let go.
    Holding,
    /// Deletes as it should.
    Fine,
}

#[derive(Clone)]
pub struct FaultyS3 {
    pub url: String,
    mood: Arc<Mutex<Mood>>,
    calls: watch::Sender<usize>,
    go: Arc<Notify>,
    /// Of the last call.
    pub headers: Arc<Mutex<HeaderMap>>,
}

impl FaultyS3 {
    pub async fn start(world: &World, mood: Mood) -> Self {
        Self::in_front_of(world.store(), mood).await
    }

    /// Every deletion is watched: see [`Store::watch_deletion`].
    pub async fn in_front_of(store: Store, mood: Mood) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let (calls, _) = watch::channel(0);
        let server = Self {
            url,
            mood: Arc::new(Mutex::new(mood)),
            calls,
            go: Arc::new(Notify::new()),
            headers: Arc::default(),
        };
        let shared = server.clone();
        let app = Router::new().fallback(move |headers: HeaderMap, body: Bytes| {
            *shared.headers.lock().expect("headers") = headers;
            let (shared, store) = (shared.clone(), store.clone());
            async move { shared.answer(&store, &body).await }
        });
        tokio::spawn(async move { axum::serve(listener, app).await });
        server
    }

    pub fn mood(&self, mood: Mood) {
        *self.mood.lock().expect("mood") = mood;
    }

    /// Lets held calls go, and all later ones.
    pub fn let_go(&self) {
        self.mood(Mood::Fine);
        self.go.notify_waiters();
    }

    pub fn calls(&self) -> usize {
        *self.calls.borrow()
    }

    /// Waits for a DeleteObjects call that names an object of the test (not a probe).
    pub async fn called(&self, times: usize) {
        let mut calls = self.calls.subscribe();
        calls.wait_for(|seen| *seen >= times).await.expect("calls");
    }

    async fn answer(&self, store: &Store, body: &[u8]) -> Response {
        let keys = keys_in(&String::from_utf8_lossy(body));
        let held = self.go.notified();
        let mood = self.mood.lock().expect("mood").clone();
        let probe = keys.iter().all(|key| key.ends_with(".paste-cleanup-probe"));
        if !probe {
            self.calls.send_modify(|calls| *calls += 1);
        }
        let refused = |key: &String| match &mood {
            Mood::Refusing { text, .. } => key.contains(text),
            _ => false,
        };
        let code = match &mood {
            Mood::Refusing { code, .. } => code,
            Mood::Failing { status, code } => {
                let status = StatusCode::from_u16(*status).expect("status");
                return (status, [(CONTENT_TYPE, "application/xml")], error(code)).into_response();
            }
            Mood::ErrorInBody { code } => return xml(error(code)),
            Mood::Mute => return xml("<DeleteResult></DeleteResult>".into()),
            Mood::Choking { text } if keys.iter().any(|key| key.contains(text)) => {
                return (StatusCode::BAD_REQUEST, error("MalformedXML")).into_response();
            }
            Mood::Choking { .. } => "",
            Mood::Holding | Mood::Fine => "",
        };
        let (bad, good): (Vec<String>, Vec<String>) = keys.into_iter().partition(refused);
        if !good.is_empty() && !probe {
            delete(store, &good).await;
        }
        if matches!(mood, Mood::Holding) && !probe {
            held.await;
        }
        let good: String = good
            .iter()
            .map(|key| format!("<Deleted><Key>{}</Key></Deleted>", escape(key)))
            .collect();
        let bad: String = bad
            .iter()
            .map(|key| {
                format!(
                    "<Error><Key>{}</Key><Code>{code}</Code><Message>no</Message></Error>",
                    escape(key)
                )
            })
            .collect();
        xml(format!(
            "<DeleteResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">{good}{bad}</DeleteResult>"
        ))
    }
}

async fn delete(store: &Store, keys: &[String]) {
    store.watch_deletion(keys).await;
    let objects = keys.iter().map(|key| ObjectIdentifier::builder().key(key).build().expect("key"));
    let delete = Delete::builder().set_objects(Some(objects.collect())).build().expect("delete");
    let call = store.s3.delete_objects().bucket(&store.bucket).delete(delete);
    call.send().await.expect("real delete");
}

fn xml(body: String) -> Response {
    ([(CONTENT_TYPE, "application/xml")], format!("<?xml version=\"1.0\"?>{body}")).into_response()
}

fn error(code: &str) -> String {
    format!("<Error><Code>{code}</Code><Message>told to</Message></Error>")
}

fn keys_in(body: &str) -> Vec<String> {
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

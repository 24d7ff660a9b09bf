//! Answers of S3 to DeleteObjects, with any status, headers and content.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
};

use futures_util::future::join_all;
use paste_cleanup::{config::defaults, objects::Objects};
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    runtime::Runtime,
};

use crate::{bytes::*, is_presentable, try_all};

/// The answer to all further calls: it deletes nothing and causes no retry.
const DENIAL: &str = "HTTP/1.1 403 Forbidden\r\nContent-Length: 52\r\nConnection: close\r\n\r\n\
                      <Error><Code>InvalidAccessKeyId</Code></Error>      ";
/// The keys to delete, each after the prefix of its case.
const KEYS: [&str; 3] = ["a", "b&<>", "c d"];

/// The number of the case. It replaces `CASE` in an answer, with as many letters, so that the lengths
/// in the answer stay right.
static CASES: AtomicU32 = AtomicU32::new(0);

/// An S3 that gives the configured answer to the first call of each case, and denies all others.
#[derive(Clone, Default)]
struct FakeS3 {
    answers: Arc<Mutex<HashMap<String, Vec<u8>>>>,
}

impl FakeS3 {
    async fn start() -> (Self, Objects) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("port");
        let mut settings = defaults();
        settings.s3.endpoint = Some(format!("http://{}", listener.local_addr().expect("address")));
        settings.s3.bucket = Some("bucket".into());
        let server = Self::default();
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move { serving.answer(stream).await });
            }
        });
        (server, Objects::new(&settings).await.expect("S3 client"))
    }

    async fn answer(&self, mut stream: TcpStream) {
        let (mut request, mut buffer) = (Vec::new(), [0; 4096]);
        while !text(&request).contains("</Delete>") {
            match stream.read(&mut buffer).await {
                Ok(read @ 1..) => request.extend(&buffer[..read]),
                _ => return,
            }
        }
        let request = text(&request);
        let case = request.split("<Key>").nth(1).and_then(|key| key.split('/').next());
        let answer = self.answers.lock().expect("answers").remove(case.unwrap_or_default());
        let _ = stream.write_all(&answer.unwrap_or_else(|| DENIAL.into())).await;
    }

    /// Deletes the keys of a case. Returns those that count as deleted, and the reasons for the others.
    async fn delete(&self, objects: &Objects, case: &str, answer: Vec<u8>) -> (Keys, Vec<String>) {
        self.answers.lock().expect("answers").insert(case.into(), answer);
        let keys: Vec<String> = KEYS.iter().map(|key| format!("{case}/{key}")).collect();
        match objects.delete(&keys, || {}).await {
            Ok(deleted) => {
                let (refused, reasons): (Keys, Vec<String>) = deleted.refused.into_iter().unzip();
                (keys.into_iter().filter(|key| !refused.contains(key)).collect(), reasons)
            }
            Err(error) => (Keys::new(), vec![error.to_string()]),
        }
    }
}

type Keys = BTreeSet<String>;

/// One element of an answer. `CASE` stands for the case's own prefix.
#[derive(Debug, Clone)]
struct Entry {
    key: &'static str,
    /// The error code; `None`: deleted.
    code: Option<&'static str>,
}

/// An entry for each key, for a similar key, or none; and up to one more.
fn entries() -> impl Strategy<Value = Vec<Entry>> {
    let similar =
        ["CASE/A", "CASE/a/", "CASE/a\n", "CASE//a", "/CASE/a", "CASE/c%20d", "CASE/c+d", "a", ""];
    let codes = [
        "NoSuchKey",
        "AccessDenied",
        "ObjectLocked",
        "nosuchkey",
        "InternalError",
        "SlowDown",
        "",
        "\u{1b}[2J\nGone",
    ];
    let code = || prop_oneof![5 => Just(None), 4 => select(codes.to_vec()).prop_map(Some)];
    let about = move |key| {
        let exact = code().prop_map(move |code| Some(Entry { key, code }));
        let mistaken = (select(similar.to_vec()), code());
        let mistaken = mistaken.prop_map(|(key, code)| Some(Entry { key, code }));
        prop_oneof![12 => exact, 1 => mistaken, 1 => Just(None)]
    };
    let [a, b, c] = ["CASE/a", "CASE/b&<>", "CASE/c d"].map(about);
    let more = vec(about("CASE/a"), 0..2);
    (a, b, c, more)
        .prop_map(|(a, b, c, more)| [a, b, c].into_iter().chain(more).flatten().collect())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn xml(entries: &[Entry]) -> String {
    let element = |entry: &Entry| {
        let key = escape(entry.key);
        match entry.code {
            None => format!("<Deleted><Key>{key}</Key></Deleted>"),
            Some(code) => format!(
                "<Error><Key>{key}</Key><Code>{code}</Code><Message>a\nb\u{9b}1m</Message></Error>"
            ),
        }
    };
    let all: String = entries.iter().map(element).collect();
    format!("<?xml version=\"1.0\"?><DeleteResult>{all}</DeleteResult>")
}

fn response(status: u16, body: &[u8]) -> Vec<u8> {
    let head = format!(
        "HTTP/1.1 {status} Odd\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    [head.as_bytes(), body].concat()
}

/// Whether the answer states that the key is gone, without contradicting itself and with a status of
/// success.
fn is_reported_gone(status: u16, entries: &[Entry], key: &str) -> bool {
    let mut codes = entries.iter().filter(|entry| entry.key == key).map(|entry| entry.code);
    let gone = |code| matches!(code, None | Some("NoSuchKey"));
    let reported = codes.clone().any(gone);
    let missing = codes.clone().any(|code| code == Some("NoSuchKey"));
    (200..300).contains(&status) && reported && (missing || codes.all(gone))
}

/// Runs several cases at the same time, because some answers cause a wait.
fn check_answers<A: std::fmt::Debug>(
    cases: u32,
    answers: impl Strategy<Value = A>,
    wire: impl Fn(&A) -> Vec<u8>,
    may_be_gone: impl Fn(&A, &str) -> bool,
) {
    let runtime = Runtime::new().expect("runtime");
    let (server, objects) = runtime.block_on(FakeS3::start());
    try_all(cases, &vec(answers, 16), |answers| {
        let one = async |answer| {
            let case = format!("{:04x}", CASES.fetch_add(1, Relaxed));
            let wire = text(&wire(answer)).replace("CASE", &case).into_bytes();
            let (gone, reasons) = server.delete(&objects, &case, wire).await;
            reasons.iter().try_for_each(|reason| is_presentable(reason))?;
            let mut gone = gone.iter().map(|key| key.replace(&case, "CASE"));
            match gone.find(|key| !may_be_gone(answer, key)) {
                Some(key) => Err(format!("{key:?} counts as deleted")),
                None => Ok(()),
            }
        };
        runtime.block_on(join_all(answers.iter().map(one))).into_iter().collect()
    });
}

#[test]
fn a_key_counts_as_deleted_only_if_the_answer_reports_exactly_that_key_as_deleted() {
    let status = prop_oneof![4 => Just(200), 1 => select(vec![204, 206, 301, 400, 404, 500, 503])];
    check_answers(
        30,
        (status, entries()),
        |(status, entries)| response(*status, xml(entries).as_bytes()),
        |(status, entries), key| is_reported_gone(*status, entries, key),
    );
}

#[test]
fn for_any_answer_no_key_counts_as_deleted_that_the_answer_does_not_name() {
    let all_gone: Vec<Entry> =
        ["CASE/a", "CASE/b&<>", "CASE/c d"].map(|key| Entry { key, code: None }).into();
    let body = xml(&all_gone);
    let good = response(200, body.as_bytes());
    let error = "<Error><Code>Odd</Code><Message>a\nb\u{9b}1m\u{202e}</Message></Error>";
    let answered = |(status, body): (u16, Vec<u8>)| response(status, &body);
    let raw = prop_oneof![
        1 => noise(300),
        2 => edited(good),
        3 => edited(body).prop_map(|body| response(200, &body)),
        1 => (100..999_u16, noise(300)).prop_map(answered),
        2 => (select(vec![400, 401, 403, 404, 500]), edited(error)).prop_map(answered),
    ];
    check_answers(25, raw, Clone::clone, |answer, key| {
        let answer = text(answer);
        answer.contains("<Deleted>") && answer.contains(&escape(key))
    });
}

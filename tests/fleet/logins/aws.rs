//! The identities that aws-config knows: each one's credentials sign the requests to S3.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use serde_json::json;

use crate::support::{
    faulty_s3::{FaultyS3, Mode},
    servers::Folder,
    *,
};

/// Stands for the services of AWS that issue credentials: STS, the container agents, the instance
/// metadata and IAM Identity Center. Each call gets a new key, which is about to expire.
#[derive(Clone)]
struct Issuer {
    url: String,
    issued: Arc<AtomicUsize>,
    /// What it was shown to prove the identity.
    proofs: Arc<Mutex<Vec<String>>>,
}

impl Issuer {
    async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("port");
        let url = format!("http://{}", listener.local_addr().expect("address"));
        let issuer = Self { url, issued: Arc::default(), proofs: Arc::default() };
        let shared = issuer.clone();
        let app = Router::new().fallback(
            async move |method: Method, uri: Uri, headers: HeaderMap, body: Bytes| {
                shared.answer(&method, &uri, &headers, &String::from_utf8_lossy(&body))
            },
        );
        tokio::spawn(async move { axum::serve(listener, app).await });
        issuer
    }

    fn answer(&self, method: &Method, uri: &Uri, headers: &HeaderMap, body: &str) -> Response {
        let header = |name: &str| {
            headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
        };
        let prove = |proof: &str| self.proofs.lock().expect("proofs").push(proof.into());
        match (method, uri.path()) {
            (&Method::PUT, "/latest/api/token") => {
                ([("x-aws-ec2-metadata-token-ttl-seconds", "60")], "session").into_response()
            }
            (&Method::GET, "/latest/meta-data/iam/security-credentials/") => {
                "night".into_response()
            }
            (&Method::GET, "/latest/meta-data/iam/security-credentials/night") => {
                prove(header("x-aws-ec2-metadata-token"));
                self.json(json!({"Code": "Success", "Type": "AWS-HMAC"}))
            }
            (&Method::GET, "/v1/credentials") => {
                prove(header("authorization"));
                self.json(json!({}))
            }
            (&Method::GET, "/federation/credentials") => {
                prove(header("x-amz-sso_bearer_token"));
                self.sso()
            }
            (&Method::POST, "/") => {
                prove(body);
                self.sts(if body.contains("WebIdentity") {
                    "AssumeRoleWithWebIdentity"
                } else {
                    "AssumeRole"
                })
            }
            _ => StatusCode::NOT_FOUND.into_response(),
        }
    }

    fn key(&self) -> String {
        format!("ISSUED{:04}", self.issued.fetch_add(1, Relaxed))
    }

    fn json(&self, mut answer: serde_json::Value) -> Response {
        answer["AccessKeyId"] = self.key().into();
        answer["SecretAccessKey"] = "secret".into();
        answer["Token"] = "session-token".into();
        answer["Expiration"] = text(soon()).into();
        answer.to_string().into_response()
    }

    fn sso(&self) -> Response {
        let credentials = json!({"roleCredentials": {
            "accessKeyId": self.key(), "secretAccessKey": "secret", "sessionToken": "session-token",
            "expiration": soon().timestamp_millis(),
        }});
        credentials.to_string().into_response()
    }

    fn sts(&self, action: &str) -> Response {
        let (key, expiration) = (self.key(), text(soon()));
        let answer = format!(
            "<{action}Response xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><{action}Result>\
             <AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/night/x</Arn>\
             <AssumedRoleId>a:x</AssumedRoleId></AssumedRoleUser>\
             <Credentials><AccessKeyId>{key}</AccessKeyId><SecretAccessKey>secret</SecretAccessKey>\
             <SessionToken>session-token</SessionToken><Expiration>{expiration}</Expiration>\
             </Credentials></{action}Result></{action}Response>"
        );
        ([("content-type", "text/xml")], answer).into_response()
    }
}

fn text(time: chrono::DateTime<chrono::Utc>) -> String {
    time.to_rfc3339_opts(chrono::SecondsFormat::Secs, true)
}

/// Within the ten seconds before which the SDK replaces credentials.
fn soon() -> chrono::DateTime<chrono::Utc> {
    chrono::Utc::now() + chrono::Duration::seconds(5)
}

/// What a program needs to get its credentials.
struct Identity<'a> {
    variables: &'a [(&'a str, &'a str)],
    config: &'a str,
    /// The end of a key id.
    key: &'a str,
    proof: &'a str,
}

/// Asserts that a run signs its deletes with the credentials of this identity, and fetches others before
/// they expire.
async fn assert_used(issuer: &Issuer, folder: &Folder, identity: Identity<'_>) {
    let world = World::new().await;
    let s3 = FaultyS3::start(&world, Mode::Normal).await;
    world.put("p", "a", Ago(60.0)).await;
    folder.write("config", &identity.config.replace("ISSUER", &issuer.url));
    let mut run = world.program("cleanup-worker").args(&["run"]);
    for inherited in ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_EC2_METADATA_DISABLED"] {
        run = run.without(inherited);
    }
    // An endpoint of S3 only: AWS_ENDPOINT_URL would be that of STS and SSO, too.
    run = run.without("AWS_ENDPOINT_URL").env("AWS_ENDPOINT_URL_S3", &s3.url);
    run = run.env("AWS_CONFIG_FILE", &folder.file("config"));
    run = run.env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null").env("HOME", &folder.file("."));
    for (variable, value) in identity.variables {
        run = run.env(variable, &value.replace("ISSUER", &issuer.url));
    }
    let ended = run.output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    world.assert_drained().await;
    let headers = s3.headers.lock().expect("headers").clone();
    let signed = headers["authorization"].to_str().expect("a header");
    assert!(signed.contains(&format!("Credential={}", identity.key)), "{signed}");
    assert_eq!(headers["x-amz-security-token"], "session-token");
    let proofs = issuer.proofs.lock().expect("proofs").clone();
    assert!(proofs.iter().all(|proof| proof.contains(identity.proof)), "{proofs:?}");
    if !identity.proof.is_empty() {
        assert!(proofs.len() > 1, "fetched again before they expire: {proofs:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_role_of_a_service_account_is_assumed_with_the_token_in_its_file() {
    let (issuer, folder) = (Issuer::start().await, Folder::new("aws"));
    folder.write("token", "service-account-token");
    let variables = [
        ("AWS_WEB_IDENTITY_TOKEN_FILE", &*folder.file("token")),
        ("AWS_ROLE_ARN", "arn:aws:iam::1:role/night"),
        ("AWS_ENDPOINT_URL_STS", "ISSUER"),
    ];
    let (key, proof) = ("ISSUED", "service-account-token");
    assert_used(&issuer, &folder, Identity { variables: &variables, config: "", key, proof }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_agent_of_eks_pod_identity_is_asked_with_the_token_in_its_file() {
    let (issuer, folder) = (Issuer::start().await, Folder::new("aws"));
    folder.write("token", "pod-token");
    let variables = [
        ("AWS_CONTAINER_CREDENTIALS_FULL_URI", "ISSUER/v1/credentials"),
        ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &*folder.file("token")),
    ];
    let (key, proof) = ("ISSUED", "pod-token");
    assert_used(&issuer, &folder, Identity { variables: &variables, config: "", key, proof }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_profile_of_an_instance_is_used() {
    let (issuer, folder) = (Issuer::start().await, Folder::new("aws"));
    let variables = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ISSUER")];
    let (key, proof) = ("ISSUED", "session");
    assert_used(&issuer, &folder, Identity { variables: &variables, config: "", key, proof }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_role_is_assumed_with_the_credentials_of_another_profile() {
    let (issuer, folder) = (Issuer::start().await, Folder::new("aws"));
    let config = "[default]\nrole_arn = arn:aws:iam::1:role/night\nsource_profile = own\n\
                  [profile own]\naws_access_key_id = OWN\naws_secret_access_key = secret\n";
    let variables = [("AWS_ENDPOINT_URL_STS", "ISSUER")];
    let (key, proof) = ("ISSUED", "role%2Fnight");
    assert_used(&issuer, &folder, Identity { variables: &variables, config, key, proof }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_to_iam_identity_center_is_used() {
    let (issuer, folder) = (Issuer::start().await, Folder::new("aws"));
    let cache = folder.path().join(".aws/sso/cache");
    std::fs::create_dir_all(&cache).expect("folder");
    // Named by the SHA-1 of "company", the name of the session.
    let token = cache.join("71b21161ffa1e6516bcc072aaf5ef38cbe85b511.json");
    let login = json!({"accessToken": "sso-token", "region": "us-east-1",
        "expiresAt": text(chrono::Utc::now() + chrono::Duration::hours(1))});
    std::fs::write(token, login.to_string()).expect("token");
    let config = "[default]\nsso_session = company\nsso_account_id = 1\nsso_role_name = night\n\
                  [sso-session company]\nsso_region = us-east-1\nsso_start_url = https://example.com\n";
    let variables = [("AWS_ENDPOINT_URL_SSO", "ISSUER")];
    let (key, proof) = ("ISSUED", "sso-token");
    assert_used(&issuer, &folder, Identity { variables: &variables, config, key, proof }).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_credential_process_is_run() {
    let (issuer, folder) = (Issuer::start().await, Folder::new("aws"));
    folder.write(
        "issued.json",
        r#"{"Version": 1, "AccessKeyId": "PRINTED", "SecretAccessKey": "s", "SessionToken": "session-token"}"#,
    );
    let config = format!("[default]\ncredential_process = cat {}\n", folder.file("issued.json"));
    let identity = Identity { variables: &[], config: &config, key: "PRINTED", proof: "" };
    assert_used(&issuer, &folder, identity).await;
}

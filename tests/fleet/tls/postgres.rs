//! TLS to Postgres, and to the endpoint of S3.

use super::{certificates, redis::tls_redis};
use crate::support::{findings::diagnose, postgres::Postgres, servers::Folder, *};

/// A Postgres that accepts only TLS connections.
struct TlsPostgres {
    server: Postgres,
    folder: Folder,
}

impl TlsPostgres {
    async fn start() -> Self {
        let (server, folder) = (Postgres::initialised(|_| Vec::new()).await, certificates());
        for name in ["cert.pem", "key.pem"] {
            server.write(name, &folder.read(name)).await;
        }
        server.write("pg_hba.conf", "hostssl all all 127.0.0.1/32 trust\n").await;
        let files = ["ssl_cert_file = 'cert.pem'", "ssl_key_file = 'key.pem'"];
        server.configure(&[&["ssl = on"][..], &files].concat()).await;
        server.start_again().await;
        Self { server, folder }
    }

    /// Returns a URL with this host name and `sslmode`.
    fn url(&self, host: &str, mode: &str) -> String {
        format!("postgres://postgres@{host}:{}/postgres?sslmode={mode}", self.server.port)
    }

    /// A program that connects to this server, with this CA file.
    fn program(&self, name: &str, url: &str, ca: Option<&str>) -> Process {
        let process = Process::new(name).env("DATABASE_URL", url);
        match ca {
            Some(ca) => process.env("CLEANUP_POSTGRES_CA_FILE", &self.folder.file(ca)),
            None => process,
        }
    }

    /// Asserts that a migration, which needs nothing but the connection, succeeds.
    async fn assert_works(&self, host: &str, mode: &str, ca: Option<&str>) {
        let migrate = self.program("cleanupctl", &self.url(host, mode), ca).args(&["migrate"]);
        let ended = migrate.output().await;
        assert_eq!(ended.code(), 0, "{host} {mode} {ca:?}: {}", ended.stderr());
    }

    async fn assert_refused(&self, host: &str, mode: &str, ca: Option<&str>, words: &[&str]) {
        let migrate = self.program("cleanupctl", &self.url(host, mode), ca).args(&["migrate"]);
        migrate.output().await.assert_refused(1, words);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn require_encrypts_without_verifying_the_certificate() {
    let postgres = TlsPostgres::start().await;
    postgres.assert_works("127.0.0.1", "require", None).await;
    postgres.assert_works("127.0.0.1", "prefer", None).await;
    let plain = ["no encryption"];
    postgres.assert_refused("127.0.0.1", "disable", None, &plain).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn require_with_a_ca_file_verifies_the_chain() {
    let postgres = TlsPostgres::start().await;
    postgres.assert_works("127.0.0.1", "require", Some("ca.pem")).await;
    let words = ["certificate"];
    postgres.assert_refused("127.0.0.1", "require", Some("other-ca.pem"), &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_full_requires_the_right_ca_and_host_name() {
    let postgres = TlsPostgres::start().await;
    postgres.assert_works("localhost", "verify-full", Some("ca.pem")).await;
    let words = ["certificate"];
    postgres.assert_refused("localhost", "verify-full", Some("other-ca.pem"), &words).await;
    postgres.assert_refused("localhost", "verify-full", None, &words).await;
    postgres.assert_refused("127.0.0.1", "verify-full", Some("ca.pem"), &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn verify_ca_requires_the_right_ca_under_any_host_name() {
    let postgres = TlsPostgres::start().await;
    postgres.assert_works("localhost", "verify-ca", Some("ca.pem")).await;
    postgres.assert_works("127.0.0.1", "verify-ca", Some("ca.pem")).await;
    let words = ["certificate"];
    postgres.assert_refused("localhost", "verify-ca", Some("other-ca.pem"), &words).await;
    postgres.assert_refused("127.0.0.1", "verify-ca", Some("other-ca.pem"), &words).await;
    postgres.assert_refused("127.0.0.1", "verify-ca", None, &words).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ca_file_that_is_missing_or_not_pem_is_named() {
    let folder = Folder::new("tls");
    folder.write("empty.pem", "no certificate here");
    for name in ["missing.pem", "empty.pem"] {
        let url = "postgres://postgres@127.0.0.1:1/postgres?sslmode=verify-full";
        let migrate = Process::new("cleanupctl").args(&["migrate"]).env("DATABASE_URL", url);
        let ended = migrate.env("CLEANUP_POSTGRES_CA_FILE", &folder.file(name)).output().await;
        ended.assert_refused(2, &["postgres.ca_file", &folder.file(name)]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn all_programs_work_over_tls() {
    let world = World::new().await;
    let postgres = TlsPostgres::start().await;
    let url = postgres.url("localhost", "verify-full");
    let ca = postgres.folder.file("ca.pem");
    let program = |name: &str| {
        let program = world.program(name).env("DATABASE_URL", &url);
        program.env("CLEANUP_POSTGRES_CA_FILE", &ca)
    };
    for args in [&["migrate"][..], &["seed", "--pastes", "20", "--expired-share", "1"]] {
        let ended = program("cleanupctl").args(args).output().await;
        assert_eq!(ended.code(), 0, "{}", ended.stderr());
    }
    let ran = program("cleanup-worker").args(&["run", "--format", "json"]).output().await;
    assert_eq!((ran.code(), &ran.json()["rows_deleted"]), (0, &20.into()), "{}", ran.stderr());
    let watched = program("cleanup-watchdog").args(&["--once"]).output().await;
    assert_eq!(watched.code(), 0, "{}", watched.stderr());
    assert_eq!(world.keys().await, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_certificate_logs_in_without_a_password() {
    let postgres = TlsPostgres::start().await;
    let server = &postgres.server;
    server.write("ca.pem", &postgres.folder.read("ca.pem")).await;
    server.configure(&["ssl_ca_file = 'ca.pem'"]).await;
    server.write("pg_hba.conf", "hostssl all all 127.0.0.1/32 cert\n").await;
    server.reload().await;
    let migrate = |client: &str| {
        let (cert, key) = (format!("{client}.pem"), format!("{client}-key.pem"));
        let url = postgres.url("localhost", "verify-full");
        let migrate = postgres.program("cleanupctl", &url, Some("ca.pem")).args(&["migrate"]);
        let migrate =
            migrate.env("CLEANUP_POSTGRES_CLIENT_CERT_FILE", &postgres.folder.file(&cert));
        migrate.env("CLEANUP_POSTGRES_CLIENT_KEY_FILE", &postgres.folder.file(&key))
    };
    let ended = migrate("client").output().await;
    assert_eq!(ended.code(), 0, "{}", ended.stderr());
    postgres.assert_refused("localhost", "verify-full", Some("ca.pem"), &["certificate"]).await;
    migrate("other-client").output().await.assert_refused(1, &["localhost"]);
    let words = ["postgres.client_cert_file", "missing.pem", "cannot be read"];
    migrate("missing").output().await.assert_refused(2, &words);
    let half = migrate("client").without("CLEANUP_POSTGRES_CLIENT_KEY_FILE");
    half.output().await.assert_refused(2, &["postgres.client_key_file", "belong together"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_s3_endpoint_with_an_untrusted_certificate_is_refused() {
    let (world, folder) = (World::new().await, certificates());
    world.put("p", "a", Ago(60.0)).await;
    // This server is not an S3, but the handshake must fail before that matters.
    let other = tls_redis(&folder).await;
    let endpoint = format!("https://localhost:{}", other.port());
    let run = world.program("cleanup-worker").args(&["run"]).env("AWS_ENDPOINT_URL", &endpoint);
    run.output().await.assert_refused(1, &["S3 is unavailable", "certificate"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_reports_which_connections_are_encrypted() {
    let (world, postgres) = (World::new().await, TlsPostgres::start().await);
    let redis = tls_redis(&postgres.folder).await;
    let ca = postgres.folder.file("ca.pem");
    let doctor = world
        .program("cleanupctl")
        .env("DATABASE_URL", &postgres.url("localhost", "verify-full"))
        .env("CLEANUP_POSTGRES_CA_FILE", &ca)
        .env("REDIS_URL", &format!("rediss://localhost:{}", redis.port()))
        .env("CLEANUP_REDIS_CA_FILE", &ca);
    let words = ["Postgres encrypted", "Redis encrypted", "S3 on this machine"];
    let findings = diagnose(doctor).await;
    findings.assert_says("encryption", "ok", &words);
    findings.assert_says("redis", "ok", &["version"]);
}

//! Addresses: URLs of Postgres and Redis, CA files, the S3 endpoint.

use paste_cleanup::{
    config::{Settings, defaults},
    objects::Objects,
    postgres::Target,
    redis,
};
use proptest::prelude::*;
use tokio::runtime::Runtime;

use crate::{SECRET, bytes::*, is_presentable, settings::File, try_all};

/// Returns a URL with an unchanged password and mistakes everywhere else.
fn urls(before: &'static str, after: &'static [&'static str]) -> impl Strategy<Value = String> {
    let after = prop::sample::select(after).prop_flat_map(edited);
    (edited(before), after).prop_map(|(before, after)| text(&before) + SECRET + &text(&after))
}

/// Whether the text is certainly a password. If the beginning is intact, nothing after it can turn it
/// into a host or a database. An `@` in the password can, unless the parser notices the second one.
fn must_be_hidden(url: &str) -> bool {
    let after = url.split(SECRET).nth(1).unwrap_or_default();
    let ends = after.split('?').next().is_some_and(|rest| rest.contains('@'));
    url.starts_with(&format!("postgres://user:{SECRET}"))
        || url.starts_with(&format!("postgres://user:p@ss/{SECRET}")) && ends
}

fn hides_the_password(url: &str, settings: &Settings) -> Result<(), String> {
    match Target::new(settings, "test", None) {
        Ok(target) if must_be_hidden(url) => is_presentable(&target.describe()),
        Ok(_) => Ok(()),
        Err(error) => is_presentable(&format!("{error:#}")),
    }
}

#[test]
fn any_postgres_url_is_accepted_or_refused_without_showing_its_password() {
    let after = &[
        "@host:5432/database",
        "@h1:1,h2:2/d?sslmode=verify-full&target_session_attrs=read-write&connect_timeout=3",
        "@%2Frun%2Fpg/d?options=-c%20x%3D1&host=h&hostaddr=127.0.0.1&port=5",
        " host=h port=5432 dbname=d sslmode=verify-ca user='it''s'",
    ];
    let pairs = urls("host=h user=u password=", after);
    let with_at = urls("postgres://user:p@ss/", after);
    let urls = prop_oneof![3 => urls("postgres://user:", after), 1 => with_at, 1 => pairs];
    try_all(1500, &urls, |url| {
        let mut settings = defaults();
        settings.postgres.url = Some(url.clone().into());
        hides_the_password(url, &settings)
    });
}

#[test]
fn any_redis_url_is_accepted_or_refused_without_showing_its_password() {
    let after = &["@host:6379/0", "@[::1]:6379/15?protocol=resp3", "@h/0#insecure"];
    let urls = prop_oneof![urls("redis://user:", after), urls("rediss://:", after)];
    try_all(800, &urls, |url| {
        let mut settings = defaults();
        settings.redis.url = Some(url.clone().into());
        redis::pool(&settings).map(|_| ()).or_else(|error| is_presentable(&format!("{error:#}")))
    });
}

#[test]
fn any_ca_file_is_accepted_or_refused_in_one_line() {
    let key = rcgen::KeyPair::generate().expect("key");
    let params = rcgen::CertificateParams::new(vec!["localhost".into()]).expect("params");
    let pem = params.self_signed(&key).expect("certificate").pem();
    let secret = format!("-----BEGIN PRIVATE KEY-----\n{SECRET}\n-----END PRIVATE KEY-----\n{pem}");
    let bytes = prop_oneof![1 => noise(200), 3 => edited(pem), 3 => edited(secret)];
    try_all(400, &bytes, |bytes| {
        let file = File::new(bytes);
        let mut settings = defaults();
        settings.postgres.url =
            Some(format!("postgres://u:{SECRET}@h/d?sslmode=verify-full").into());
        settings.postgres.ca_file = Some(file.0.clone());
        settings.redis.url = Some(format!("rediss://:{SECRET}@host").into());
        settings.redis.ca_file = Some(file.0.clone());
        let postgres = Target::new(&settings, "test", None).map(|_| ());
        postgres.or_else(|error| is_presentable(&format!("{error:#}")))?;
        redis::pool(&settings).map(|_| ()).or_else(|error| is_presentable(&format!("{error:#}")))
    });
}

#[test]
fn with_any_endpoint_and_bucket_a_probe_fails_in_one_line() {
    let runtime = Runtime::new().expect("runtime");
    // No server listens there.
    let endpoint = words(&["/", "/path?query#fragment", "/%zz"])
        .prop_map(|rest| format!("http://127.0.0.1:1/{rest}"));
    let random = noise(20).prop_map(|bytes| text(&bytes).replace(':', ""));
    let bucket = words(&["bucket", "a/../b", "a b"]);
    let both = (prop_oneof![2 => endpoint, 1 => random], bucket);
    try_all(60, &both, |(endpoint, bucket)| {
        let mut settings = defaults();
        settings.s3.endpoint = Some(endpoint.clone());
        settings.s3.bucket = Some(bucket.clone());
        runtime.block_on(async {
            let probed = match Objects::new(&settings).await {
                Ok(objects) => objects.probe().await.map_err(|error| error.to_string()),
                Err(error) => Err(error.to_string()),
            };
            is_presentable(&probed.err().ok_or("the probe succeeded")?)
        })
    });
}

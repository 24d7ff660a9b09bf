//! Checks that the connections are encrypted: they carry passwords, short codes and keys.

use axum::http::Uri;
use redis::{ConnectionAddr, IntoConnectionInfo};
use secrecy::ExposeSecret;
use tokio_postgres::Client;

use super::{
    finding::{Outcome, ok, warning},
    upkeep::upkeep,
};
use crate::{config::Settings, printable::printable, problem::Problem, redis::address::Address};

/// How the connection to one of the servers is protected.
#[derive(Debug, PartialEq)]
enum Wire {
    Encrypted,
    /// A Unix socket or the loopback interface: it does not leave this machine.
    Local,
    /// Plain text, to this address.
    Plain(String),
    /// The server is unavailable or not configured; another check reports that.
    Unknown,
}

const NAMES: [&str; 3] = ["Postgres", "Redis", "S3"];
const REMEDIES: [&str; 3] = [
    "set sslmode=verify-full in the URL of Postgres, and postgres.ca_file",
    "use rediss:// in REDIS_URL, and set redis.ca_file",
    "use https:// in AWS_ENDPOINT_URL",
];

pub(super) async fn encryption(
    client: Option<&Client>,
    settings: &Settings,
) -> Result<Outcome, Problem> {
    let redis = settings.redis.current_url().map(|url| redis(url.expose_secret()));
    Ok(judge([
        postgres(client).await?,
        redis.unwrap_or(Wire::Unknown),
        s3(settings.s3.endpoint.as_deref()),
    ]))
}

fn judge(wires: [Wire; 3]) -> Outcome {
    let (mut plain, mut remedies, mut fine) = (Vec::new(), Vec::new(), Vec::new());
    for ((wire, name), remedy) in wires.into_iter().zip(NAMES).zip(REMEDIES) {
        match wire {
            Wire::Plain(to) => {
                plain.push(format!("{name} ({})", printable(&to)));
                remedies.push(remedy);
            }
            Wire::Encrypted => fine.push(format!("{name} encrypted")),
            Wire::Local => fine.push(format!("{name} on this machine")),
            Wire::Unknown => fine.push(format!("{name} not checked")),
        }
    }
    match plain.is_empty() {
        true => ok(fine.join(", ")),
        false => warning(format!("in plain text: {}", plain.join(", ")), remedies.join(", and ")),
    }
}

/// Reads what the session really uses: `sslmode=prefer` takes what the server offers.
async fn postgres(client: Option<&Client>) -> Result<Wire, Problem> {
    let Some(client) = client else {
        return Ok(Wire::Unknown);
    };
    let row = upkeep(client).await?;
    Ok(match (row.get("tls"), row.get("is_local")) {
        (true, _) => Wire::Encrypted,
        (false, true) => Wire::Local,
        (false, false) => Wire::Plain(row.get::<_, Option<String>>("address").unwrap_or_default()),
    })
}

/// Judges the first server of several that is not on this machine.
fn redis(url: &str) -> Wire {
    let address = Address::read(url);
    let wires = address.iter().flat_map(|address| address.urls()).map(redis_server);
    wires
        .reduce(|first, other| if first == Wire::Local { other } else { first })
        .unwrap_or(Wire::Unknown)
}

fn redis_server(url: &str) -> Wire {
    let info = url.into_connection_info();
    match info.as_ref().map(|info| info.addr()) {
        Ok(ConnectionAddr::Tcp(host, _)) if is_loopback(host) => Wire::Local,
        Ok(ConnectionAddr::Tcp(host, port)) => Wire::Plain(format!("{host}:{port}")),
        Ok(ConnectionAddr::TcpTls { .. }) => Wire::Encrypted,
        Ok(ConnectionAddr::Unix(_)) => Wire::Local,
        _ => Wire::Unknown,
    }
}

/// Without an endpoint it is AWS, with https.
fn s3(endpoint: Option<&str>) -> Wire {
    let Some(endpoint) = endpoint else {
        return Wire::Encrypted;
    };
    let uri = endpoint.parse::<Uri>();
    match uri.as_ref().map(|uri| (uri.scheme_str(), uri.host())) {
        Ok((Some("https"), _)) => Wire::Encrypted,
        Ok((Some("http"), Some(host))) if is_loopback(host) => Wire::Local,
        Ok((Some("http"), Some(host))) => Wire::Plain(host.into()),
        _ => Wire::Unknown,
    }
}

fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address = bare.parse::<std::net::IpAddr>();
    bare == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_text_is_for_loopback_and_sockets_only() {
        for url in ["redis://localhost", "redis://127.0.0.1:1", "redis://[::1]:1", "unix:///r.sock"]
        {
            assert_eq!(redis(url), Wire::Local, "{url}");
        }
        assert_eq!(redis("rediss://:secret@cache"), Wire::Encrypted);
        assert_eq!(redis("redis://:secret@cache"), Wire::Plain("cache:6379".into()));
        assert_eq!(s3(None), Wire::Encrypted);
        assert_eq!(s3(Some("https://s3.example")), Wire::Encrypted);
        assert_eq!(s3(Some("http://[::1]:9000")), Wire::Local);
        assert_eq!(s3(Some("http://minio:9000")), Wire::Plain("minio".into()));
    }

    #[test]
    fn each_connection_in_plain_text_is_named_with_its_own_remedy() {
        let plain = |host: &str| Wire::Plain(host.into());
        let text = format!("{:?}", judge([Wire::Encrypted, plain("cache"), plain("minio")]));
        assert!(text.contains("Warning") && text.contains("Redis (cache), S3 (minio)"), "{text}");
        assert!(text.contains("rediss://") && text.contains("https://"), "{text}");
        assert!(!text.contains("sslmode"), "{text}");
        let text = format!("{:?}", judge([plain("db"), Wire::Local, Wire::Unknown]));
        assert!(text.contains("Warning") && text.contains("sslmode=verify-full"), "{text}");
        assert!(format!("{:?}", judge([Wire::Local, Wire::Local, Wire::Unknown])).contains("Ok"));
    }
}

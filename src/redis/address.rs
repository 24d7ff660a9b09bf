//! The forms of `redis.url`: one server, the nodes of a Cluster, or Sentinels that know the master.

use percent_encoding::percent_decode_str;

/// The forms, for the error that refuses another one.
pub const FORMS: &str = "write redis://user:password@host:6379, redis+unix:///path, \
    redis+cluster://host1:6379,host2:6379 or redis+sentinel://host1:26379,host2:26379/name-of-the-master; \
    with rediss for TLS; percent-encode special characters in user and password";

/// What `redis.url` names. Each server is a URL of the form that the redis crate reads.
#[derive(Debug, PartialEq, Eq)]
pub enum Address {
    /// One server, over TCP or a Unix socket.
    Server(String),
    /// Some nodes of a Cluster, which know the others.
    Cluster(Vec<String>),
    /// Sentinels, which know the master.
    Sentinel(Sentinels),
}

/// Sentinels, and how to log in to them and to the master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sentinels {
    /// The Sentinels, without a login.
    pub urls: Vec<String>,
    /// The name of the master, as the Sentinels have it.
    pub master: String,
    /// A URL with the login and the database of the master, and any host.
    pub login: String,
    /// The login to the Sentinels themselves, which most have none of.
    pub own_user: Option<String>,
    /// Their password.
    pub own_password: Option<String>,
}

impl Address {
    /// Reads a URL. `None`: it has none of the forms. The redis crate checks the URLs themselves.
    pub fn read(url: &str) -> Option<Self> {
        let (scheme, rest) = url.split_once("://")?;
        let (tls, form) = match scheme.split_once('+') {
            Some(("redis", form @ ("cluster" | "sentinel"))) => ("redis", form),
            Some(("rediss", form @ ("cluster" | "sentinel"))) => ("rediss", form),
            _ => return Some(Self::Server(url.to_string())),
        };
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (format!("{login}@"), hosts),
            None => (String::new(), authority),
        };
        let hosts: Vec<&str> = hosts.split(',').collect();
        if hosts.contains(&"") {
            return None;
        }
        let urls = |login: &str, port| {
            let url = |host: &&str| format!("{tls}://{login}{}", with_port(host, port));
            hosts.iter().map(url).collect()
        };
        match (form, path) {
            ("cluster", "") => Some(Self::Cluster(urls(&login, 6379))),
            ("cluster", _) => None,
            (_, path) => {
                let (path, query) = path.split_once('?').unwrap_or((path, ""));
                let (master, database) = path.split_once('/').unwrap_or((path, "0"));
                let [own_user, own_password] = own_login(query)?;
                (!master.is_empty()).then(|| {
                    Self::Sentinel(Sentinels {
                        urls: urls("", 26379),
                        master: master.to_string(),
                        login: format!("{tls}://{login}localhost/{database}"),
                        own_user,
                        own_password,
                    })
                })
            }
        }
    }

    /// Returns a URL for each server that is named.
    pub fn urls(&self) -> Vec<&str> {
        match self {
            Self::Server(url) => vec![url],
            Self::Cluster(urls) | Self::Sentinel(Sentinels { urls, .. }) => {
                urls.iter().map(String::as_str).collect()
            }
        }
    }
}

/// Reads user and password of the Sentinels from the query of the URL. `None`: it has something else.
fn own_login(query: &str) -> Option<[Option<String>; 2]> {
    let mut login = [None, None];
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=')?;
        let place =
            ["sentinel_username", "sentinel_password"].iter().position(|own| *own == name)?;
        login[place] = Some(percent_decode_str(value).decode_utf8().ok()?.into_owned());
    }
    Some(login)
}

/// Adds the port to a host that has none; an IPv6 address is in brackets.
fn with_port(host: &str, port: u16) -> String {
    let after_address = host.rsplit_once(']').map_or(host, |(_, rest)| rest);
    match after_address.contains(':') {
        true => host.to_string(),
        false => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_cluster_share_the_login_and_have_a_default_port() {
        let nodes = ["redis://me:p%40ss@a:7000", "redis://me:p%40ss@b:6379"];
        let read = Address::read("redis+cluster://me:p%40ss@a:7000,b").expect("an address");
        assert_eq!(read, Address::Cluster(nodes.map(String::from).to_vec()));
        let read = Address::read("rediss+cluster://[::1],[::1]:7001").expect("an address");
        assert_eq!(read.urls(), ["rediss://[::1]:6379", "rediss://[::1]:7001"]);
    }

    #[test]
    fn the_login_is_for_the_master_and_not_for_its_sentinels() {
        let expected = Sentinels {
            urls: vec!["rediss://a:26379".into(), "rediss://b:1".into()],
            master: "main".into(),
            login: "rediss://:secret@localhost/2".into(),
            own_user: None,
            own_password: Some("a&b".into()),
        };
        let read =
            |own: &str| Address::read(&format!("rediss+sentinel://:secret@a,b:1/main/2{own}"));
        let without = Address::Sentinel(Sentinels { own_password: None, ..expected.clone() });
        assert_eq!(read(""), Some(without));
        assert_eq!(read("?sentinel_password=a%26b"), Some(Address::Sentinel(expected)));
        assert_eq!(read("?password=b"), None);
    }

    #[test]
    fn other_urls_are_left_to_the_redis_crate() {
        for url in ["redis://h", "rediss://h:1/2", "redis+unix:///run/r.sock", "unix:///run/r.sock"]
        {
            assert_eq!(Address::read(url), Some(Address::Server(url.into())));
        }
        for url in ["h:6379", "redis+cluster://", "redis+cluster://a,,b", "redis+cluster://a/1"] {
            assert_eq!(Address::read(url), None, "{url}");
        }
        for url in ["redis+sentinel://a", "redis+sentinel://a/", "rediss+sentinel:///main"] {
            assert_eq!(Address::read(url), None, "{url}");
        }
    }
}

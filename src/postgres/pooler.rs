//! What is in the place of Postgres: a pooler, with the way around it, or a database of another vendor.

use tokio_postgres::{Client, Error, config::Host, error::SqlState};

use super::Target;
use crate::problem::Problem;

const VENDOR: &str = sql!("session/vendor");

/// A pooler, as far as the host's name tells.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pooler {
    RdsProxy,
    /// Neon's, with the host to connect to instead.
    Neon(String),
    Other,
}

impl Pooler {
    fn of(host: &str) -> Self {
        let host = host.to_lowercase();
        let (first, rest) = host.split_once('.').unwrap_or((&host, ""));
        match first.strip_suffix("-pooler") {
            Some(endpoint) if rest.ends_with(".neon.tech") => {
                Self::Neon(format!("{endpoint}.{rest}"))
            }
            _ if rest.starts_with("proxy-")
                && rest.contains(".rds.")
                && rest.contains(".amazonaws.com") =>
            {
                Self::RdsProxy
            }
            _ => Self::Other,
        }
    }

    /// Returns its name, as the subject of a sentence.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::RdsProxy => "RDS Proxy",
            Self::Neon(_) => "Neon's pooler",
            Self::Other => "a pooler",
        }
    }

    pub(super) fn remedy(&self) -> String {
        match self {
            Self::RdsProxy => {
                "connect to the endpoint of the database cluster or instance, not to that \
                               of RDS Proxy"
                    .into()
            }
            Self::Neon(host) => format!("connect to {host}, the host without \"-pooler\""),
            Self::Other => {
                "connect to Postgres itself, or pool by session (PgBouncer: pool_mode = \
                            session) as described in ops/SECURITY.md"
                    .into()
            }
        }
    }
}

impl Target {
    /// Returns the pooler that the names of the hosts tell of.
    pub(super) fn pooler(&self) -> Pooler {
        let server = self.server();
        let names = server.config.get_hosts().iter().map(|host| match host {
            Host::Tcp(name) => Pooler::of(name),
            Host::Unix(_) => Pooler::Other,
        });
        names.into_iter().find(|pooler| *pooler != Pooler::Other).unwrap_or(Pooler::Other)
    }

    /// Returns the pooler that refused our sessions by this error.
    pub(super) fn refused_by(&self, error: &Error) -> Option<Pooler> {
        let refusal = error.as_db_error()?;
        // Only the messages tell: PgBouncer has one SQLSTATE for all that it refuses.
        match refusal.message() {
            text if text.contains("RDS Proxy") => Some(Pooler::RdsProxy),
            text if text.contains("startup parameter")
                && refusal.code() == &SqlState::PROTOCOL_VIOLATION =>
            {
                Some(self.pooler())
            }
            _ => None,
        }
    }
}

/// Refuses databases that speak Postgres's protocol and whose locks and transactions differ from its own.
pub(super) async fn check_vendor(target: &Target, client: &Client) -> Result<(), Problem> {
    let rows = client.query_typed(VENDOR, &[]).await.map_err(|error| target.explain(error))?;
    let Some(vendor) = rows.first().and_then(|row| row.get::<_, Option<&str>>("vendor")) else {
        return Ok(());
    };
    let problem =
        format!("it is {vendor}, whose locks and transactions differ from those of Postgres");
    Err(target.problem(problem, "use Postgres 15 or newer, without such extensions"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn poolers_are_known_by_their_hosts() {
        let proxy = "night.proxy-abc123.eu-west-1.rds.amazonaws.com";
        assert_eq!(Pooler::of(proxy), Pooler::RdsProxy);
        let china = "Night.proxy-abc.rds.cn-north-1.amazonaws.com.cn";
        assert_eq!(Pooler::of(china), Pooler::RdsProxy);
        let neon = Pooler::of("ep-cool-1-pooler.eu-central-1.aws.neon.tech");
        assert_eq!(neon, Pooler::Neon("ep-cool-1.eu-central-1.aws.neon.tech".into()));
        for other in ["night.abc123.eu-west-1.rds.amazonaws.com", "ep-1.aws.neon.tech", "db-pooler"]
        {
            assert_eq!(Pooler::of(other), Pooler::Other, "{other}");
        }
    }
}

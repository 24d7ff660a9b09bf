//! An answered COMMIT is on the synchronous standby, too: what is deleted afterwards is not brought
//! back by a failover. Postgres breaks that rule when the wait is cancelled (`pg_cancel_backend`):
//! it warns, and answers as if nothing was amiss.

use std::future::poll_fn;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Connection};
use tracing::warn;

/// The function of the server that waits and warns. Its words are translated, its name is not.
const WAITS: &str = "SyncRepWaitForLSN";

/// Carries a connection to its end; cuts it off before an answer that the server had to warn of.
/// The answer counts as lost then, and is looked into.
pub(super) async fn carry<S, T>(mut connection: Connection<S, T>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notice(notice) = message
            && notice.routine() == Some(WAITS)
        {
            warn!(
                "not believing a COMMIT that the standby has not confirmed: {}",
                notice.message()
            );
            return;
        }
    }
}

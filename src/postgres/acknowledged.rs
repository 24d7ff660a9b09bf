//! Rejects a COMMIT that the synchronous standby has not confirmed. The fleet relies on an acknowledged
//! COMMIT being on the standby, so that a failover cannot undo a decrement whose objects are deleted. If
//! the wait is cancelled (`pg_cancel_backend`), Postgres only warns and acknowledges the COMMIT anyway.

use std::future::poll_fn;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio_postgres::{AsyncMessage, Connection};
use tracing::warn;

/// The server function that waits and warns. The message may be translated, the name is not.
const WAIT_FUNCTION: &str = "SyncRepWaitForLSN";

/// Runs a connection until it closes. Closes it at the server's warning, before the answer arrives: the
/// answer then counts as lost, and the outcome is read back.
pub(super) async fn run<S, T>(mut connection: Connection<S, T>)
where
    S: AsyncRead + AsyncWrite + Unpin,
    T: AsyncRead + AsyncWrite + Unpin,
{
    while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
        if let AsyncMessage::Notice(notice) = message
            && notice.routine() == Some(WAIT_FUNCTION)
        {
            warn!(
                "closed a connection: the standby has not confirmed a COMMIT ({}); reading its outcome back",
                notice.message()
            );
            return;
        }
    }
}

//! An error of the driver for a connection that was not tried, because its password or a file of the
//! settings cannot be had. The pool knows only errors of the driver, which has no constructor for others.

use std::{
    error::Error as _,
    io,
    pin::Pin,
    task::{Context, Poll},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::{Config, Error, NoTls};

use crate::problem::Problem;

/// Returns the error that says so.
pub(super) async fn not_tried(problem: Problem) -> Error {
    match Config::new().user("nobody").connect_raw(Failing(problem), NoTls).await {
        Err(error) => error,
        Ok(_) => unreachable!("nothing can be written to it"),
    }
}

/// Returns why a connection was not tried, if that is the error.
pub(super) fn why_untried(error: &Error) -> Option<&Problem> {
    let error: &io::Error = error.source()?.downcast_ref()?;
    error.get_ref()?.downcast_ref()
}

/// A stream that fails with a problem.
struct Failing(Problem);

impl Failing {
    fn fail<T>(&self) -> Poll<io::Result<T>> {
        Poll::Ready(Err(io::Error::other(self.0.clone())))
    }
}

impl AsyncWrite for Failing {
    fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
        self.fail()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fail()
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.fail()
    }
}

impl AsyncRead for Failing {
    fn poll_read(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        _: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.fail()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::postgres::{Fault, PgError};

    #[tokio::test]
    async fn the_error_is_transient_and_keeps_the_words_and_the_remedy() {
        let problem = Problem::new("the command failed", "run it by hand");
        let error = not_tried(problem.clone()).await;
        assert_eq!(Fault::of(&error), Fault::Transient);
        assert_eq!(PgError::Backend(not_tried(problem.clone()).await).to_string(), problem.problem);
        assert_eq!(Problem::from(error), problem);
    }
}

//! The socket of an HTTP client of a proxy, watched: it can end in a reset, or without a word after so many answers.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::task::{Context, Poll, ready};

use hyper::rt::{Read, ReadBufCursor, Write};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;

/// What the socket and its requests tell each other.
#[derive(Debug, Default)]
pub(super) struct Line {
    /// It is to end in a reset.
    reset: AtomicBool,
    /// Answers handed over to their last byte.
    finished: AtomicU32,
    /// Those of them that have been written.
    written: AtomicU32,
}

impl Line {
    pub(super) fn reset(&self) {
        self.reset.store(true, Ordering::Relaxed);
    }

    pub(super) fn finish(&self) {
        self.finished.fetch_add(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(super) struct Wire {
    io: TokioIo<TcpStream>,
    line: Arc<Line>,
    answers_max: Option<u32>,
}

impl Wire {
    pub(super) fn new(stream: TcpStream, line: Arc<Line>, answers_max: Option<u32>) -> Wire {
        Wire { io: TokioIo::new(stream), line, answers_max }
    }
}

impl Read for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        if self.answers_max.is_some_and(|most| self.line.written.load(Ordering::Relaxed) >= most) {
            return Poll::Ready(Ok(())); // as if the client had left: hyper closes without another word
        }
        Pin::new(&mut self.io).poll_read(cx, buf)
    }
}

impl Write for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    /// hyper flushes once its own buffer is empty: what was finished has been written then.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        let finished = self.line.finished.load(Ordering::Relaxed);
        let before = self.line.written.swap(finished, Ordering::Relaxed);
        if before < finished && self.answers_max.is_some_and(|most| finished >= most) {
            cx.waker().wake_by_ref(); // it waits for the next request already, and is to read the end in its place
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.line.reset.load(Ordering::Relaxed) {
            return Poll::Ready(Ok(())); // an orderly end first would spoil the reset
        }
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if self.line.reset.load(Ordering::Relaxed) {
            let _ = self.io.inner().set_zero_linger();
        }
    }
}

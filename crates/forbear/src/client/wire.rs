//! A connection's bytes, counted, plain or through TLS.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use super::tls;

/// How many bytes went each way. The evidence for "nothing was written" and "not one byte came back".
#[derive(Debug, Default)]
pub(super) struct Traffic {
    read: AtomicU64,
    written: AtomicU64,
}

impl Traffic {
    pub(super) fn read(&self) -> u64 {
        self.read.load(Ordering::Relaxed)
    }

    pub(super) fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }
}

/// The stream below HTTP.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Stream,
    traffic: Arc<Traffic>,
}

#[derive(Debug)]
pub(super) enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
    /// To an origin, through an exit that is spoken to through TLS itself.
    TlsInTls(Box<TlsStream<TlsStream<TcpStream>>>),
}

impl Stream {
    /// Whether both ends agreed on HTTP/2.
    pub(super) fn speaks_h2(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(stream) => tls::speaks_h2(stream),
            Stream::TlsInTls(stream) => tls::speaks_h2(stream),
        }
    }
}

impl Wire {
    pub(super) fn new(stream: Stream) -> Wire {
        Wire { stream, traffic: Arc::default() }
    }

    pub(super) fn traffic(&self) -> Arc<Traffic> {
        Arc::clone(&self.traffic)
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let polled = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_read(cx, buf),
            Stream::TlsInTls(stream) => Pin::new(stream).poll_read(cx, buf),
        };
        self.traffic.read.fetch_add((buf.filled().len() - before) as u64, Ordering::Relaxed);
        polled
    }
}

impl Wire {
    fn wrote(&self, polled: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if let Poll::Ready(Ok(len)) = &polled {
            self.traffic.written.fetch_add(*len as u64, Ordering::Relaxed);
        }
        polled
    }
}

impl AsyncWrite for Wire {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let polled = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::Tls(stream) => Pin::new(stream).poll_write(cx, buf),
            Stream::TlsInTls(stream) => Pin::new(stream).poll_write(cx, buf),
        };
        self.wrote(polled)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let polled = match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::Tls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
            Stream::TlsInTls(stream) => Pin::new(stream).poll_write_vectored(cx, bufs),
        };
        self.wrote(polled)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
            Stream::TlsInTls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_flush(cx),
            Stream::TlsInTls(stream) => Pin::new(stream).poll_flush(cx),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.stream {
            Stream::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::Tls(stream) => Pin::new(stream).poll_shutdown(cx),
            Stream::TlsInTls(stream) => Pin::new(stream).poll_shutdown(cx),
        }
    }
}

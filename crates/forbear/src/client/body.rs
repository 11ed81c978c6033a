//! The body of an answer: decoded, bounded, and whole or a fault (V4).

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use http::header::{CONTENT_LENGTH, HeaderMap};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::Limits;
use super::clock::Clock;
use super::decode::{Broken, Decoding};
use super::fault::{Fault, FaultKind, Phase, Processed};
use super::h1::H1;
use super::h2 as http2;
use super::pool::{Pool, PoolKey};

/// A body may expand to [`RATIO_MAX`] times its size on the wire once it is longer than this: short ones do no harm.
const RATIO_FREE_BYTES: u64 = 1024 * 1024;

/// How far a body may expand by default. One layer of deflate cannot exceed 1032:1, so a file of zeros passes, while
/// layers on top of each other, Brotli and Zstandard, which reach thousands and millions, do not.
pub const RATIO_MAX: u32 = 1100;

/// The body of an answer, read in pieces.
///
/// The connection goes back to the pool when the body has ended well, and is closed in every other case: on a fault, and
/// when the body is dropped before its end.
pub struct Body {
    source: Source,
    decoding: Option<Decoding>,
    /// What broke before a byte of the body was read; told by the first piece.
    broken: Option<Broken>,
    clock: Clock,
    pieces: u64,
    received: u64,
    decoded: u64,
    body_max: u64,
    ratio_max: u32,
    announced: Option<u64>, // what Content-Length says of a body that is not coded
}

enum Source {
    /// Over: read to its end, failed, or empty from the start.
    Over,
    H1 {
        incoming: Incoming,
        connection: Box<H1>,
        pool: Arc<Pool>,
        key: PoolKey,
    },
    H2 {
        stream: RecvStream,
    },
}

impl Body {
    pub(super) fn h1(
        incoming: Incoming,
        connection: Box<H1>,
        pool: Arc<Pool>,
        key: PoolKey,
        headers: &HeaderMap,
        clock: Clock,
        limits: &Limits,
    ) -> Body {
        let announced = incoming.size_hint().exact();
        let empty = incoming.is_end_stream();
        Body::new(Source::H1 { incoming, connection, pool, key }, empty, announced, headers, clock, limits)
    }

    /// `bodiless`: whatever the fields say, there is no body (`HEAD`, 204, 304). The end of the stream may still be on
    /// its way.
    pub(super) fn h2(
        stream: RecvStream,
        bodiless: bool,
        headers: &HeaderMap,
        clock: Clock,
        limits: &Limits,
    ) -> Body {
        let empty = bodiless || stream.is_end_stream();
        let announced = headers.get(CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
        Body::new(Source::H2 { stream }, empty, announced, headers, clock, limits)
    }

    fn new(
        source: Source,
        empty: bool,
        announced: Option<u64>,
        headers: &HeaderMap,
        clock: Clock,
        limits: &Limits,
    ) -> Body {
        // The answer to HEAD, 204 and 304 describe a body that does not come.
        let decoding = if empty { Ok(None) } else { Decoding::of(headers) };
        let (decoding, broken) = match decoding {
            Ok(decoding) => (decoding, None),
            Err(broken) => (None, Some(broken)),
        };
        let announced = announced.filter(|_| !empty && decoding.is_none());
        Body {
            source,
            decoding,
            broken,
            clock,
            pieces: 0,
            received: 0,
            decoded: 0,
            body_max: limits.body_max,
            ratio_max: limits.ratio_max,
            announced,
        }
    }

    /// The next piece, decoded; `None` when the body has ended and is whole. After a fault there is nothing more.
    ///
    /// # Errors
    /// [`Phase::Body`] faults: it broke, it does not decode, it is too large, the deadline passed.
    ///
    /// # Cancel safety
    /// Safe: a piece is returned or still to come.
    pub async fn chunk(&mut self) -> Option<Result<Bytes, Fault>> {
        poll_fn(|cx| self.poll_chunk(cx)).await
    }

    /// All of it, if it has at most `len_max` bytes (and at most the limit it was asked for with).
    ///
    /// # Errors
    /// As [`Body::chunk`].
    ///
    /// # Cancel safety
    /// What was read is lost; the connection is closed when the body is dropped.
    pub async fn collect(&mut self, len_max: u64) -> Result<Bytes, Fault> {
        self.body_max = self.body_max.min(self.decoded.saturating_add(len_max));
        let Some(first) = self.chunk().await.transpose()? else { return Ok(Bytes::new()) };
        let Some(second) = self.chunk().await.transpose()? else { return Ok(first) };
        let mut whole = BytesMut::from(first);
        whole.extend_from_slice(&second);
        while let Some(piece) = self.chunk().await.transpose()? {
            whole.extend_from_slice(&piece);
        }
        Ok(whole.freeze())
    }

    /// Reads on to the end without decoding, so that the connection can serve again; after `len_max` more bytes of the
    /// wire, or at a fault, it is closed instead.
    pub async fn discard(mut self, len_max: u64) {
        let end = self.received.saturating_add(len_max);
        while self.received <= end {
            match poll_fn(|cx| self.poll_wire(cx)).await {
                Some(Ok(_)) => {}
                Some(Err(_)) | None => return,
            }
        }
    }

    /// Bytes of the body so far as they came, before decoding and without framing.
    pub fn received(&self) -> u64 {
        self.received
    }

    /// Bytes of the body so far, decoded.
    pub fn decoded(&self) -> u64 {
        self.decoded
    }

    fn poll_chunk(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        if let Some(broken) = self.broken.take() {
            return Poll::Ready(self.fail_because(FaultKind::Decode, broken));
        }
        if let Some(size) = self.announced.filter(|&size| size > self.body_max) {
            return Poll::Ready(self.fail(FaultKind::BodyTooLarge { limit: self.body_max, size }));
        }
        loop {
            match self.decoding.as_mut().map(Decoding::take) {
                Some(Ok(Some(piece))) => return Poll::Ready(self.pass(piece)),
                Some(Err(broken)) => return Poll::Ready(self.fail_because(FaultKind::Decode, broken)),
                Some(Ok(None)) | None => {}
            }
            match (ready!(self.poll_wire(cx)), &mut self.decoding) {
                (Some(Ok(data)), Some(decoding)) => decoding.feed(data),
                (Some(Ok(data)), None) => return Poll::Ready(self.pass(data)),
                (Some(Err(fault)), _) => return Poll::Ready(self.end(fault)),
                (None, Some(decoding)) if !decoding.is_complete() => {
                    return Poll::Ready(self.fail(FaultKind::BodyShort));
                }
                (None, _) => return Poll::Ready(None),
            }
        }
    }

    /// Counts a decoded piece, and lets it through if it is within bounds.
    fn pass(&mut self, piece: Bytes) -> Option<Result<Bytes, Fault>> {
        self.decoded += piece.len() as u64;
        if self.decoded > self.body_max {
            return self.fail(FaultKind::BodyTooLarge { limit: self.body_max, size: self.decoded });
        }
        let ratio_bytes_max = self.received.saturating_mul(u64::from(self.ratio_max)).max(RATIO_FREE_BYTES);
        if self.decoded > ratio_bytes_max {
            return self.fail(FaultKind::RatioExceeded { limit: self.ratio_max });
        }
        Some(Ok(piece))
    }

    /// The next piece as it comes from the connection. At the end the connection is given back.
    fn poll_wire(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            let data = match &mut self.source {
                Source::Over => return Poll::Ready(None),
                Source::H1 { incoming, connection, .. } => connection.poll_data(incoming, cx),
                Source::H2 { stream } => http2::poll_data(stream, cx),
            };
            match data {
                Poll::Ready(Some(Ok(data))) => {
                    if data.is_empty() {
                        continue;
                    }
                    self.received += data.len() as u64;
                    // A fast sender never lets us wait for the timer, so the clock must be read now and then.
                    self.pieces += 1;
                    if self.pieces.is_multiple_of(16) && Instant::now() >= self.clock.deadline() {
                        return Poll::Ready(self.fail(FaultKind::TimedOut));
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Poll::Ready(Some(Err(fault))) => return Poll::Ready(self.end(fault)),
                Poll::Ready(None) => {
                    self.give_back();
                    return Poll::Ready(None);
                }
                Poll::Pending => {
                    let _elapsed = ready!(self.clock.poll_elapsed(cx));
                    return Poll::Ready(self.fail(FaultKind::TimedOut));
                }
            }
        }
    }

    /// Ends the body before it is read where it is empty, so that the connection is free even if nobody reads.
    pub(super) fn settle(&mut self) {
        if let Source::H1 { incoming, .. } = &self.source
            && incoming.is_end_stream()
        {
            self.give_back();
        }
    }

    fn give_back(&mut self) {
        if let Source::H1 { mut connection, pool, key, .. } =
            std::mem::replace(&mut self.source, Source::Over)
            && connection.is_reusable()
        {
            pool.put(key, connection);
        }
    }

    #[cold]
    fn fail(&mut self, kind: FaultKind) -> Option<Result<Bytes, Fault>> {
        self.end(Fault::new(kind, Phase::Body, Processed::Unknown))
    }

    #[cold]
    fn fail_because(&mut self, kind: FaultKind, broken: Broken) -> Option<Result<Bytes, Fault>> {
        self.end(Fault::new(kind, Phase::Body, Processed::Unknown).because(broken))
    }

    /// Nothing comes after a fault, and the connection is closed.
    fn end(&mut self, fault: Fault) -> Option<Result<Bytes, Fault>> {
        self.announced = None;
        self.decoding = None;
        self.source = Source::Over;
        Some(Err(fault))
    }
}

impl fmt::Debug for Body {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Body")
            .field("received", &self.received)
            .field("decoded", &self.decoded)
            .finish_non_exhaustive()
    }
}

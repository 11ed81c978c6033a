//! The body of an answer: decoded, bounded, and whole or a fault (V4).

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::{Bytes, BytesMut};
use http_body::Body as _;
use hyper::body::Incoming;
use tokio::time::Instant;

use super::clock::Clock;
use super::fault::{Fault, FaultKind, Phase, Processed};
use super::h1::{self, H1};
use super::pool::{Pool, PoolKey};

/// The body of an answer, read in pieces.
///
/// The connection goes back to the pool when the body has ended well, and is closed in every other case: on a fault, and
/// when the body is dropped before its end.
pub struct Body {
    source: Source,
    clock: Clock,
    received: u64,
    decoded: u64,
    body_max: u64,
    announced: Option<u64>, // what Content-Length says the decoded size will be
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
}

impl Body {
    pub(super) fn h1(
        incoming: Incoming,
        connection: Box<H1>,
        pool: Arc<Pool>,
        key: PoolKey,
        clock: Clock,
        body_max: u64,
    ) -> Body {
        let announced = incoming.size_hint().exact();
        Body {
            source: Source::H1 { incoming, connection, pool, key },
            clock,
            received: 0,
            decoded: 0,
            body_max,
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
        if let Some(size) = self.announced.filter(|&size| size > self.body_max) {
            return Poll::Ready(self.fail(FaultKind::BodyTooLarge { limit: self.body_max, size }));
        }
        let Some(piece) = ready!(self.poll_wire(cx)) else { return Poll::Ready(None) };
        let piece = match piece {
            Ok(piece) => piece,
            Err(fault) => return Poll::Ready(Some(Err(fault))),
        };
        self.decoded += piece.len() as u64;
        if self.decoded > self.body_max {
            let too_large = FaultKind::BodyTooLarge { limit: self.body_max, size: self.decoded };
            return Poll::Ready(self.fail(too_large));
        }
        Poll::Ready(Some(Ok(piece)))
    }

    /// The next piece as it comes from the connection. At the end the connection is given back.
    fn poll_wire(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Bytes, Fault>>> {
        loop {
            let frame = match &mut self.source {
                Source::Over => return Poll::Ready(None),
                Source::H1 { incoming, connection, .. } => connection
                    .poll_frame(incoming, cx)
                    .map(|frame| frame.map(|frame| frame.map_err(h1::body_fault))),
            };
            match frame {
                Poll::Ready(Some(Ok(frame))) => {
                    let Ok(data) = frame.into_data() else { continue }; // trailers say nothing that we use
                    if data.is_empty() {
                        continue;
                    }
                    self.received += data.len() as u64;
                    // A fast sender never lets us wait, so the clock must be read as well.
                    if Instant::now() >= self.clock.deadline() {
                        return Poll::Ready(self.fail(FaultKind::TimedOut));
                    }
                    return Poll::Ready(Some(Ok(data)));
                }
                Poll::Ready(Some(Err(fault))) => {
                    self.source = Source::Over;
                    return Poll::Ready(Some(Err(fault)));
                }
                Poll::Ready(None) => {
                    self.give_back(cx);
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
    pub(super) fn settle(&mut self, cx: &mut Context<'_>) {
        if let Source::H1 { incoming, .. } = &self.source
            && incoming.is_end_stream()
        {
            self.give_back(cx);
        }
    }

    fn give_back(&mut self, cx: &mut Context<'_>) {
        if let Source::H1 { mut connection, pool, key, .. } =
            std::mem::replace(&mut self.source, Source::Over)
            && connection.is_reusable(cx)
        {
            pool.put(key, connection);
        }
    }

    #[cold]
    fn fail(&mut self, kind: FaultKind) -> Option<Result<Bytes, Fault>> {
        self.announced = None;
        self.source = Source::Over;
        Some(Err(Fault::new(kind, Phase::Body, Processed::Unknown)))
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

//! One deadline for all of an attempt.

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use forbear_core::time::Timestamp;
use tokio::time::{Instant, Sleep, sleep_until};

/// The wall clock, against which the dates of an answer are set that has none of its own (H3).
pub(super) fn wall() -> Timestamp {
    Timestamp::ZERO.plus(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The deadline was reached.
#[derive(Debug)]
pub(super) struct Elapsed;

/// A timer that every phase of an attempt shares. It touches the runtime's timer only when something really waits.
#[derive(Debug)]
pub(super) struct Clock {
    sleep: Pin<Box<Sleep>>,
}

impl Clock {
    pub(super) fn until(deadline: Instant) -> Clock {
        Clock { sleep: Box::pin(sleep_until(deadline)) }
    }

    pub(super) fn deadline(&self) -> Instant {
        self.sleep.deadline()
    }

    /// Waits for `future`, at most until the deadline.
    pub(super) async fn within<F: Future>(&mut self, future: F) -> Result<F::Output, Elapsed> {
        let mut future = pin!(future);
        std::future::poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Ok(output)),
            Poll::Pending => self.poll_elapsed(cx).map(Err),
        })
        .await
    }

    pub(super) fn poll_elapsed(&mut self, cx: &mut Context<'_>) -> Poll<Elapsed> {
        self.sleep.as_mut().poll(cx).map(|()| Elapsed)
    }
}

//! A body that keeps its request's place on the wire (C2) until it has ended, failed or was dropped.

use std::{
    pin::Pin,
    task::{Context, Poll, ready},
};

use forbear_core::{hint::Reading, outcome::Outcome, verdict::Verdict};
use forbear_store::gate::{AnyGates, GateStore, StoreError};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::{Item, Pass, Received, Report};

pin_project! {
    /// A response's body. It is the inner body, frame by frame; when that has ended, the gate hears of it.
    pub struct Held<B, G: GateStore = AnyGates> {
        #[pin]
        body: B,
        place: Place<G>,
    }
}

/// The place on the wire, and what is reported of it in the end.
struct Place<G: GateStore>(Option<(Pass<G>, Item, Reading)>);

impl<G: GateStore> Place<G> {
    fn leave(&mut self, outcome: Outcome) {
        if let Some((pass, mut item, reading)) = self.0.take() {
            pass.close(&mut item, outcome, matches!(outcome, Outcome::Success).then_some(&reading));
        }
    }
}

impl<G: GateStore> Drop for Place<G> {
    fn drop(&mut self) {
        // The server has served it; whoever asked has read enough.
        self.leave(Outcome::Success);
    }
}

impl<B, G: GateStore> Held<B, G> {
    /// Reports what the head says, and keeps the rest for the body: a refusal counts at once, and so does a budget that is
    /// used up; a success holds its place until it is complete.
    pub(super) async fn after_head(
        pass: Pass<G>,
        item: &mut Item,
        status: u16,
        headers: &http::HeaderMap,
        body: B,
    ) -> Result<(Report, Held<B, G>), StoreError> {
        let received = Received::new(status, headers);
        let (outcome, reading) = pass.read(item, received);
        if matches!(outcome, Outcome::Success) && !reading.limited {
            let held = Held { body, place: Place(Some((pass, item.clone(), reading))) };
            return Ok((Report { verdict: Verdict::Done, outcome }, held));
        }
        let report = pass.answered(item, received).await?;
        Ok((report, Held { body, place: Place(None) }))
    }
}

impl<B: Body, G: GateStore> Body for Held<B, G> {
    type Data = B::Data;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<B::Data>, B::Error>>> {
        let this = self.project();
        let frame = ready!(this.body.poll_frame(cx));
        match &frame {
            Some(Ok(_)) => {}
            Some(Err(_)) => this.place.leave(Outcome::NO_ANSWER), // V4: a short body is no success
            None => this.place.leave(Outcome::Success),
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl<B, G: GateStore> std::fmt::Debug for Held<B, G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Held").field("holds", &self.place.0.is_some()).finish_non_exhaustive()
    }
}

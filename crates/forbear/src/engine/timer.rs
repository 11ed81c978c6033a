//! Wakes a worker when the next lane is due.
//!
//! A thread of its own, since a condition variable keeps a deadline to some fifty microseconds and the runtime's timer
//! only to a millisecond: at 500 starts a second that would be a third of the pace.

use std::{sync::Arc, thread, time::Instant};

use parking_lot::{Condvar, Mutex};

/// The deadline, and whoever waits for it.
#[derive(Clone, Debug, Default)]
pub(super) struct Timer {
    inner: Arc<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    at: Option<Instant>,
    stopped: bool,
}

impl Timer {
    /// Starts the thread; `fire` is called whenever the deadline has passed, and must not block.
    pub(super) fn start(&self, fire: impl Fn() + Send + 'static) -> std::io::Result<()> {
        let inner = self.inner.clone();
        thread::Builder::new().name("forbear-timer".into()).spawn(move || {
            let mut state = inner.state.lock();
            while !state.stopped {
                match state.at {
                    None => inner.changed.wait(&mut state),
                    Some(at) if at > Instant::now() => {
                        let _ = inner.changed.wait_until(&mut state, at);
                    }
                    Some(_) => {
                        state.at = None;
                        parking_lot::MutexGuard::unlocked(&mut state, &fire);
                    }
                }
            }
        })?;
        Ok(())
    }

    /// Sets the deadline, unless an earlier one is set.
    pub(super) fn arm(&self, at: Instant) {
        let mut state = self.inner.state.lock();
        if state.at.is_none_or(|set| at < set) {
            state.at = Some(at);
            self.inner.changed.notify_one();
        }
    }

    /// Ends the thread.
    pub(super) fn stop(&self) {
        self.inner.state.lock().stopped = true;
        self.inner.changed.notify_one();
    }
}

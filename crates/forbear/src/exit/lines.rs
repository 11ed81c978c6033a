//! Who waits for an exit: one line for each origin and account, of which only the first asks. Items that wait for an exit of
//! their own stand apart.
//!
//! What holds up the first of a line holds up all of it. So a thousand that wait cost one question each time that something
//! changes, and not a thousand.

use std::{collections::BTreeMap, fmt, ops::Bound, sync::Arc};

use forbear_core::exit::ExitId;
use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

type Key = (Arc<str>, Option<Arc<str>>, Option<ExitId>);

/// The lines that somebody stands in.
#[derive(Default)]
pub(super) struct Lines(Mutex<BTreeMap<Key, Arc<Line>>>);

#[derive(Default)]
struct Line {
    turn: tokio::sync::Mutex<()>,
    /// Keeps one call for whoever comes to the front next.
    news: Notify,
}

/// A place in a line; the line goes away with the last of them.
pub(super) struct Place<'a> {
    lines: &'a Lines,
    key: Key,
    line: Arc<Line>,
}

impl Lines {
    pub(super) fn join(&self, origin: &str, account: Option<&Arc<str>>, own: Option<ExitId>) -> Place<'_> {
        let key = (Arc::from(origin), account.cloned(), own);
        let line = self.0.lock().entry(key.clone()).or_default().clone();
        Place { lines: self, key, line }
    }

    /// Calls the first of each line at these origins.
    pub(super) fn wake_at(&self, origins: &[Arc<str>]) {
        if origins.is_empty() {
            return;
        }
        let lines = self.0.lock();
        for origin in origins {
            let from = Bound::Included((origin.clone(), None, None));
            let of_origin =
                lines.range((from, Bound::Unbounded)).take_while(|((known, ..), _)| known == origin);
            of_origin.for_each(|(_, line)| line.news.notify_one());
        }
    }

    /// Calls the first of every line.
    pub(super) fn wake_all(&self) {
        self.0.lock().values().for_each(|line| line.news.notify_one());
    }
}

impl Place<'_> {
    /// Waits to be the first.
    pub(super) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.line.turn.lock().await
    }

    /// Waits for a call.
    pub(super) async fn news(&self) {
        self.line.news.notified().await;
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock();
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.key); // the table's and this one: nobody else stands in it
        }
    }
}

impl fmt::Debug for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lines").field(&self.0.lock().len()).finish()
    }
}

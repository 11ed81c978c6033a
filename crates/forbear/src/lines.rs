//! Who waits for the right to send: one line for each origin and whatever else tells waiters apart, of which only the first
//! asks.
//!
//! What holds up the first of a line holds up all of it. So a thousand that wait cost one question each time that something
//! changes, and not a thousand.

use std::{collections::BTreeMap, fmt, ops::Bound, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::{MutexGuard, Notify};

/// The lines that somebody stands in, by origin and `K`, of which the default is the least.
pub(crate) struct Lines<K>(Mutex<Table<K>>);

type Table<K> = BTreeMap<(Arc<str>, K), Arc<Line>>;

#[derive(Default)]
struct Line {
    turn: tokio::sync::Mutex<()>,
    /// Keeps one call for whoever comes to the front next.
    news: Notify,
}

/// A place in a line; the line goes away with the last of them.
pub(crate) struct Place<'a, K: Ord> {
    lines: &'a Lines<K>,
    key: (Arc<str>, K),
    line: Arc<Line>,
}

impl<K> Default for Lines<K> {
    fn default() -> Lines<K> {
        Lines(Mutex::default())
    }
}

impl<K: Ord + Clone + Default> Lines<K> {
    pub(crate) fn join(&self, origin: &str, of: K) -> Place<'_, K> {
        let key = (Arc::from(origin), of);
        let line = self.0.lock().entry(key.clone()).or_default().clone();
        Place { lines: self, key, line }
    }

    /// Calls the first of each line at these origins.
    pub(crate) fn wake_at(&self, origins: &[Arc<str>]) {
        if origins.is_empty() {
            return;
        }
        let lines = self.0.lock();
        for origin in origins {
            let from = Bound::Included((origin.clone(), K::default()));
            let of_origin =
                lines.range((from, Bound::Unbounded)).take_while(|((known, ..), _)| known == origin);
            of_origin.for_each(|(_, line)| line.news.notify_one());
        }
    }

    /// Calls the first of every line.
    pub(crate) fn wake_all(&self) {
        self.0.lock().values().for_each(|line| line.news.notify_one());
    }
}

impl<K: Ord> Place<'_, K> {
    /// Waits to be the first.
    pub(crate) async fn turn(&self) -> MutexGuard<'_, ()> {
        self.line.turn.lock().await
    }

    /// Waits for a call.
    pub(crate) async fn news(&self) {
        self.line.news.notified().await;
    }
}

impl<K: Ord> Drop for Place<'_, K> {
    fn drop(&mut self) {
        let mut lines = self.lines.0.lock();
        if Arc::strong_count(&self.line) == 2 {
            lines.remove(&self.key); // the table's and this one: nobody else stands in it
        }
    }
}

impl<K> fmt::Debug for Lines<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Lines").field(&self.0.lock().len()).finish()
    }
}

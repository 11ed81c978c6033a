//! Which item is next: a bounded window of lanes, ready ones in turn, waiting ones on a timer (C3, J3).
//!
//! A *lane* is a queue of items that share all their scopes, so what holds up the first of them holds up all. A lane that
//! must wait takes no worker: it stands on the timer, or on a scope's list until a request of that scope comes back.

use std::{
    cmp::{Ordering, Reverse},
    collections::{BinaryHeap, HashMap, VecDeque},
    hash::Hash,
};

use crate::{scope::ScopeKey, time::Timestamp};

/// The items of a job that are at hand, lane by lane. `K` names a lane, `T` is an item.
#[derive(Debug)]
pub struct Frontier<K, T> {
    lanes: HashMap<K, Lane<T>>,
    /// Lanes to be asked next, each at most once.
    ready: VecDeque<K>,
    timers: BinaryHeap<Reverse<Timer<K>>>,
    blocked: HashMap<ScopeKey, VecDeque<K>>,
    loads: VecDeque<K>,
    at_hand: usize,
    held: usize,
    /// Lanes whose page is on its way.
    loading: usize,
    order: u64,
    /// A lane asks for its next page when it has fewer items than this at hand.
    low: usize,
}

#[derive(Debug)]
struct Lane<T> {
    page: VecDeque<T>,
    held: BinaryHeap<Reverse<Held<T>>>,
    in_flight: u32,
    until: Timestamp,
    timer: Timestamp,
    blocked: bool,
    /// It was let go for a place in this scope, for which others wait too: whether or not it takes the place, they are
    /// asked next.
    turn: Option<ScopeKey>,
    queued: bool,
    /// The store may have more of it.
    more: bool,
    loading: bool,
}

#[derive(Debug)]
struct Held<T> {
    at: Timestamp,
    order: u64,
    item: T,
}

#[derive(Debug, Eq, PartialEq)]
struct Timer<K> {
    at: Timestamp,
    order: u64,
    lane: K,
}

impl<K: Copy + Eq + Hash, T> Default for Frontier<K, T> {
    fn default() -> Frontier<K, T> {
        Frontier::new()
    }
}

impl<K: Copy + Eq + Hash, T> Frontier<K, T> {
    /// No lanes.
    #[must_use]
    pub fn new() -> Frontier<K, T> {
        Frontier {
            lanes: HashMap::new(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            blocked: HashMap::new(),
            loads: VecDeque::new(),
            at_hand: 0,
            held: 0,
            loading: 0,
            order: 0,
            low: 1,
        }
    }

    /// Sets at how few items a lane asks for its next page, so that what is at hand of all lanes together stays bounded.
    pub fn set_low(&mut self, items: usize) {
        self.low = items.max(1);
    }

    /// Takes a lane into the window, or hears that one which is in it has more items in the store.
    pub fn open(&mut self, lane: K) {
        self.lanes.entry(lane).or_insert_with(Lane::empty).more = true;
        self.want_page(lane);
    }

    /// Takes in what the store had for a lane that asked for it; `more` says whether it may have more.
    pub fn loaded(&mut self, lane: K, items: impl IntoIterator<Item = T>, more: bool) {
        let Some(entry) = self.lanes.get_mut(&lane) else { return };
        let before = entry.page.len();
        entry.page.extend(items);
        self.at_hand += entry.page.len() - before;
        entry.more = more;
        self.loading -= usize::from(std::mem::replace(&mut entry.loading, false));
        self.queue(lane);
        self.drop_if_done(lane);
    }

    /// Puts an item in a lane that the store knows nothing of, such as that of a redirect's target.
    pub fn put(&mut self, lane: K, item: T) {
        self.lanes.entry(lane).or_insert_with(Lane::empty).page.push_back(item);
        self.at_hand += 1;
        self.queue(lane);
    }

    /// The next lane that wants a page from the store.
    pub fn next_load(&mut self) -> Option<K> {
        self.loads.pop_front()
    }

    /// The next item of a lane that may be asked now, and its lane; the lane counts it as in flight until
    /// [`Frontier::finished`], [`Frontier::defer`] or [`Frontier::block`].
    pub fn next(&mut self, now: Timestamp) -> Option<(K, T)> {
        self.expire(now);
        while let Some(lane) = self.ready.pop_front() {
            let Some(entry) = self.lanes.get_mut(&lane) else { continue };
            entry.queued = false;
            if entry.blocked {
                continue; // it is on a scope's list
            }
            if entry.until > now {
                // Its timer may have rung already, for somebody whose clock was read a little later.
                let until = entry.until;
                self.set_timer(lane, until);
                continue;
            }
            let due = entry.held.peek().is_some_and(|Reverse(held)| held.at <= now);
            let item = if due {
                self.held -= 1;
                entry.held.pop().map(|Reverse(held)| held.item)
            } else {
                entry.page.pop_front()
            };
            if let Some(item) = item {
                self.at_hand -= 1;
                entry.in_flight += 1;
                if entry.page.len() < self.low {
                    self.want_page(lane);
                }
                self.queue(lane); // behind the others: one lane starves nobody
                return Some((lane, item));
            }
            self.settle(lane);
        }
        None
    }

    /// The item may not start before `until`, and neither may the others of its lane.
    pub fn defer(&mut self, lane: K, item: T, until: Timestamp) {
        self.put_back(lane, item);
        if let Some(entry) = self.lanes.get_mut(&lane) {
            entry.until = until;
            self.set_timer(lane, until);
        }
        self.pass_turn(lane);
    }

    /// The item may not start before a request of `scope` comes back.
    pub fn block(&mut self, lane: K, item: T, scope: &ScopeKey) {
        self.put_back(lane, item);
        let Some(entry) = self.lanes.get_mut(&lane) else { return };
        let turn = entry.turn.take();
        if !std::mem::replace(&mut entry.blocked, true) {
            let waiting = self.blocked.entry(scope.clone()).or_default();
            if turn.as_ref() == Some(scope) {
                waiting.push_front(lane); // it was asked in vain: it stays the first
            } else {
                waiting.push_back(lane);
            }
        }
        if let Some(other) = turn.filter(|turn| turn != scope) {
            self.unblock_one(&other);
        }
    }

    /// [`Frontier::block`], but not beyond `until`: then it is asked in any case.
    pub fn block_until(&mut self, lane: K, item: T, scope: &ScopeKey, until: Timestamp) {
        self.block(lane, item, scope);
        self.set_timer(lane, until);
    }

    /// Whether the lane's next item was let go for a place in a scope for which other lanes wait as well.
    #[must_use]
    pub fn has_turn(&self, lane: K) -> bool {
        self.lanes.get(&lane).is_some_and(|entry| entry.turn.is_some())
    }

    /// The lane's item has started: there may be a place for the next lane too, as where the cap has grown.
    pub fn pass_turn(&mut self, lane: K) {
        if let Some(scope) = self.lanes.get_mut(&lane).and_then(|entry| entry.turn.take()) {
            self.unblock_one(&scope);
        }
    }

    /// Keeps an item in hand that may not start before `at`, while the others of its lane go on (P6).
    pub fn hold(&mut self, lane: K, item: T, at: Timestamp) {
        let order = self.next_order();
        let entry = self.lanes.entry(lane).or_insert_with(Lane::empty);
        entry.held.push(Reverse(Held { at, order, item }));
        self.at_hand += 1;
        self.held += 1;
        self.settle(lane);
    }

    /// A request of the lane has come back, or its item went elsewhere. Lanes that waited for a place in one of `scopes`
    /// are asked again, one for each.
    pub fn finished<'s>(&mut self, lane: K, scopes: impl IntoIterator<Item = &'s ScopeKey>) {
        if let Some(entry) = self.lanes.get_mut(&lane) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
        }
        if !self.blocked.is_empty() {
            for scope in scopes {
                self.unblock_one(scope);
            }
        }
        self.drop_if_done(lane);
    }

    /// Something that was not a request of `scope` has made room in it: the next lane that waits there is asked again.
    pub fn freed(&mut self, scope: &ScopeKey) {
        self.unblock_one(scope);
    }

    /// The lane's scope has changed: it is asked again at once.
    pub fn wake(&mut self, lane: K) {
        if let Some(entry) = self.lanes.get_mut(&lane) {
            entry.until = Timestamp::ZERO;
            self.queue(lane);
        }
    }

    /// Everything that is at hand, for giving back to the store, each item with the moment when it would be due; nothing
    /// is left.
    pub fn drain(&mut self) -> Vec<(T, Timestamp)> {
        let mut all = Vec::with_capacity(self.at_hand);
        for entry in self.lanes.drain().map(|(_, entry)| entry) {
            let until = entry.until;
            all.extend(entry.held.into_iter().map(|Reverse(held)| (held.item, held.at.max(until))));
            all.extend(entry.page.into_iter().map(|item| (item, until)));
        }
        *self = Frontier::new();
        all
    }

    /// Takes a waiting lane out of the window with everything at hand of it, if nothing of it is in flight; the lane
    /// whose time is furthest away. It makes room for a lane that is ready.
    pub fn evict(&mut self, now: Timestamp) -> Option<(K, Vec<T>, Timestamp)> {
        let idle = |entry: &Lane<T>| entry.in_flight == 0 && !entry.loading && entry.until > now;
        let lane =
            self.lanes.iter().filter(|(_, e)| idle(e)).max_by_key(|(_, e)| e.until).map(|(lane, _)| *lane)?;
        self.pass_turn(lane);
        let entry = self.lanes.remove(&lane)?;
        self.at_hand -= entry.page.len() + entry.held.len();
        self.held -= entry.held.len();
        let held = entry.held.into_iter().map(|Reverse(held)| held.item);
        Some((lane, held.chain(entry.page).collect(), entry.until))
    }

    /// Whether [`Frontier::next`] has something to look at now.
    #[must_use]
    pub fn is_ready(&self, now: Timestamp) -> bool {
        !self.ready.is_empty() || self.timers.peek().is_some_and(|Reverse(timer)| timer.at <= now)
    }

    /// When to ask again if nothing happens before. Timers of lanes that were woken and are gone say nothing: a run that has
    /// nothing else to wait for is over.
    #[must_use]
    pub fn next_timer(&mut self) -> Option<Timestamp> {
        while let Some(Reverse(timer)) = self.timers.peek() {
            if self.lanes.get(&timer.lane).is_some_and(|entry| entry.timer == timer.at) {
                return Some(timer.at);
            }
            self.timers.pop();
        }
        None
    }

    /// Whether the lane is in the window.
    #[must_use]
    pub fn has(&self, lane: K) -> bool {
        self.lanes.contains_key(&lane)
    }

    /// Lanes in the window.
    #[must_use]
    pub fn lanes(&self) -> usize {
        self.lanes.len()
    }

    /// Items at hand that are not in flight.
    #[must_use]
    pub fn at_hand(&self) -> usize {
        self.at_hand
    }

    /// Items at hand of one lane, and until when it waits.
    #[must_use]
    pub fn waiting(&self, lane: K) -> Option<(usize, Timestamp)> {
        self.lanes.get(&lane).map(|entry| (entry.page.len() + entry.held.len(), entry.until))
    }

    /// Whether a page is on its way, so that more may be at hand in a moment.
    #[must_use]
    pub fn is_loading(&self) -> bool {
        self.loading > 0
    }

    /// Items kept in hand for a time of their own.
    #[must_use]
    pub fn held(&self) -> usize {
        self.held
    }

    fn put_back(&mut self, lane: K, item: T) {
        if let Some(entry) = self.lanes.get_mut(&lane) {
            entry.in_flight = entry.in_flight.saturating_sub(1);
            entry.page.push_front(item);
            self.at_hand += 1;
        }
    }

    /// Puts the lane where it belongs when it was found with nothing to take.
    fn settle(&mut self, lane: K) {
        let Some(entry) = self.lanes.get(&lane) else { return };
        if !entry.page.is_empty() {
            self.queue(lane);
        } else if let Some(Reverse(held)) = entry.held.peek() {
            let at = held.at.max(entry.until);
            self.set_timer(lane, at);
        }
        self.want_page(lane);
        self.drop_if_done(lane);
    }

    fn queue(&mut self, lane: K) {
        if let Some(entry) = self.lanes.get_mut(&lane)
            && !entry.queued
            && !entry.blocked
            && (!entry.page.is_empty() || !entry.held.is_empty())
        {
            entry.queued = true;
            self.ready.push_back(lane);
        }
    }

    fn want_page(&mut self, lane: K) {
        if let Some(entry) = self.lanes.get_mut(&lane)
            && entry.more
            && !entry.loading
            && entry.page.len() < self.low
        {
            entry.loading = true;
            self.loading += 1;
            self.loads.push_back(lane);
        }
    }

    fn set_timer(&mut self, lane: K, at: Timestamp) {
        let order = self.next_order();
        if let Some(entry) = self.lanes.get_mut(&lane)
            && (entry.timer == Timestamp::ZERO || entry.timer != at)
        {
            entry.timer = at;
            self.timers.push(Reverse(Timer { at, order, lane }));
        }
    }

    fn expire(&mut self, now: Timestamp) {
        while let Some(Reverse(timer)) = self.timers.peek() {
            if timer.at > now {
                return;
            }
            let lane = timer.lane;
            if let Some(entry) = self.lanes.get_mut(&lane)
                && entry.timer == timer.at
            {
                entry.timer = Timestamp::ZERO;
                entry.blocked = false; // its entry on the scope's list is passed over
            }
            self.timers.pop();
            self.queue(lane);
        }
    }

    fn unblock_one(&mut self, scope: &ScopeKey) {
        while let Some(waiting) = self.blocked.get_mut(scope) {
            let Some(lane) = waiting.pop_front() else {
                self.blocked.remove(scope);
                return;
            };
            let others = !waiting.is_empty();
            if let Some(entry) = self.lanes.get_mut(&lane)
                && entry.blocked
            {
                entry.blocked = false;
                entry.turn = others.then(|| scope.clone());
                self.queue(lane);
                if !others {
                    self.blocked.remove(scope);
                }
                return;
            }
        }
    }

    fn drop_if_done(&mut self, lane: K) {
        let done =
            |e: &Lane<T>| e.in_flight == 0 && e.page.is_empty() && e.held.is_empty() && !e.more && !e.loading;
        if self.lanes.get(&lane).is_some_and(done) {
            self.lanes.remove(&lane);
        }
    }

    fn next_order(&mut self) -> u64 {
        self.order += 1;
        self.order
    }
}

impl<T> Lane<T> {
    fn empty() -> Lane<T> {
        Lane {
            page: VecDeque::new(),
            held: BinaryHeap::new(),
            in_flight: 0,
            until: Timestamp::ZERO,
            timer: Timestamp::ZERO,
            blocked: false,
            turn: None,
            queued: false,
            more: false,
            loading: false,
        }
    }
}

impl<T> PartialEq for Held<T> {
    fn eq(&self, other: &Held<T>) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T> Eq for Held<T> {}

impl<T> PartialOrd for Held<T> {
    fn partial_cmp(&self, other: &Held<T>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Held<T> {
    fn cmp(&self, other: &Held<T>) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

impl<K: Eq> PartialOrd for Timer<K> {
    fn partial_cmp(&self, other: &Timer<K>) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<K: Eq> Ord for Timer<K> {
    fn cmp(&self, other: &Timer<K>) -> Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c3_a_lane_that_cannot_use_its_turn_holds_up_nobody() {
        let (mut frontier, t) = (Frontier::new(), Timestamp::from_secs(1000));
        let (origin, account) = (ScopeKey::from_text("http://a"), ScopeKey::from_text("http://a account=x"));
        for lane in [1, 2, 3, 4] {
            frontier.put(lane, "item");
        }
        assert_eq!(frontier.next(t), Some((1, "item")));
        for _ in [2, 3, 4] {
            let (lane, item) = frontier.next(t).unwrap();
            frontier.block(lane, item, &origin);
        }
        // The only request comes back. The first that waits has lost its account meanwhile, the second its own place.
        frontier.finished(1, [&origin]);
        let (lane, item) = frontier.next(t).unwrap();
        assert_eq!((lane, frontier.has_turn(lane)), (2, true));
        frontier.defer(lane, item, Timestamp::MAX);
        let (lane, item) = frontier.next(t).unwrap();
        assert_eq!((lane, frontier.has_turn(lane)), (3, true));
        frontier.block(lane, item, &account);
        assert_eq!(frontier.next(t), Some((4, "item")), "nobody else is in flight to let it go");
        assert!(!frontier.has_turn(4), "nobody waits for the origin any more");
    }

    #[test]
    fn c2_where_the_cap_has_grown_the_next_lane_goes_too() {
        let (mut frontier, t, origin) =
            (Frontier::new(), Timestamp::from_secs(1000), ScopeKey::from_text("http://a"));
        for lane in [1, 2, 3, 4] {
            frontier.put(lane, "item");
        }
        assert_eq!(frontier.next(t), Some((1, "item")));
        for _ in [2, 3, 4] {
            let (lane, item) = frontier.next(t).unwrap();
            frontier.block(lane, item, &origin);
        }
        frontier.finished(1, [&origin]);
        assert_eq!(frontier.next(t), Some((2, "item")));
        frontier.pass_turn(2);
        let (lane, item) = frontier.next(t).unwrap();
        frontier.block(lane, item, &origin); // there was room for one alone
        frontier.pass_turn(lane);
        assert_eq!((lane, frontier.next(t)), (3, None));
        frontier.finished(2, [&origin]);
        assert_eq!(frontier.next(t), Some((3, "item")), "who was asked in vain stays the first");
    }

    #[test]
    fn c3_a_worker_whose_clock_was_read_earlier_loses_no_lane() {
        let (mut frontier, early) = (Frontier::new(), Timestamp::from_secs(1000));
        let late = early.plus(std::time::Duration::from_micros(1));
        for item in ["one", "two"] {
            frontier.put(1, item);
        }
        let (lane, item) = frontier.next(late).unwrap();
        frontier.defer(lane, item, late); // at once: something has changed meanwhile
        let (lane, item) = frontier.next(late).unwrap();
        assert_eq!((lane, item, frontier.next(early)), (1, "one", None), "the lane waits for its time");
        frontier.hold(lane, item, late);
        assert_eq!(frontier.next_timer(), Some(late), "and is not forgotten");
        assert!(frontier.next(late).is_some());
    }

    #[test]
    fn c3_a_lane_blocked_until_a_time_is_asked_then_in_any_case() {
        let (mut frontier, t, exits) =
            (Frontier::new(), Timestamp::from_secs(1000), ScopeKey::from_text("exits"));
        for lane in [1, 2] {
            frontier.put(lane, "item");
        }
        let soon = t.plus(std::time::Duration::from_secs(3));
        for _ in 0..2 {
            let (lane, item) = frontier.next(t).unwrap();
            frontier.block_until(lane, item, &exits, soon.plus(std::time::Duration::from_secs(lane)));
        }
        assert_eq!(
            (frontier.next(t), frontier.next_timer()),
            (None, Some(soon.plus(std::time::Duration::from_secs(1))))
        );
        frontier.freed(&exits);
        assert_eq!(frontier.next(t), Some((1, "item")), "called before its time");
        frontier.pass_turn(1);
        let (lane, item) = frontier.next(t).unwrap();
        frontier.block_until(lane, item, &exits, soon);
        assert_eq!(frontier.next(soon), Some((2, "item")), "nobody called, and its time has come");
    }

    #[test]
    fn x2_a_lane_that_was_woken_and_is_done_leaves_no_timer() {
        let (mut frontier, t) = (Frontier::new(), Timestamp::from_secs(1000));
        for lane in [1, 2] {
            frontier.put(lane, "item");
        }
        for _ in 0..2 {
            let (lane, item) = frontier.next(t).unwrap();
            frontier.defer(lane, item, t.plus(std::time::Duration::from_secs(15 * lane)));
        }
        assert_eq!(frontier.next_timer(), Some(t.plus(std::time::Duration::from_secs(15))));
        frontier.wake(1);
        assert_eq!(frontier.next(t), Some((1, "item")));
        frontier.finished(1, []);
        assert_eq!(
            frontier.next_timer(),
            Some(t.plus(std::time::Duration::from_secs(30))),
            "the other one's"
        );
    }
}

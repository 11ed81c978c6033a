//! What was sent and let through, and when it was refused: small enough to keep, exact enough to test a hypothesis on.

/// A moment, and how many had been let through by then.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Knot {
    pub(super) at: f64,
    pub(super) count: f64,
}

/// A refusal that began an incident, or met a probe.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Seen {
    /// When the request was sent.
    pub(super) at: f64,
    /// It probed.
    pub(super) probe: bool,
    /// The wait that was told, in seconds; negative where none was.
    pub(super) told: f32,
}

/// The accepted starts as a curve of few knots, and the last refusals.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct History {
    knots: [Knot; KNOTS],
    len: u8,
    /// The last start.
    last: Knot,
    /// Slopes from the last knot that come within [`NEAR`] of every start since.
    slopes: (f64, f64),
    seen: [Seen; REFUSALS],
    seen_len: u8,
    /// A refusal had to be forgotten.
    lost: bool,
}

/// The first incidents of a scope, kept for good: then the limit had counted nothing yet, which says most about it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Opening {
    knots: [(f32, f32); OPENING],
    len: u8,
    seen: [Seen; FIRSTS],
    seen_len: u8,
    /// It is the scope's beginning, and not that of a process or of another limit.
    fresh: bool,
}

impl Opening {
    pub(super) fn new() -> Opening {
        Opening {
            knots: [(0.0, 0.0); OPENING],
            len: 0,
            seen: [Seen::default(); FIRSTS],
            seen_len: 0,
            fresh: true,
        }
    }

    /// Keeps what it can of a past that is still whole.
    pub(super) fn keep(&mut self, history: &History) {
        let knots = usize::from(history.len) + 1;
        if !self.fresh || history.begins() > 0.0 || knots > OPENING || history.seen().len() > FIRSTS {
            return;
        }
        for (kept, knot) in self.knots.iter_mut().zip(history.curve()) {
            *kept = (knot.at as f32, knot.count as f32);
        }
        self.seen[..history.seen().len()].copy_from_slice(history.seen());
        (self.len, self.seen_len) = (knots as u8, history.seen_len);
    }

    /// What came first says nothing of the limit that there is.
    pub(super) fn forget(&mut self) {
        (self.len, self.seen_len, self.fresh) = (0, 0, false);
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    pub(super) fn all(&self) -> (Vec<Knot>, &[Seen]) {
        let knots = self.knots[..usize::from(self.len)].iter();
        let knots = knots.map(|(at, count)| Knot { at: f64::from(*at), count: f64::from(*count) });
        (knots.collect(), &self.seen[..usize::from(self.seen_len)])
    }
}

impl History {
    pub(super) fn new() -> History {
        History {
            knots: [Knot::default(); KNOTS],
            len: 1,
            last: Knot::default(),
            slopes: (0.0, f64::INFINITY),
            seen: [Seen::default(); REFUSALS],
            seen_len: 0,
            lost: false,
        }
    }

    /// So many had been let through by `at`, evenly, as far as anybody knows.
    pub(super) fn join(&mut self, at: f64, count: f64) {
        self.last = Knot { at, count };
        if at > 0.0 {
            self.slopes = ((count - NEAR).max(0.0) / at, (count + NEAR) / at);
        }
    }

    /// A request starts, and counts for `cost`.
    pub(super) fn started(&mut self, at: f64, cost: f64) {
        let next = Knot { at, count: self.last.count + cost };
        let from = self.knots[usize::from(self.len) - 1];
        let dt = at - from.at;
        let rise = next.count - from.count;
        let near = NEAR + 0.002 * rise;
        let (low, high) = if dt > 0.0 {
            ((rise - near) / dt, (rise + near) / dt)
        } else if rise <= near {
            (0.0, f64::INFINITY)
        } else {
            (f64::INFINITY, f64::INFINITY)
        };
        let slopes = (self.slopes.0.max(low), self.slopes.1.min(high));
        if slopes.0 <= slopes.1 {
            self.slopes = slopes;
        } else {
            let knot = self.last;
            self.push(knot);
            let dt = at - knot.at;
            self.slopes =
                if dt > 0.0 { ((1.0 - NEAR).max(0.0) / dt, (1.0 + NEAR) / dt) } else { (0.0, f64::INFINITY) };
        }
        self.last = next;
    }

    /// A probe starts: whatever holds for it must show on the curve.
    pub(super) fn probed(&mut self, at: f64) {
        let before = self.last;
        if before.at > self.knots[usize::from(self.len) - 1].at {
            self.push(before);
        }
        self.push(Knot { at, count: before.count });
        self.last = Knot { at, count: before.count + 1.0 };
        self.slopes = (0.0, f64::INFINITY);
    }

    fn push(&mut self, knot: Knot) {
        if usize::from(self.len) == KNOTS {
            self.forget_one();
        }
        self.knots[usize::from(self.len)] = knot;
        self.len += 1;
    }

    /// Drops the oldest knot.
    fn forget_one(&mut self) {
        self.knots.copy_within(1.., 0);
        self.len -= 1;
    }

    /// When the curve begins.
    pub(super) fn begins(&self) -> f64 {
        self.knots[0].at
    }

    /// A request that had started at `at` was refused; the `first` one of an incident is where the curve breaks off.
    pub(super) fn refused(&mut self, at: f64, first: bool) {
        if first && at > self.knots[usize::from(self.len) - 1].at {
            let before = self.count(at) - 1.0;
            self.push(Knot { at, count: before.max(self.knots[usize::from(self.len) - 1].count) });
            self.last.count = (self.last.count - 1.0).max(before);
            self.slopes = (0.0, f64::INFINITY);
            return;
        }
        let len = usize::from(self.len);
        for knot in self.knots[..len].iter_mut().filter(|knot| knot.at >= at) {
            knot.count -= 1.0;
        }
        self.last.count -= 1.0;
        let from = self.knots[len - 1];
        self.last.count = self.last.count.max(from.count);
        self.slopes.0 = 0.0;
    }

    /// Keeps a refusal for the hypotheses.
    pub(super) fn keep(&mut self, seen: Seen) {
        if usize::from(self.seen_len) == REFUSALS {
            self.seen.copy_within(1.., 0);
            self.seen_len -= 1;
            self.lost = true;
        }
        self.seen[usize::from(self.seen_len)] = seen;
        self.seen_len += 1;
    }

    /// Whether it does not go back to the first refusal any more.
    pub(super) fn has_lost(&self) -> bool {
        self.lost
    }

    pub(super) fn seen(&self) -> &[Seen] {
        &self.seen[..usize::from(self.seen_len)]
    }

    /// How many had been let through by `at`.
    pub(super) fn count(&self, at: f64) -> f64 {
        let knots = &self.knots[..usize::from(self.len)];
        let after = knots.partition_point(|knot| knot.at <= at);
        let Some(a) = after.checked_sub(1).map(|i| knots[i]) else { return knots[0].count };
        let b = knots.get(after).copied().unwrap_or(self.last);
        if at >= b.at || b.at <= a.at {
            return if at >= b.at { b.count } else { a.count };
        }
        a.count + (b.count - a.count) * (at - a.at) / (b.at - a.at)
    }

    /// The curve from its beginning to the last start.
    pub(super) fn curve(&self) -> impl Iterator<Item = Knot> + '_ {
        self.knots[..usize::from(self.len)].iter().copied().chain(std::iter::once(self.last))
    }

    pub(super) fn last(&self) -> Knot {
        self.last
    }
}

const KNOTS: usize = 96;
const REFUSALS: usize = 24;
/// And of the first incidents.
const OPENING: usize = 41;
const FIRSTS: usize = 10;
/// The curve is at most so many starts off.
const NEAR: f64 = 1.0;

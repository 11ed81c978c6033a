//! Windows: fixed, sliding log, sliding counter.

use std::collections::VecDeque;
use std::time::Duration;

use super::{Budget, Refusal, Rule};

/// `limit` requests in each window; all come back at once at its end.
#[derive(Clone, Debug)]
pub(crate) struct FixedWindow {
    limit: u32,
    window: Duration,
    phase: Phase,
    start: Option<Duration>,
    used: u32,
}

/// Where a fixed window's edges lie.
#[derive(Clone, Copy, Debug)]
enum Phase {
    /// At multiples of the window since the Unix epoch; holds the time since the last edge at server start.
    Aligned(Duration),
    /// A window begins with the first request after the last one ended.
    FirstRequest,
}

impl FixedWindow {
    /// Edges at multiples of `window` since the epoch; `epoch` is the Unix time at server start.
    pub(crate) fn aligned(limit: u32, window: Duration, epoch: Duration) -> FixedWindow {
        let lead = Duration::from_nanos((epoch.as_nanos() % window.as_nanos()) as u64);
        FixedWindow { limit, window, phase: Phase::Aligned(lead), start: None, used: 0 }
    }

    /// A window that begins with a request.
    pub(crate) fn from_first_request(limit: u32, window: Duration) -> FixedWindow {
        FixedWindow { limit, window, phase: Phase::FirstRequest, start: None, used: 0 }
    }

    /// Time since the start of the current window, after the counter has been turned over if a new one began.
    fn age(&mut self, now: Duration) -> Duration {
        let age = match self.phase {
            Phase::Aligned(lead) => {
                let since = (now + lead).as_nanos() % self.window.as_nanos();
                Duration::from_nanos(since as u64)
            }
            Phase::FirstRequest => match self.start {
                Some(start) if now.saturating_sub(start) < self.window => now.saturating_sub(start),
                _ => {
                    self.start = None;
                    self.used = 0;
                    return Duration::ZERO;
                }
            },
        };
        // Kept with the lead of the first window added, so that it cannot be negative.
        if let Phase::Aligned(lead) = self.phase {
            let start = (now + lead).saturating_sub(age);
            if self.start != Some(start) {
                self.start = Some(start);
                self.used = 0;
            }
        }
        age
    }
}

impl Rule for FixedWindow {
    fn test(&mut self, now: Duration) -> bool {
        self.age(now);
        self.used < self.limit
    }

    fn take(&mut self, now: Duration) {
        self.age(now);
        self.start = self.start.or(Some(now));
        self.used = self.used.saturating_add(1);
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        let age = self.age(now);
        Refusal::after(self.window - age)
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        let age = self.age(now);
        Some(Budget {
            limit: u64::from(self.limit),
            remaining: u64::from(self.limit.saturating_sub(self.used)),
            reset: self.window - age,
            window: self.window,
        })
    }
}

/// Remembers every request of the last window: never more than `limit` in any of them.
#[derive(Clone, Debug)]
pub(crate) struct SlidingLog {
    limit: u32,
    window: Duration,
    /// The last `limit` counted requests, oldest first; older ones can no longer matter.
    log: VecDeque<Duration>,
    rejected_count: bool,
}

impl SlidingLog {
    pub(crate) fn new(limit: u32, window: Duration, rejected_count: bool) -> SlidingLog {
        SlidingLog { limit, window, log: VecDeque::new(), rejected_count }
    }

    fn forget(&mut self, now: Duration) {
        while self.log.front().is_some_and(|at| *at + self.window <= now) {
            self.log.pop_front();
        }
    }

    fn count(&mut self, now: Duration) {
        if self.log.len() >= self.limit as usize {
            self.log.pop_front();
        }
        self.log.push_back(now);
    }
}

impl Rule for SlidingLog {
    fn test(&mut self, now: Duration) -> bool {
        self.forget(now);
        self.log.len() < self.limit as usize
    }

    fn take(&mut self, now: Duration) {
        self.count(now);
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        if self.rejected_count {
            self.count(now);
        }
        Refusal::after(self.log.front().map_or(Duration::ZERO, |at| (*at + self.window).saturating_sub(now)))
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        self.forget(now);
        Some(Budget {
            limit: u64::from(self.limit),
            remaining: (self.limit as usize).saturating_sub(self.log.len()) as u64,
            reset: self.log.back().map_or(Duration::ZERO, |at| (*at + self.window).saturating_sub(now)),
            window: self.window,
        })
    }
}

/// Remembers what every request of the last window cost: never more than `limit` in any of them, as services of language
/// models count tokens. One that costs more than all of it is never served.
#[derive(Clone, Debug)]
pub(crate) struct CostLog {
    limit: u32,
    window: Duration,
    log: VecDeque<(Duration, u32)>,
    used: u64,
    /// What the request costs that is asked about.
    asked: u32,
}

impl CostLog {
    pub(crate) fn new(limit: u32, window: Duration) -> CostLog {
        CostLog { limit, window, log: VecDeque::new(), used: 0, asked: 1 }
    }

    fn forget(&mut self, now: Duration) {
        while let Some((_, cost)) = self.log.pop_front_if(|(at, _)| *at + self.window <= now) {
            self.used -= u64::from(cost);
        }
    }

    fn left(&self) -> u64 {
        u64::from(self.limit).saturating_sub(self.used)
    }
}

impl Rule for CostLog {
    fn weigh(&mut self, cost: u32) {
        self.asked = cost;
    }

    fn test(&mut self, now: Duration) -> bool {
        self.forget(now);
        u64::from(self.asked) <= self.left()
    }

    fn take(&mut self, now: Duration) {
        self.log.push_back((now, self.asked));
        self.used += u64::from(self.asked);
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        // Until enough of the oldest has left the window.
        let mut left = self.left();
        for (at, cost) in &self.log {
            left += u64::from(*cost);
            if left >= u64::from(self.asked) {
                return Refusal::after((*at + self.window).saturating_sub(now));
            }
        }
        Refusal::after(self.window)
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        self.forget(now);
        Some(Budget {
            limit: u64::from(self.limit),
            remaining: self.left(),
            reset: self.log.back().map_or(Duration::ZERO, |(at, _)| (*at + self.window).saturating_sub(now)),
            window: self.window,
        })
    }
}

/// Two counters, the last window's weighted by how much of it still overlaps: cheap, and soft at the edge.
#[derive(Clone, Debug)]
pub(crate) struct SlidingCounter {
    limit: u32,
    window: Duration,
    lead: Duration,
    index: u64,
    last: u32,
    current: u32,
    rejected_count: bool,
}

impl SlidingCounter {
    /// `epoch` is the Unix time at server start: the two counters turn over at multiples of the window.
    pub(crate) fn new(limit: u32, window: Duration, epoch: Duration, rejected_count: bool) -> SlidingCounter {
        let lead = Duration::from_nanos((epoch.as_nanos() % window.as_nanos()) as u64);
        SlidingCounter { limit, window, lead, index: 0, last: 0, current: 0, rejected_count }
    }

    /// Time since the last edge.
    fn turn(&mut self, now: Duration) -> Duration {
        let at = (now + self.lead).as_nanos();
        let index = (at / self.window.as_nanos()) as u64;
        match index.saturating_sub(self.index) {
            0 => {}
            1 => self.last = std::mem::take(&mut self.current),
            _ => (self.last, self.current) = (0, 0),
        }
        self.index = index;
        Duration::from_nanos((at % self.window.as_nanos()) as u64)
    }

    /// The estimate in request-nanoseconds: `last` over the part that still overlaps, and all of `current`.
    fn level(&self, age: Duration) -> u128 {
        u128::from(self.last) * (self.window - age).as_nanos()
            + u128::from(self.current) * self.window.as_nanos()
    }

    /// From an edge on, until `older` weighs no more than `room`.
    fn fades(&self, older: u32, room: u32) -> Duration {
        if older <= room {
            return Duration::ZERO;
        }
        let spare = u128::from(room) * self.window.as_nanos() / u128::from(older);
        self.window - Duration::from_nanos(spare as u64)
    }
}

impl Rule for SlidingCounter {
    fn test(&mut self, now: Duration) -> bool {
        let age = self.turn(now);
        self.level(age) + self.window.as_nanos() <= u128::from(self.limit) * self.window.as_nanos()
    }

    fn take(&mut self, now: Duration) {
        self.turn(now);
        self.current = self.current.saturating_add(1);
    }

    fn refuse(&mut self, now: Duration) -> Refusal {
        let age = self.turn(now);
        if self.rejected_count {
            self.current = self.current.saturating_add(1);
        }
        let from_edge = if self.current < self.limit {
            self.fades(self.last, self.limit - 1 - self.current)
        } else {
            self.window + self.fades(self.current, self.limit - 1)
        };
        Refusal::after(from_edge.saturating_sub(age))
    }

    fn budget(&mut self, now: Duration) -> Option<Budget> {
        let age = self.turn(now);
        let room = (u128::from(self.limit) * self.window.as_nanos()).saturating_sub(self.level(age));
        let quiet = if self.current > 0 { self.window * 2 } else { self.window };
        let used = self.current > 0 || self.last > 0;
        Some(Budget {
            limit: u64::from(self.limit),
            remaining: (room / self.window.as_nanos()) as u64,
            reset: if used { quiet - age } else { Duration::ZERO },
            window: self.window,
        })
    }
}

//! How many requests of a scope may be on the wire at once (C2).
//!
//! The cap starts small and doubles with every full round of successes. Half-way between what went well and what was
//! refused is remembered as a ceiling, and the cap passes it only after ever more successes, so a server that takes one
//! request at a time is not asked for two again and again.

/// The requests of one scope that are on the wire, and how many there may be.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct InFlight {
    // Sixteen bits each: a gate is small, and nobody has more connections to one server.
    pub(crate) current: u16,
    pub(crate) cap: u16,
    /// Above it the cap grows by one at a time.
    pub(crate) ceiling: u16,
    /// The most that a full round went well with.
    pub(crate) good: u16,
    pub(crate) successes: u32,
    /// How many rounds of successes it takes to pass the ceiling, as a power of two.
    pub(crate) patience: u8,
    /// The ceiling was passed, and nothing was refused since.
    pub(crate) passed: bool,
    /// When the cap grew last, in milliseconds, wrapping.
    pub(crate) grown_ms: u16,
}

impl InFlight {
    /// Nothing in flight; at most `start` may be.
    #[must_use]
    pub fn new(start: u32) -> InFlight {
        InFlight {
            current: 0,
            cap: narrow(start).max(1),
            ceiling: u16::MAX,
            good: 0,
            successes: 0,
            grown_ms: 0,
            patience: MIN_PATIENCE,
            passed: false,
        }
    }

    /// The nearest that can be, of one that came from elsewhere.
    pub(crate) fn sound(mut self) -> InFlight {
        (self.cap, self.ceiling) = (self.cap.max(1), self.ceiling.max(1));
        self.patience = self.patience.clamp(MIN_PATIENCE, MAX_PATIENCE);
        self
    }

    /// Takes a place on the wire; [`InFlight::is_full`] has been asked before.
    pub fn take(&mut self) {
        self.current = self.current.saturating_add(1);
    }

    /// Gives a place back, whatever became of the request.
    pub fn release(&mut self) {
        self.current = self.current.saturating_sub(1);
    }

    /// A request came back well at `now_ms` (milliseconds of any clock, wrapping): the cap grows, up to `max`.
    pub fn succeeded(&mut self, max: u32, now_ms: u32) {
        let max = narrow(max);
        if self.cap >= max {
            return;
        }
        self.successes += 1;
        let round = u32::from(self.cap);
        if self.cap < self.ceiling {
            // One more for each success doubles the cap with each round, and a slow answer holds up nothing. But from eight
            // on it doubles in a tenth of a second at the fastest: with a server that answers in milliseconds, all that is
            // on the wire when it refuses the first request is refused as well.
            let now_ms = now_ms as u16;
            if self.cap < FREELY || now_ms.wrapping_sub(self.grown_ms) >= GROWTH_MS / self.cap {
                self.cap = (self.cap + 1).min(max);
                self.grown_ms = now_ms;
            }
            if self.successes >= round {
                (self.successes, self.good) = (0, self.good.max(self.cap / 2));
            }
            return;
        }
        if self.successes < round << self.patience {
            return;
        }
        self.successes = 0;
        self.good = self.good.max(self.cap);
        self.cap = self.cap.saturating_add(1).min(max);
        self.ceiling = self.cap;
        if std::mem::replace(&mut self.passed, true) {
            self.patience = self.patience.saturating_sub(1).max(MIN_PATIENCE);
        }
    }

    /// A new incident met `at` requests on the wire: fewer from now on, and carefully back.
    pub fn refused(&mut self, at: u32) {
        let at = narrow(at);
        let below = at.saturating_sub(1).max(1);
        if std::mem::take(&mut self.passed) {
            self.patience = (self.patience + 1).min(MAX_PATIENCE);
        }
        if at <= self.good {
            self.good = at / 2; // what went well once does so no more
        }
        self.ceiling = (self.good + below).div_ceil(2).clamp(1, below).min(self.ceiling);
        self.cap = (self.cap / 2).clamp(1, below);
        self.successes = 0;
    }

    /// The server is overloaded: half as many (the ceiling stays, for overload passes).
    pub fn overloaded(&mut self) {
        self.cap = (self.cap / 2).max(1);
        self.successes = 0;
    }

    /// After a pause the way back starts with one at a time.
    pub fn reopened(&mut self) {
        self.cap = 1;
        self.successes = 0;
    }

    /// Whether the cap, or `max` if that is lower, is reached.
    #[must_use]
    pub fn is_full(&self, max: u32) -> bool {
        self.current >= self.cap.min(narrow(max))
    }

    /// Requests on the wire.
    #[must_use]
    pub fn current(&self) -> u32 {
        u32::from(self.current)
    }

    /// The present cap.
    #[must_use]
    pub fn cap(&self) -> u32 {
        u32::from(self.cap)
    }
}

fn narrow(n: u32) -> u16 {
    u16::try_from(n).unwrap_or(u16::MAX)
}

/// Up to here the cap grows with every success.
const FREELY: u16 = 8;
/// Above, it grows by one in this time divided by the cap, so it doubles in a tenth of a second (144 ms times ln 2).
const GROWTH_MS: u16 = 144;
/// Passing a ceiling takes at least eight rounds.
const MIN_PATIENCE: u8 = 3;
/// And at most 4,096 of them, or a limit that has risen would never be found.
const MAX_PATIENCE: u8 = 12;

#[cfg(test)]
mod tests {
    use super::*;

    /// Drives a server that takes `limit` at once for `rounds` full rounds; returns how often it refused.
    fn drive(limit: u32, rounds: u32) -> (u32, u32) {
        let (mut flight, mut refused, mut now_ms) = (InFlight::new(4), 0, 0);
        for _ in 0..rounds {
            let at = flight.cap();
            if at > limit {
                refused += 1;
                flight.refused(at);
                flight.reopened();
            } else {
                now_ms += 200;
                (0..at).for_each(|i| flight.succeeded(64, now_ms + i * 200));
            }
        }
        (flight.cap(), refused)
    }

    #[test]
    fn c2_the_cap_is_found_and_rarely_passed() {
        for limit in [1, 2, 5, 20, 63] {
            let (cap, refused) = drive(limit, 1000);
            assert!(cap <= limit + 1 && cap * 2 > limit, "limit {limit}: cap {cap}");
            assert!(refused <= 12, "limit {limit}: refused {refused} times in 1000 rounds");
        }
        assert_eq!(drive(1000, 20), (64, 0), "never above the configured maximum");
    }

    #[test]
    fn c2_a_place_is_held_from_take_to_release() {
        let mut flight = InFlight::new(2);
        flight.take();
        assert!(!flight.is_full(64));
        flight.take();
        assert!(flight.is_full(64));
        flight.release();
        flight.release();
        flight.release();
        assert_eq!(flight.current(), 0, "one release too many does no harm");
        assert!(flight.is_full(0));
    }

    #[test]
    fn b4_a_fast_server_is_not_overrun() {
        let mut flight = InFlight::new(4);
        (0..200u32).for_each(|i| flight.succeeded(64, i / 2));
        assert!((12..=18).contains(&flight.cap()), "twice eight after a tenth of a second: {}", flight.cap());
    }
}

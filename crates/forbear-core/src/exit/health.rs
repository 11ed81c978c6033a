//! What an exit did at one origin lately (E1, E3).

use crate::time::Timestamp;

/// The last 64 outcomes of one exit at one origin, of which those younger than 120 s count (E1).
///
/// ```
/// use forbear_core::{exit::Health, time::Timestamp};
/// let (mut health, t) = (Health::default(), Timestamp::from_secs(1_000));
/// for _ in 0..4 { health.succeeded(t); }
/// for _ in 0..6 { health.refused(t); }
/// assert_eq!(health.heat(t), 0.6);
/// assert_eq!(health.success_rate(t), Some(0.4));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Health {
    /// Fourteen bits of whole seconds, two of what happened; the oldest is overwritten.
    events: [u16; WINDOW],
    next: u8,
    len: u8,
    /// How many of them are no successes; most exits have none.
    bad: u8,
    /// In whole seconds: after a while without events the fourteen bits would come round again.
    last_s: u32,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Event {
    Success,
    Refused,
    Blocked,
    Fault,
}

impl Default for Health {
    fn default() -> Health {
        Health { events: [0; WINDOW], next: 0, len: 0, bad: 0, last_s: 0 }
    }
}

impl Health {
    /// It served.
    pub fn succeeded(&mut self, now: Timestamp) {
        self.note(Event::Success, now);
    }

    /// It was told to slow down.
    pub fn refused(&mut self, now: Timestamp) {
        self.note(Event::Refused, now);
    }

    /// It was told that it is unwanted.
    pub fn blocked(&mut self, now: Timestamp) {
        self.note(Event::Blocked, now);
    }

    /// It failed.
    pub fn failed(&mut self, now: Timestamp) {
        self.note(Event::Fault, now);
    }

    /// The share of refused and blocked outcomes, from 0 to 1, of at least eight: a first stray refusal heats little (E3).
    #[must_use]
    pub fn heat(&self, now: Timestamp) -> f64 {
        let (mut hot, mut all) = (0u32, 0u32);
        for event in self.young(now) {
            all += 1;
            hot += u32::from(matches!(event, Event::Refused | Event::Blocked));
        }
        f64::from(hot) / f64::from(all.max(HEAT_OF_AT_LEAST))
    }

    /// The share of successes; nothing where nothing happened lately.
    #[must_use]
    pub fn success_rate(&self, now: Timestamp) -> Option<f64> {
        if self.bad == 0 {
            return (self.len > 0 && seconds(now).saturating_sub(self.last_s) <= AGE_S).then_some(1.0);
        }
        let (mut good, mut all) = (0u32, 0u32);
        for event in self.young(now) {
            all += 1;
            good += u32::from(event == Event::Success);
        }
        (all > 0).then(|| f64::from(good) / f64::from(all))
    }

    /// How many outcomes count.
    #[must_use]
    pub fn events(&self, now: Timestamp) -> usize {
        self.young(now).count()
    }

    fn note(&mut self, event: Event, now: Timestamp) {
        if seconds(now).saturating_sub(self.last_s) > AGE_S {
            (self.len, self.bad) = (0, 0);
        }
        self.last_s = seconds(now);
        if usize::from(self.len) == WINDOW && self.events[usize::from(self.next)] & 3 != Event::Success as u16
        {
            self.bad -= 1; // it is overwritten
        }
        self.bad += u8::from(event != Event::Success);
        self.events[usize::from(self.next)] = ((seconds(now) as u16) << 2) | event as u16;
        self.next = (self.next + 1) % WINDOW as u8;
        self.len = (self.len + 1).min(WINDOW as u8);
    }

    fn young(&self, now: Timestamp) -> impl Iterator<Item = Event> {
        let len = if seconds(now).saturating_sub(self.last_s) > AGE_S { 0 } else { usize::from(self.len) };
        let now_s = (seconds(now) as u16) << 2 >> 2;
        (1..=len).map_while(move |back| {
            let word = self.events[(usize::from(self.next) + WINDOW - back) % WINDOW];
            let age = now_s.wrapping_sub(word >> 2) & 0x3fff;
            let event = match word & 3 {
                0 => Event::Success,
                1 => Event::Refused,
                2 => Event::Blocked,
                _ => Event::Fault,
            };
            // The clock may have gone back a little between two events: that makes them young, not hours old.
            (u32::from(age) <= AGE_S || age > 0x3000).then_some(event)
        })
    }
}

fn seconds(t: Timestamp) -> u32 {
    u32::try_from(t.as_micros() / 1_000_000).unwrap_or(u32::MAX) // until the year 2106
}

/// E1.
const WINDOW: usize = 64;
const AGE_S: u32 = 120;
/// E3.
const HEAT_OF_AT_LEAST: u32 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn at(s: u64) -> Timestamp {
        Timestamp::from_secs(1_795_957_200 + s)
    }

    #[test]
    fn e3_a_first_stray_refusal_has_little_heat() {
        let mut health = Health::default();
        assert_eq!(health.heat(at(0)), 0.0);
        health.refused(at(0));
        assert_eq!(health.heat(at(0)), 0.125);
        for _ in 0..9 {
            health.succeeded(at(1));
        }
        assert_eq!(health.heat(at(1)), 0.1);
        health.blocked(at(1));
        assert!((health.heat(at(1)) - 2.0 / 11.0).abs() < 1e-9);
    }

    #[test]
    fn e1_the_window_is_64_events_and_120_s() {
        let mut health = Health::default();
        for n in 0..100 {
            if n < 50 { health.failed(at(0)) } else { health.succeeded(at(0)) }
        }
        assert_eq!(health.events(at(0)), 64);
        assert_eq!(health.success_rate(at(0)), Some(50.0 / 64.0));
        health.refused(at(100));
        assert_eq!(health.events(at(121)), 1, "only the young ones count");
        assert_eq!(health.events(at(220)), 1);
        assert_eq!(health.events(at(221)), 0);
        assert_eq!(health.success_rate(at(221)), None);
        health.succeeded(at(16_384 + 100)); // the seconds have come round
        assert_eq!(health.events(at(16_384 + 100)), 1);
    }
}

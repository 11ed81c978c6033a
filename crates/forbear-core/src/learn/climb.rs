//! How the pace grows while nothing is refused.

use std::f64::consts::LN_2;

use super::CHEAP;

/// What growth depends on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground {
    /// Seconds from a start to its answer.
    pub(super) round_trip: f64,
    /// How far below a limit the pace stays, as a share.
    pub(super) margin: f64,
    /// The least time between two refusals of our own making.
    pub(super) period: f64,
    /// The longest time that the limit kept everything out.
    pub(super) shut: f64,
    /// That time is a punishment, and says nothing about how soon a limit shows.
    pub(super) punishes: bool,
}

/// Where the pace goes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Climb {
    /// Nothing was refused yet.
    pub(super) starting: bool,
    /// The pace at which it was refused.
    pub(super) limit: f64,
    /// The pace that it began at.
    pub(super) began: f64,
    /// From where the pace began to above the limit, as a share: it takes one period to get there.
    slope: f64,
    /// Growth beyond the limit, by the second, and in the time that it takes to see a refusal.
    velocity: f64,
    pushed: f64,
}

impl Climb {
    pub(super) fn new() -> Climb {
        Climb { starting: true, limit: f64::INFINITY, began: 0.0, slope: 0.0, velocity: 0.0, pushed: 0.0 }
    }

    /// Goes on from `rate`, and looks for `limit`.
    pub(super) fn set(&mut self, rate: f64, limit: f64, margin: f64) {
        let begin = rate.max(limit * (1.0 - 1.5 * margin));
        let slope = (1.0 + margin - begin / limit).max(margin);
        *self = Climb { starting: false, limit, began: rate, slope, velocity: 0.0, pushed: 0.0 };
    }

    /// By what share it grows beyond the limit in the time that it takes to see a refusal; nothing below.
    pub(super) fn pushed(&self) -> f64 {
        if self.velocity > 0.0 { self.pushed } else { 0.0 }
    }

    /// The pace after `dt` more seconds at `rate` that were used up.
    pub(super) fn grown(&mut self, rate: f64, dt: f64, ground: &Ground) -> f64 {
        let Ground { round_trip, margin, period, shut, punishes } = *ground;
        // So many are on the wire before the first refusal comes back.
        let blind = (rate * round_trip).max(1e-9);
        if self.starting {
            // A server that answers at once shows at once what it refuses.
            let doubling = (2.0 * round_trip).max(4.0 / rate).max((8.0 * round_trip).min(0.5));
            let careful =
                if blind > 8.0 { (8.0 / blind).ln_1p() / (2.0 * round_trip) } else { f64::INFINITY };
            return rate * ((LN_2 / doubling).min(careful) * dt).exp();
        }
        let (near, far) = (self.limit * (1.0 - 1.5 * margin), self.limit * (1.0 + margin));
        if rate < near {
            self.velocity = 0.0;
            let time = (4.0 * round_trip).max(10.0 / rate).max(if punishes { 0.0 } else { shut / 10.0 });
            let v = 0.15 / time * (10.0 / blind).min(1.0);
            (rate * (v * dt).exp()).min(near)
        } else if rate < far {
            self.velocity = 0.0;
            rate + self.slope * self.limit / period * dt
        } else {
            // The limit is not where it was: faster and faster.
            let time = (8.0 * round_trip).max(30.0 / rate).max(shut);
            // What lets through again soon may be overrun by a little soon, and by much never: how far it goes is what it costs.
            let (least, most) = if shut < CHEAP { (margin / time, 0.3) } else { (0.0, 0.7) };
            let begin = (2.5 * margin / period).max(least);
            let v = if self.velocity == 0.0 { begin } else { self.velocity };
            self.velocity = (v * 2f64.powf(dt / time)).min(most / time);
            // A time of refusals says nothing of how soon one is seen.
            let seen = if punishes { (8.0 * round_trip).max(30.0 / rate) } else { time };
            self.pushed = self.velocity * seen;
            rate * (self.velocity * dt).exp()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn l2_a_time_of_refusals_says_nothing_of_how_soon_a_limit_is_seen() {
        let pushed = |punishes| {
            let ground = Ground { round_trip: 0.1, margin: 0.02, period: 600.0, shut: 30.0, punishes };
            let mut climb = Climb::new();
            climb.set(10.0, 10.0, 0.02);
            let mut rate = 10.3;
            (0..600).for_each(|_| rate = climb.grown(rate, 0.1, &ground));
            assert!(rate > 10.3, "{rate}");
            climb.pushed()
        };
        assert!(
            pushed(true) > 0.0 && pushed(true) < 0.2 * pushed(false),
            "{} {}",
            pushed(true),
            pushed(false)
        );
    }
}

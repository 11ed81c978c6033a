//! The instance sets: limiters with random numbers, the same ones on every machine.

use std::{fmt, time::Duration};

mod jobs;
mod rows;
mod wide;

pub use jobs::{Job, jobs};
pub use rows::{RowCase, rows};
pub use wide::{WIDE_EACH, WIDE_KINDS, set_b};

use forbear_zoo::{Hint, Rate, Spec, SplitMix64, Tide};

use crate::{
    net::Latency,
    scenario::{Scenario, TrueKind, Truth, Work},
};

/// The kinds of set A.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
#[allow(missing_docs, reason = "their names say it")]
pub enum Kind {
    TokenBucket,
    FixedWindow,
    SlidingLog,
    SlidingCounter,
    Concurrency,
    Penalty,
    Steps,
    Waves,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 8] = [
        Kind::TokenBucket,
        Kind::FixedWindow,
        Kind::SlidingLog,
        Kind::SlidingCounter,
        Kind::Concurrency,
        Kind::Penalty,
        Kind::Steps,
        Kind::Waves,
    ];

    /// The name on the command line and in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::TokenBucket => "token-bucket",
            Kind::FixedWindow => "fixed-window",
            Kind::SlidingLog => "sliding-log",
            Kind::SlidingCounter => "sliding-counter",
            Kind::Concurrency => "concurrency",
            Kind::Penalty => "penalty",
            Kind::Steps => "steps",
            Kind::Waves => "waves",
        }
    }

    /// The kind with this name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Whether its limit stays as it is.
    #[must_use]
    pub fn is_static(self) -> bool {
        !matches!(self, Kind::Steps | Kind::Waves)
    }

    /// Whether its refusals can tell a wait that means something: a sliding counter and a cap on requests in flight cannot.
    #[must_use]
    pub fn tells(self) -> bool {
        !matches!(self, Kind::SlidingCounter | Kind::Concurrency)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Instances of each kind in set A.
pub const EACH: u32 = 16;

/// Instance `index` of `kind` in set A, whose refusals say `Retry-After` in whole seconds if `told`.
///
/// Rates of 2 to 300/s, bursts of 0.05 to 60 s of that rate, windows of 1 to 300 s, bans of 5 to 60 s, round trips of 10 to
/// 150 ms, service times of 20 to 400 ms, all by the logarithm; spreads of 0.1 to 1; two steps, at a third and at two thirds
/// of the run, to 0.3 to 3 times the first rate; waves of 10 to 50 % over 300 to 3600 s; runs of half an hour to two hours.
/// Of the sliding logs 40 % count what they refuse.
#[must_use]
pub fn set_a(kind: Kind, index: u32, told: bool) -> Scenario {
    drawn(kind, 0x5e7_a000 + kind as u64 * 1000 + u64::from(index), told)
}

/// Instance `index` of `kind`, drawn as those of set A from other seeds. Nothing is ever tuned on these: what a learner does
/// worse here than on set A, it owes to the tuning.
#[must_use]
pub fn held_out(kind: Kind, index: u32, told: bool) -> Scenario {
    drawn(kind, 0x0e1d_0000 + kind as u64 * 1000 + u64::from(index), told)
}

/// Instance `index` of `kind` in a further draw of the same ranges, for whoever changes the learner: what is better on one
/// set only is chance.
#[must_use]
pub fn further(draw: u32, kind: Kind, index: u32, told: bool) -> Scenario {
    drawn(kind, 0xf0_0000_0000 + u64::from(draw) * 100_000 + kind as u64 * 1000 + u64::from(index), told)
}

fn drawn(kind: Kind, seed: u64, told: bool) -> Scenario {
    let mut draw = Draw(SplitMix64::new(seed));
    draw.0.next_u64();
    let hertz = draw.log(2.0, 300.0);
    let run_for = Duration::from_secs(draw.log(1800.0, 7200.0) as u64);
    let latency = Latency {
        round_trip: Duration::from_secs_f64(draw.log(0.010, 0.150)),
        service: Duration::from_secs_f64(draw.log(0.020, 0.400)),
        spread: draw.even(0.1, 1.0),
    };
    let burst = (hertz * draw.log(0.05, 60.0)).round().max(1.0);
    let window = Duration::from_millis(draw.log(1000.0, 300_000.0) as u64);
    let limit = (hertz * window.as_secs_f64()).round().max(1.0);
    let ban = Duration::from_millis(draw.log(5000.0, 60_000.0) as u64);
    let rate = whole_rate(hertz);
    let counted = draw.even(0.0, 1.0) < 0.4;
    let mut truth = Truth {
        kind: TrueKind::Bucket,
        rate: (hertz * 1000.0).round().max(1.0) / 1000.0,
        number: burst,
        window: None,
        tide: Tide::default(),
    };
    let bucket = Spec::token_bucket(rate, burst as u32);
    let windowed = |truth: &mut Truth, kind| {
        *truth = Truth {
            kind,
            rate: limit / window.as_secs_f64(),
            number: limit,
            window: Some(window),
            ..truth.clone()
        };
    };
    let spec = match kind {
        Kind::TokenBucket => bucket,
        Kind::FixedWindow => {
            windowed(&mut truth, TrueKind::Fixed);
            Spec::fixed_window(limit as u32, window)
        }
        Kind::SlidingLog => {
            windowed(&mut truth, TrueKind::Sliding);
            let spec = Spec::sliding_log(limit as u32, window);
            if counted { spec.rejected_count() } else { spec }
        }
        Kind::SlidingCounter => {
            windowed(&mut truth, TrueKind::Sliding);
            Spec::sliding_counter(limit as u32, window)
        }
        Kind::Concurrency => {
            let most = draw.log(2.0, 100.0).round();
            truth.kind = TrueKind::Concurrency;
            truth.number = most;
            truth.rate = most / latency.mean().as_secs_f64();
            Spec::concurrency(most as u32)
        }
        Kind::Penalty => {
            truth.kind = TrueKind::Penalty;
            truth.window = Some(ban);
            bucket.penalty(ban)
        }
        Kind::Steps => {
            let (first, second) = (draw.log(0.3, 3.0), draw.log(0.3, 3.0));
            truth.tide = Tide::default().step(run_for / 3, first).step(run_for * 2 / 3, second);
            bucket.step(run_for / 3, first).step(run_for * 2 / 3, second)
        }
        Kind::Waves => {
            let share = draw.even(0.1, 0.5);
            let period = Duration::from_secs(draw.log(300.0, 3600.0) as u64);
            truth.tide = Tide::default().wave(share, period);
            bucket.wave(share, period)
        }
    };
    Scenario {
        spec: if told { spec.hint(Hint::Seconds) } else { spec },
        truth,
        nodes: 1,
        others: 0.0,
        latency,
        workers: 1000,
        work: Work::Endless,
        run_for,
        crashes: Vec::new(),
        seed,
    }
}

/// To a thousandth of a request a second.
fn whole_rate(hertz: f64) -> Rate {
    let count = (hertz * 1000.0).round().max(1.0) as u32;
    Rate::new(count, Duration::from_secs(1000)).unwrap_or_else(|_| Rate::per_second(1))
}

/// Random numbers in ranges.
struct Draw(SplitMix64);

impl Draw {
    fn even(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.0.next_f64()
    }

    fn log(&mut self, from: f64, to: f64) -> f64 {
        (from.ln() + (to / from).ln() * self.0.next_f64()).exp()
    }
}

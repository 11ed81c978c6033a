//! Set B: everything a hundred times wider than set A.

use std::time::Duration;

use forbear_zoo::{Hint, Spec, SplitMix64, Tide};

use super::{Draw, Kind, whole_rate};
use crate::{
    net::Latency,
    scenario::{Scenario, TrueKind, Truth, Work},
};

/// The kinds of set B.
pub const WIDE_KINDS: [Kind; 4] =
    [Kind::TokenBucket, Kind::FixedWindow, Kind::SlidingLog, Kind::SlidingCounter];
/// Instances of each.
pub const WIDE_EACH: u32 = 8;

/// Instance `index` of `kind` in set B: limits of 0.2 to 2,000/s, bursts of 0.05 to 60 s of that, windows of a second to an
/// hour, round trips of 5 ms to 2 s, all by the logarithm. A run lasts six windows, and at least an hour or a million and a half
/// requests; a window that would take more than two million is drawn again.
#[must_use]
pub fn set_b(kind: Kind, index: u32, told: bool) -> Scenario {
    let seed = 0x5e7_b000 + kind as u64 * 1000 + u64::from(index);
    let mut draw = Draw(SplitMix64::new(seed));
    draw.0.next_u64();
    // Its part of the range of limits, so that few instances cover all of it.
    let hertz = 0.2 * 1e4f64.powf((f64::from(index) + draw.even(0.0, 1.0)) / f64::from(WIDE_EACH));
    let least = (1.5e6 / hertz).clamp(600.0, 3600.0);
    let (window, run_for) = loop {
        let window = draw.log(1.0, 3600.0);
        let run_for = if kind == Kind::TokenBucket { least } else { (6.0 * window).max(least) };
        if hertz * run_for <= 2e6 {
            break (Duration::from_millis((window * 1000.0) as u64), Duration::from_secs_f64(run_for));
        }
    };
    let latency = Latency {
        round_trip: Duration::from_secs_f64(draw.log(0.005, 2.0)),
        service: Duration::from_secs_f64(draw.log(0.020, 0.400)),
        spread: draw.even(0.1, 1.0),
    };
    let burst = (hertz * draw.log(0.05, 60.0)).round().max(1.0);
    let limit = (hertz * window.as_secs_f64()).round().max(1.0);
    let mut truth = Truth {
        kind: TrueKind::Bucket,
        rate: limit / window.as_secs_f64(),
        number: limit,
        window: Some(window),
        tide: Tide::default(),
    };
    let spec = match kind {
        Kind::FixedWindow => {
            truth.kind = TrueKind::Fixed;
            Spec::fixed_window(limit as u32, window)
        }
        Kind::SlidingLog => {
            truth.kind = TrueKind::Sliding;
            Spec::sliding_log(limit as u32, window)
        }
        Kind::SlidingCounter => {
            truth.kind = TrueKind::Sliding;
            Spec::sliding_counter(limit as u32, window)
        }
        _ => {
            (truth.rate, truth.number, truth.window) = ((hertz * 1000.0).round() / 1000.0, burst, None);
            Spec::token_bucket(whole_rate(hertz), burst as u32)
        }
    };
    Scenario {
        spec: if told { spec.hint(Hint::Seconds) } else { spec },
        truth,
        nodes: 1,
        others: 0.0,
        latency,
        workers: 4000,
        work: Work::Endless,
        run_for,
        crashes: Vec::new(),
        seed,
    }
}

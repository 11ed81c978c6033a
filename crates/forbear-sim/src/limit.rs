//! What a described limiter allows: for the oracle, and as the measure of everybody else.

use std::time::Duration;

use forbear_core::time::Timestamp;
use forbear_zoo::{Shape, Spec, Tide};

use crate::{
    net::Latency,
    scenario::{Scenario, TrueKind, Truth, Work},
    world::EPOCH,
};

impl Truth {
    /// Of a description, before which so many `nodes` share the work and others send so much a second. Where nothing limits
    /// the rate is infinite.
    ///
    /// ```
    /// use forbear_sim::{Latency, Truth};
    /// use std::time::Duration;
    ///
    /// let latency = Latency::even(Duration::from_millis(100));
    /// let truth = Truth::of(&"fixed-window:limit=60/30s".parse()?, &latency, 1, 0.0);
    /// assert_eq!((truth.rate, truth.number), (2.0, 60.0));
    /// # Ok::<(), forbear_zoo::SpecError>(())
    /// ```
    #[must_use]
    pub fn of(spec: &Spec, latency: &Latency, nodes: u32, others: f64) -> Truth {
        let Some(tightest) = spec.tightest(latency.mean()) else {
            let (kind, tide) = (TrueKind::Bucket, Tide::default());
            return Truth { kind, rate: f64::INFINITY, number: f64::INFINITY, window: None, tide };
        };
        let nodes = f64::from(nodes.max(1));
        let kind = match tightest.shape {
            Shape::Bucket => TrueKind::Bucket,
            Shape::Fixed => TrueKind::Fixed,
            Shape::Sliding => TrueKind::Sliding,
            Shape::Concurrency => TrueKind::Concurrency,
            Shape::Penalty => TrueKind::Penalty,
        };
        let rate = tightest.rate * nodes;
        Truth {
            kind,
            // Whoever sends harder may take more from the others than what they leave; a tenth is left in any case.
            rate: (rate - others).max(rate / 10.0),
            number: tightest.number * nodes,
            window: tightest.window,
            tide: tightest.tide,
        }
    }
}

impl Latency {
    /// Half of it on the way, half at the server, whose times vary by a third.
    #[must_use]
    pub fn even(mean: Duration) -> Latency {
        Latency { round_trip: mean / 2, service: mean - mean / 2, spread: 0.3 }
    }
}

/// What a client could reach at best that knows the limiter, has it to itself but for the others, and is never refused.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Optimum {
    /// Pages within the run.
    pub pages: f64,
    /// The time of the last one.
    pub time: Duration,
}

impl Scenario {
    /// The bound that no client can beat by more than chance: by what the limiter lets through from its first moment on, with
    /// its burst, and by what so many workers can carry.
    #[must_use]
    pub fn optimum(&self) -> Optimum {
        let wanted = match self.work {
            Work::Pages(pages) => f64::from(pages),
            Work::Endless => f64::INFINITY,
            Work::Stream(rate) => rate * self.run_for.as_secs_f64(),
        };
        let within = self.reachable(self.run_for);
        if within < wanted || wanted == 0.0 {
            return Optimum { pages: within.floor(), time: self.run_for };
        }
        if let Work::Stream(_) = self.work {
            return Optimum { pages: wanted.floor(), time: self.run_for };
        }
        // The first moment at which so many are reachable, to a millisecond.
        let (mut early, mut late) = (0u64, self.run_for.as_millis() as u64);
        while early < late {
            let middle = early.midpoint(late);
            match self.reachable(Duration::from_millis(middle)) >= wanted {
                true => late = middle,
                false => early = middle + 1,
            }
        }
        Optimum { pages: wanted, time: Duration::from_millis(late) }
    }

    /// Pages that can have been answered after `time`.
    fn reachable(&self, time: Duration) -> f64 {
        let mean = self.latency.mean();
        let sent = time.saturating_sub(mean);
        if time < mean {
            return 0.0;
        }
        let epoch = EPOCH.since(Timestamp::ZERO);
        let nodes = f64::from(self.nodes.max(1));
        let limit = self.spec.most(epoch, mean, sent) * nodes - self.others * sent.as_secs_f64();
        let floor = self.truth.allowed(Duration::ZERO, sent);
        let open = time.saturating_sub(self.spec.closed(time));
        let carried = f64::from(self.workers) * (open.as_secs_f64() / mean.as_secs_f64());
        limit.max(floor).min(carried)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn scenario(limiter: &str, workers: u32, work: Work) -> Scenario {
        let spec: Spec = limiter.parse().unwrap();
        let latency = Latency::even(S / 10);
        Scenario {
            truth: Truth::of(&spec, &latency, 1, 0.0),
            spec,
            nodes: 1,
            others: 0.0,
            latency,
            workers,
            work,
            run_for: 3600 * S,
            crashes: Vec::new(),
            seed: 1,
        }
    }

    #[test]
    fn the_best_time_is_that_of_burst_and_rate_or_of_the_workers() {
        for (limiter, workers, pages, ms) in [
            ("token-bucket:rate=10/s,burst=5", 64, 105, 10_100), // five at once, the others at ten a second
            ("fixed-window:limit=10/10s,phase=first-request", 64, 25, 20_100),
            ("open", 10, 1000, 10_000),
            ("token-bucket:rate=1000/s", 10, 1000, 10_000),
            ("concurrency:max=4", 64, 400, 10_000), // four of a tenth of a second each
        ] {
            let best = scenario(limiter, workers, Work::Pages(pages)).optimum();
            let is = best.time.as_millis() as i64;
            assert!((is - ms).abs() <= 5, "{limiter}: {is} ms, not {ms}");
            assert_eq!(best.pages, f64::from(pages));
        }
        let endless = scenario("token-bucket:rate=10/s,burst=5", 64, Work::Endless).optimum();
        assert!((endless.pages - 36_004.0).abs() < 2.0, "{endless:?}");
        let never = scenario("token-bucket:rate=1/1h", 64, Work::Pages(100)).optimum();
        assert_eq!((never.pages, never.time), (1.0, 3600 * S));
    }

    #[test]
    fn others_leave_less_and_more_nodes_allow_more() {
        let spec: Spec = "token-bucket:rate=10/s".parse().unwrap();
        let rate = |nodes, others| Truth::of(&spec, &Latency::even(S), nodes, others).rate;
        assert_eq!((rate(1, 0.0), rate(3, 0.0), rate(1, 4.0), rate(1, 40.0)), (10.0, 30.0, 6.0, 1.0));
    }
}

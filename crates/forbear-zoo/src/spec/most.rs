//! What a description lets through at most: the yardstick for clients that do not know it.

use std::time::Duration;

use super::{Kind, RuleSpec, Spec};
use crate::limiter::tide::Tide;

/// The rule of a description that allows least in the long run, in numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Tightest {
    /// What it is.
    pub shape: Shape,
    /// Requests a second in the long run.
    pub rate: f64,
    /// The most at once: a bucket's burst, a window's limit, or requests on the wire.
    pub number: f64,
    /// The length of its window; of a penalty, the time that it takes.
    pub window: Option<Duration>,
    /// How its rate moves.
    pub tide: Tide,
}

/// The shape of a rule.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Shape {
    /// Token bucket or GCRA, and a server with a capacity.
    Bucket,
    /// Fixed window.
    Fixed,
    /// Sliding log or sliding counter.
    Sliding,
    /// A cap on requests on the wire.
    Concurrency,
    /// A rate whose refusals start a time of refusals.
    Penalty,
}

impl Spec {
    /// The rule that allows least in the long run, for requests that each take the server `service`; none where nothing
    /// bounds the rate.
    #[must_use]
    pub fn tightest(&self, service: Duration) -> Option<Tightest> {
        let capacity = self.brownout.map(|queue| Tightest {
            shape: Shape::Bucket,
            rate: queue.capacity.hertz(),
            number: 1.0,
            window: None,
            tide: Tide::default(),
        });
        let rules = self.rules.iter().filter_map(|rule| rule.tightest(service)).chain(capacity);
        rules.min_by(|a, b| a.rate.total_cmp(&b.rate))
    }

    /// The most requests that can be got through in the first `time`, by whoever knows the limit and is alone: bursts and
    /// windows that begin full included. `epoch` is the Unix time at the start, `service` what each request takes the server.
    /// Infinite where nothing limits.
    #[must_use]
    pub fn most(&self, epoch: Duration, service: Duration, time: Duration) -> f64 {
        let capacity = self.brownout.map(|queue| 1.0 + queue.capacity.hertz() * time.as_secs_f64());
        let rules = self.rules.iter().map(|rule| rule.most(epoch, service, time)).chain(capacity);
        rules.fold(f64::INFINITY, f64::min)
    }

    /// How much of the first `time` the service is not there at all (`maintenance`).
    #[must_use]
    pub fn closed(&self, time: Duration) -> Duration {
        let spans = self.rules.iter().map(|rule| match rule.kind {
            Kind::Maintenance { from, span, every } => closed(time, from, span, every),
            _ => Duration::ZERO,
        });
        spans.max().unwrap_or_default()
    }

    /// Whether a rule counts requests for as long as they take, so that it must be told when they leave.
    #[must_use]
    pub fn counts_what_is_on_the_wire(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule.kind, Kind::Concurrency { .. }))
    }

    /// Whether a rule holds for some paths alone.
    #[must_use]
    pub fn is_about_paths(&self) -> bool {
        self.rules.iter().any(|rule| !rule.matching.is_empty() || matches!(rule.kind, Kind::Sentence { .. }))
    }
}

impl RuleSpec {
    fn tightest(&self, service: Duration) -> Option<Tightest> {
        let windowed =
            |limit: u32, window: Duration| (f64::from(limit) / window.as_secs_f64(), f64::from(limit));
        let (shape, (rate, number), window) = match self.kind {
            Kind::TokenBucket { rate, burst } | Kind::Gcra { rate, burst } => {
                (Shape::Bucket, (rate.hertz(), f64::from(burst)), None)
            }
            Kind::FixedWindow { limit, window, .. } => (Shape::Fixed, windowed(limit, window), Some(window)),
            // Of a limit on costs: where each request costs one.
            Kind::SlidingLog { limit, window }
            | Kind::SlidingCounter { limit, window }
            | Kind::CostLog { limit, window } => (Shape::Sliding, windowed(limit, window), Some(window)),
            Kind::Concurrency { max, .. } => {
                (Shape::Concurrency, (served_by(max, service), f64::from(max)), None)
            }
            Kind::Maintenance { .. } | Kind::Sentence { .. } => return None,
        };
        let (shape, window) = match self.penalty {
            Some(penalty) => (Shape::Penalty, Some(penalty)),
            None => (shape, window),
        };
        Some(Tightest { shape, rate, number, window, tide: self.tide.clone() })
    }

    fn most(&self, epoch: Duration, service: Duration, time: Duration) -> f64 {
        let seconds = time.as_secs_f64();
        match self.kind {
            Kind::TokenBucket { rate, burst } => {
                f64::from(burst) + rate.hertz() * self.tide.between(Duration::ZERO, time)
            }
            Kind::Gcra { rate, burst } => f64::from(burst) + rate.hertz() * seconds,
            Kind::FixedWindow { limit, window, first_request: false } => {
                let edges =
                    (epoch + time).as_nanos() / window.as_nanos() - epoch.as_nanos() / window.as_nanos();
                f64::from(limit) * (edges as f64 + 1.0)
            }
            Kind::FixedWindow { limit, window, .. }
            | Kind::SlidingLog { limit, window }
            | Kind::CostLog { limit, window } => {
                f64::from(limit) * ((time.as_nanos() / window.as_nanos()) as f64 + 1.0)
            }
            Kind::SlidingCounter { limit, window } => {
                f64::from(limit) * (1.0 + seconds / window.as_secs_f64())
            }
            Kind::Concurrency { max, .. } => f64::from(max) + served_by(max, service) * seconds,
            Kind::Maintenance { .. } | Kind::Sentence { .. } => f64::INFINITY,
        }
    }
}

fn served_by(places: u32, service: Duration) -> f64 {
    f64::from(places) / service.as_secs_f64()
}

fn closed(time: Duration, from: Duration, span: Duration, every: Option<Duration>) -> Duration {
    let since = time.saturating_sub(from);
    let Some(every) = every else { return since.min(span) };
    let (turns, rest) = (since.as_nanos() / every.as_nanos(), since.as_nanos() % every.as_nanos());
    let rest = Duration::from_nanos(u64::try_from(rest).unwrap_or(u64::MAX));
    let whole = span.min(every).saturating_mul(u32::try_from(turns).unwrap_or(u32::MAX));
    whole + rest.min(span)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Facts, Verdict};

    const S: Duration = Duration::from_secs(1);
    const EPOCH: Duration = Duration::from_millis(1_700_000_000_700);

    /// What a client gets that asks every millisecond, with no time at the server.
    fn greedy(spec: &Spec, time: Duration) -> u32 {
        let mut origin = spec.build(EPOCH);
        let served = |ms| {
            let now = Duration::from_millis(ms);
            std::iter::from_fn(|| {
                let ruling = origin.rule(now, &Facts::get("/"));
                (ruling.verdict == Verdict::Served).then_some(())
            })
            .count() as u32
        };
        (0..=time.as_millis() as u64).map(served).sum()
    }

    #[test]
    fn nobody_gets_more_than_the_most_and_who_asks_all_the_time_gets_nearly_all() {
        for text in [
            "token-bucket:rate=5/s,burst=20",
            "token-bucket:rate=5/s,burst=3,wave=0.5/10s",
            "gcra:rate=10/s,burst=4",
            "fixed-window:limit=7/1s",
            "fixed-window:limit=7/2s,phase=first-request",
            "sliding-log:limit=10/2s",
            "sliding-counter:limit=20/2s",
            "fixed-window:limit=5/1s,phase=first-request + sliding-log:limit=40/10s",
        ] {
            let spec: Spec = text.parse().unwrap();
            for time in [S / 2, 3 * S, 25 * S] {
                let (got, most) = (f64::from(greedy(&spec, time)), spec.most(EPOCH, S, time).floor());
                // A sliding counter weighs by the clock's windows, so that a first burst may cost a part of the next; and of two
                // rules one may come in the other's way.
                let least = if text.starts_with("sliding-counter") { 0.6 } else { 0.9 };
                assert!(got <= most && got >= most * least - 1.0, "{text} {time:?}: {got} of {most}");
            }
        }
    }

    #[test]
    fn the_tightest_rule_is_the_one_that_counts_in_the_long_run() {
        let of = |text: &str| text.parse::<Spec>().unwrap().tightest(S / 10);
        let two = of("fixed-window:limit=10/1s + sliding-log:limit=100/30s").unwrap();
        assert_eq!((two.shape, two.number, two.window), (Shape::Sliding, 100.0, Some(30 * S)));
        let held = of("concurrency:max=4").unwrap();
        assert_eq!((held.shape, held.rate), (Shape::Concurrency, 40.0));
        let penalty = of("token-bucket:rate=20/s,burst=5,penalty=2s").unwrap();
        assert_eq!((penalty.shape, penalty.rate, penalty.window), (Shape::Penalty, 20.0, Some(2 * S)));
        assert_eq!(of("brownout:capacity=50/s").unwrap().rate, 50.0);
        for free in ["open", "flaky:reset=0.1", "maintenance:for=1s"] {
            assert_eq!(of(free), None, "{free}");
        }
    }

    #[test]
    fn closed_time_is_that_of_maintenance() {
        let of = |text: &str, time| text.parse::<Spec>().unwrap().closed(time);
        assert_eq!(of("maintenance:for=2s,from=1s", 10 * S), 2 * S);
        assert_eq!(of("maintenance:for=2s,from=1s", 2 * S), S);
        assert_eq!(of("maintenance:for=1s,from=1s,every=5s", 12 * S), 3 * S);
        assert_eq!(of("token-bucket:rate=5/s", 12 * S), Duration::ZERO);
    }

    #[test]
    fn what_a_simulation_cannot_play_is_known() {
        let of = |text: &str| text.parse::<Spec>().unwrap();
        assert!(
            of("sentence:match=/shut/*").is_about_paths() && of("gcra:rate=1/s,match=/a").is_about_paths()
        );
        assert!(!of("gcra:rate=1/s").is_about_paths());
        assert!(of("open + concurrency:max=2").counts_what_is_on_the_wire());
        assert!(!of("sliding-log:limit=2/s").counts_what_is_on_the_wire());
    }
}

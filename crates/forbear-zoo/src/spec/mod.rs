//! The description of a limiter: builder functions, a text form, and examples of the whole zoo.

use std::time::Duration;

use crate::hint::Hint;
use crate::limiter::tide::Tide;
use crate::limiter::trouble::Shares;
use crate::origin::Origin;

mod examples;
mod most;
mod parse;
mod rate;

pub use examples::{EXAMPLES, Example};
pub use most::{Shape, Tightest};
pub use parse::SpecError;
pub use rate::{Rate, RateError};

/// Describes what stands before a service: rules, troubles, and how refusals are told.
///
/// Settings of a rule ([`scope`](Spec::scope), [`matching`](Spec::matching), [`penalty`](Spec::penalty),
/// [`ban`](Spec::ban), [`rejected_count`](Spec::rejected_count)) fall on the last rule; [`and`](Spec::and) joins two
/// descriptions. The rest holds for every answer.
///
/// ```
/// use forbear_zoo::{Hint, Rate, Scope, Spec};
/// use std::time::Duration;
///
/// let spec = Spec::fixed_window(100, Duration::from_secs(60))
///     .scope(Scope::Account)
///     .and(Spec::concurrency(8))
///     .hint(Hint::Draft7);
/// assert_eq!(spec, "fixed-window:limit=100/60s,scope=account,hint=draft-7 + concurrency:max=8".parse()?);
/// # Ok::<(), forbear_zoo::SpecError>(())
/// ```
///
/// # Text form
///
/// Parts joined by `+`; each is `KIND` or `KIND:KEY=VALUE,...`. [`Display`](std::fmt::Display) writes the same form. Times are
/// whole numbers with `ms`, `s`, `m`, `h` or `d`; rates and limits are `5/s` or `100/60s`.
///
/// | kind | its keys |
/// | --- | --- |
/// | `open` | none |
/// | `token-bucket` | `rate`, `burst` (1), `wave` (`0.3/600s`: a sine of 30 %), `step` (`20m/0.5`: from then on half; repeat it for more) |
/// | `gcra` | `rate`, `burst` (1) |
/// | `fixed-window` | `limit`, `phase` (`epoch`, or `first-request`) |
/// | `sliding-log`, `sliding-counter` | `limit` |
/// | `cost-log` | `limit` (of what requests cost, by `cost=N` in their query, else 1) |
/// | `concurrency` | `max`, `wait` (1s) |
/// | `maintenance` | `for`, `from` (0), `every` |
/// | `sentence` | `match`, `wait` (1d) |
/// | `brownout` | `capacity`, `base` (50ms), `patience` (2s) |
/// | `flaky` | `reset`, `bad-gateway`, `truncated`, `stalled` (shares of 1, each 0), `stall` (30s) |
///
/// Keys of every rule (not of the last two): `scope` (`endpoint`, `path`, `account`, `client`; repeat it to combine), `match`
/// (a path with `*`; repeat it for more), `penalty` (a time; `30s/60s`: 60 s for who comes early), `ban` (`3/60s/10m`: three refusals within 60 s, ten minutes),
/// `rejected` (`count`). Keys of the whole, in any part: `hint` (`seconds`, `http-date`, `ms`, `reset-epoch`, `reset-delta`,
/// `draft-3`, `draft-7`, `structured`; repeat it for several), `status`, `lie` (a factor), `skew` (a time, or `-` and a time),
/// `seed`.
#[derive(Clone, Debug, PartialEq)]
pub struct Spec {
    pub(crate) rules: Vec<RuleSpec>,
    pub(crate) brownout: Option<BrownoutSpec>,
    pub(crate) flaky: Option<Shares>,
    pub(crate) hints: Vec<Hint>,
    pub(crate) status: u16,
    pub(crate) lie: f64,
    pub(crate) skew_ms: i64,
    pub(crate) seed: u64,
}

/// What a rule counts apart. Several together count every combination apart.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Scope {
    /// Each pattern of [`Spec::matching`], else the first segment of the path.
    Endpoint,
    /// Each path, without its query.
    Path,
    /// Each `Authorization`, or API key; requests without one count together.
    Account,
    /// Each client address.
    Client,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RuleSpec {
    pub(crate) kind: Kind,
    pub(crate) scope: Vec<Scope>,
    pub(crate) matching: Vec<String>,
    pub(crate) penalty: Option<Duration>,
    /// What a request inside a penalty starts; the penalty itself, where it is none.
    pub(crate) penalty_early: Option<Duration>,
    pub(crate) ban: Option<BanSpec>,
    pub(crate) rejected_count: bool,
    /// Moves the rate of a token bucket; still for every other kind.
    pub(crate) tide: Tide,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Kind {
    TokenBucket { rate: Rate, burst: u32 },
    Gcra { rate: Rate, burst: u32 },
    FixedWindow { limit: u32, window: Duration, first_request: bool },
    SlidingLog { limit: u32, window: Duration },
    SlidingCounter { limit: u32, window: Duration },
    CostLog { limit: u32, window: Duration },
    Concurrency { max: u32, wait: Duration },
    Maintenance { from: Duration, span: Duration, every: Option<Duration> },
    Sentence { wait: Duration },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BanSpec {
    pub(crate) strikes: u32,
    pub(crate) within: Duration,
    pub(crate) term: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BrownoutSpec {
    pub(crate) capacity: Rate,
    pub(crate) base: Duration,
    pub(crate) patience: Duration,
}

impl Spec {
    /// No limit at all.
    #[must_use]
    pub fn open() -> Spec {
        Spec {
            rules: Vec::new(),
            brownout: None,
            flaky: None,
            hints: Vec::new(),
            status: 429,
            lie: 1.0,
            skew_ms: 0,
            seed: 0,
        }
    }

    /// Up to `burst` requests at once, refilled at `rate`.
    #[must_use]
    pub fn token_bucket(rate: Rate, burst: u32) -> Spec {
        Spec::of(Kind::TokenBucket { rate, burst: burst.max(1) })
    }

    /// The same limit kept as one timestamp, as redis-cell and most gateways do.
    #[must_use]
    pub fn gcra(rate: Rate, burst: u32) -> Spec {
        Spec::of(Kind::Gcra { rate, burst: burst.max(1) })
    }

    /// `limit` requests in each `window`, whose edges lie at multiples of it since the Unix epoch.
    ///
    /// # Panics
    /// If `window` is zero.
    #[must_use]
    pub fn fixed_window(limit: u32, window: Duration) -> Spec {
        assert!(!window.is_zero(), "a window has a length");
        Spec::of(Kind::FixedWindow { limit: limit.max(1), window, first_request: false })
    }

    /// `limit` requests in each `window`, which begins with the first request after the last one ended.
    ///
    /// # Panics
    /// If `window` is zero.
    #[must_use]
    pub fn window_from_first_request(limit: u32, window: Duration) -> Spec {
        assert!(!window.is_zero(), "a window has a length");
        Spec::of(Kind::FixedWindow { limit: limit.max(1), window, first_request: true })
    }

    /// Never more than `limit` requests in any `window`.
    ///
    /// # Panics
    /// If `window` is zero.
    #[must_use]
    pub fn sliding_log(limit: u32, window: Duration) -> Spec {
        assert!(!window.is_zero(), "a window has a length");
        Spec::of(Kind::SlidingLog { limit: limit.max(1), window })
    }

    /// Never more than `limit` in any `window` of what requests cost. `cost=N` in a request's query is what it costs, else 1.
    ///
    /// # Panics
    /// If `window` is zero.
    #[must_use]
    pub fn cost_log(limit: u32, window: Duration) -> Spec {
        assert!(!window.is_zero(), "a window has a length");
        Spec::of(Kind::CostLog { limit: limit.max(1), window })
    }

    /// This window's count plus the last one's, weighted by how much of it still overlaps.
    ///
    /// # Panics
    /// If `window` is zero.
    #[must_use]
    pub fn sliding_counter(limit: u32, window: Duration) -> Spec {
        assert!(!window.is_zero(), "a window has a length");
        Spec::of(Kind::SlidingCounter { limit: limit.max(1), window })
    }

    /// At most `max` requests at once. A refusal tells a wait of one second, for nobody can know the true one.
    #[must_use]
    pub fn concurrency(max: u32) -> Spec {
        Spec::concurrency_telling(max, Duration::from_secs(1))
    }

    /// The same with another wait to tell.
    #[must_use]
    pub fn concurrency_telling(max: u32, wait: Duration) -> Spec {
        Spec::of(Kind::Concurrency { max, wait })
    }

    /// 503 from `from` on for `span`; the wait that is told is what is left of it.
    #[must_use]
    pub fn maintenance(from: Duration, span: Duration) -> Spec {
        Spec::of(Kind::Maintenance { from, span, every: None })
    }

    /// The same again and again: a span begins `every` so often.
    ///
    /// # Panics
    /// If `every` is zero.
    #[must_use]
    pub fn maintenance_every(from: Duration, span: Duration, every: Duration) -> Spec {
        assert!(!every.is_zero(), "it cannot begin all the time");
        Spec::of(Kind::Maintenance { from, span, every: Some(every) })
    }

    /// Each URL of these patterns is refused for `wait` from its first request on, all others are free:
    /// `Retry-After: 86400` on a few.
    #[must_use]
    pub fn sentence<S: Into<String>>(patterns: impl IntoIterator<Item = S>, wait: Duration) -> Spec {
        let mut spec = Spec::of(Kind::Sentence { wait }).scope(Scope::Path);
        for pattern in patterns {
            spec = spec.matching(pattern);
        }
        spec
    }

    /// A service that works off `capacity` with a latency of `base`; over it the latency grows, beyond `patience` requests
    /// fail with 500, 503 and 504, and it recovers as the queue drains.
    #[must_use]
    pub fn brownout(capacity: Rate, base: Duration, patience: Duration) -> Spec {
        Spec { brownout: Some(BrownoutSpec { capacity, base, patience }), ..Spec::open() }
    }

    /// Breaks these shares of all requests that the rules let through.
    #[must_use]
    pub fn flaky(shares: Shares) -> Spec {
        Spec { flaky: Some(shares), ..Spec::open() }
    }

    /// Both at once: every rule must let a request through, and all of them count it or none. Settings for every answer are
    /// taken from `other` where it has any.
    #[must_use]
    pub fn and(mut self, other: Spec) -> Spec {
        let plain = Spec::open();
        self.rules.extend(other.rules);
        self.brownout = other.brownout.or(self.brownout);
        self.flaky = other.flaky.or(self.flaky);
        for hint in other.hints {
            self = self.hint(hint);
        }
        self.status = if other.status == plain.status { self.status } else { other.status };
        self.lie = if other.lie == plain.lie { self.lie } else { other.lie };
        self.skew_ms = if other.skew_ms == plain.skew_ms { self.skew_ms } else { other.skew_ms };
        self.seed = if other.seed == plain.seed { self.seed } else { other.seed };
        self
    }

    /// The last rule counts apart by `scope`, and by those given before.
    #[must_use]
    pub fn scope(self, scope: Scope) -> Spec {
        self.last(|rule| {
            if !rule.scope.contains(&scope) {
                rule.scope.push(scope);
            }
        })
    }

    /// The last rule holds for this path pattern (a `*` stands for any text), and for those given before; for nothing else.
    #[must_use]
    pub fn matching(self, pattern: impl Into<String>) -> Spec {
        self.last(|rule| rule.matching.push(pattern.into()))
    }

    /// A refusal by the last rule shuts it for `pause`; each request inside starts that time again.
    #[must_use]
    pub fn penalty(self, pause: Duration) -> Spec {
        self.last(|rule| (rule.penalty, rule.penalty_early) = (Some(pause), None))
    }

    /// [`Spec::penalty`], where each request inside starts another time: `early`.
    #[must_use]
    pub fn penalty_early(self, pause: Duration, early: Duration) -> Spec {
        self.last(|rule| (rule.penalty, rule.penalty_early) = (Some(pause), Some(early)))
    }

    /// So many refusals by the last rule (`strikes`) `within` a time, and it answers 403 for `term`.
    #[must_use]
    pub fn ban(self, strikes: u32, within: Duration, term: Duration) -> Spec {
        self.last(|rule| rule.ban = Some(BanSpec { strikes: strikes.max(1), within, term }))
    }

    /// The last rule counts what it refuses as well: a bucket goes into debt, as deep as it is high, and a sliding window
    /// stays full. The other kinds have no memory for that; the text form says so.
    #[must_use]
    pub fn rejected_count(self) -> Spec {
        self.last(|rule| rule.rejected_count = true)
    }

    /// The rate of the last rule, a token bucket, goes up and down by this share of itself once every `period`. Other kinds
    /// have no rate that could move; the text form says so.
    ///
    /// # Panics
    /// If `share` is not from 0 to 1, or `period` is zero.
    #[must_use]
    pub fn wave(self, share: f64, period: Duration) -> Spec {
        assert!(
            (0.0..=1.0).contains(&share) && !period.is_zero(),
            "a rate stays above nothing, a wave takes time"
        );
        self.last(|rule| rule.tide = std::mem::take(&mut rule.tide).wave(share, period))
    }

    /// From `at` on the rate of the last rule, a token bucket, is `factor` times its first value, until the next step.
    ///
    /// # Panics
    /// If `factor` is not above zero.
    #[must_use]
    pub fn step(self, at: Duration, factor: f64) -> Spec {
        assert!(factor > 0.0 && factor.is_finite(), "a rate stays above nothing");
        self.last(|rule| rule.tide = std::mem::take(&mut rule.tide).step(at, factor))
    }

    /// Refusals are told in this form too. Without any, a refusal is a bare status.
    #[must_use]
    pub fn hint(mut self, hint: Hint) -> Spec {
        if !self.hints.contains(&hint) {
            self.hints.push(hint);
        }
        self
    }

    /// The status of a refusal, 429 unless set.
    #[must_use]
    pub fn status(self, status: u16) -> Spec {
        Spec { status, ..self }
    }

    /// Waits are told this many times as long as they are: below 1 too short, above too long.
    ///
    /// # Panics
    /// If `factor` is negative or no number.
    #[must_use]
    pub fn lie(self, factor: f64) -> Spec {
        assert!(factor >= 0.0 && factor.is_finite(), "a wait is not negative");
        Spec { lie: factor, ..self }
    }

    /// The server's wall clock is ahead by this much (behind, if negative), in its hints and in its `Date`.
    #[must_use]
    pub fn skew_ms(self, skew_ms: i64) -> Spec {
        Spec { skew_ms, ..self }
    }

    /// The seed of everything that is left to chance.
    #[must_use]
    pub fn seed(self, seed: u64) -> Spec {
        Spec { seed, ..self }
    }

    /// The machine; `epoch` is the Unix time at its time zero.
    #[must_use]
    pub fn build(&self, epoch: Duration) -> Origin {
        Origin::new(self, epoch)
    }

    fn of(kind: Kind) -> Spec {
        let rule = RuleSpec {
            kind,
            scope: Vec::new(),
            matching: Vec::new(),
            penalty: None,
            penalty_early: None,
            ban: None,
            rejected_count: false,
            tide: Tide::default(),
        };
        Spec { rules: vec![rule], ..Spec::open() }
    }

    fn last(mut self, change: impl FnOnce(&mut RuleSpec)) -> Spec {
        if let Some(rule) = self.rules.last_mut() {
            change(rule);
        }
        self
    }
}

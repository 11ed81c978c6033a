//! The text form of a [`Spec`]: reading and writing.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use super::rate::{parse_duration, show_duration};
use super::{BanSpec, BrownoutSpec, Kind, Rate, RuleSpec, Scope, Spec};
use crate::hint::Hint;
use crate::limiter::trouble::Shares;

/// Why a description could not be read.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// No such kind.
    #[error(
        "unknown kind of limiter `{kind}`; there are open, token-bucket, gcra, fixed-window, sliding-log, \
         sliding-counter, cost-log, concurrency, maintenance, sentence, brownout, flaky"
    )]
    UnknownKind {
        /// What was written.
        kind: String,
    },
    /// The kind exists, the key does not belong to it.
    #[error("`{kind}` has no setting `{key}`")]
    UnknownKey {
        /// The kind.
        kind: String,
        /// What was written.
        key: String,
    },
    /// A key without which the kind means nothing.
    #[error("`{kind}` needs `{key}`")]
    Missing {
        /// The kind.
        kind: String,
        /// The key.
        key: &'static str,
    },
    /// A value that cannot be read.
    #[error("`{key}={value}` should be {expected}")]
    Value {
        /// The key.
        key: String,
        /// What was written.
        value: String,
        /// What can be.
        expected: &'static str,
    },
    /// A setting without `=`.
    #[error("`{text}` should be written as key=value")]
    NoValue {
        /// What was written.
        text: String,
    },
    /// A key that may stand once only.
    #[error("`{key}` is given twice")]
    Twice {
        /// The key.
        key: String,
    },
    /// A setting that could change nothing.
    #[error("`{key}` has no effect: {why}")]
    NoEffect {
        /// The key.
        key: &'static str,
        /// Why not.
        why: &'static str,
    },
}

const TIME: &str = "a time such as 250ms, 30s, 5m, 1d, and not zero";
const NUMBER: &str = "a whole number from 1 up";
const RATE: &str = "so many per time, such as 5/s or 100/60s";
const WAVE: &str = "a share from 0 to 1, and the time of one wave: 0.3/600s";
const STEP: &str = "a time, and a factor above zero: 20m/0.5";
const SHARE: &str = "a share between 0 and 1";

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let mut whole = Spec::open();
        // Keys of the whole, and the kinds that may stand once, in the order of the text.
        let mut seen = Vec::new();
        for part in text.split('+') {
            let mut settings = Settings::read(part)?;
            let mut spec = settings.kind()?;
            settings.rule_keys(&mut spec)?;
            settings.whole_keys(&mut spec, &mut seen)?;
            settings.done()?;
            once(&mut seen, spec.brownout.map(|_| "brownout"))?;
            once(&mut seen, spec.flaky.map(|_| "flaky"))?;
            whole = whole.and(spec);
        }
        if seen.contains(&"lie") && whole.hints.is_empty() {
            return Err(SpecError::NoEffect { key: "lie", why: "no hint is told" });
        }
        Ok(whole)
    }
}

fn once(seen: &mut Vec<&'static str>, key: Option<&'static str>) -> Result<(), SpecError> {
    match key {
        Some(key) if seen.contains(&key) => Err(SpecError::Twice { key: key.to_owned() }),
        Some(key) => {
            seen.push(key);
            Ok(())
        }
        None => Ok(()),
    }
}

/// One part of the text, its settings taken out one by one.
struct Settings<'a> {
    kind: &'a str,
    left: Vec<(&'a str, &'a str)>,
}

impl<'a> Settings<'a> {
    fn read(part: &'a str) -> Result<Settings<'a>, SpecError> {
        let (kind, rest) = part.split_once(':').unwrap_or((part, ""));
        let mut left = Vec::new();
        for item in rest.split(',').map(str::trim).filter(|item| !item.is_empty()) {
            let (key, value) =
                item.split_once('=').ok_or_else(|| SpecError::NoValue { text: item.to_owned() })?;
            left.push((key.trim(), value.trim()));
        }
        Ok(Settings { kind: kind.trim(), left })
    }

    fn kind(&mut self) -> Result<Spec, SpecError> {
        let day = Duration::from_secs(86_400);
        Ok(match self.kind {
            "open" => Spec::open(),
            "token-bucket" => {
                let rate = self.need("rate", RATE)?;
                let mut spec = Spec::token_bucket(rate, self.number("burst")?.unwrap_or(1));
                if let Some(value) = self.one("wave")? {
                    let (share, period) = wave(value).ok_or_else(|| bad("wave", value, WAVE))?;
                    spec = spec.wave(share, period);
                }
                for value in self.all("step") {
                    let (at, factor) = step(value).ok_or_else(|| bad("step", value, STEP))?;
                    spec = spec.step(at, factor);
                }
                spec
            }
            "gcra" => Spec::gcra(self.need("rate", RATE)?, self.number("burst")?.unwrap_or(1)),
            "fixed-window" => {
                let (limit, window) = self.limit()?;
                let choice = [("epoch", false), ("first-request", true)];
                match self.choice("phase", &choice, "epoch or first-request")?.unwrap_or(false) {
                    true => Spec::window_from_first_request(limit, window),
                    false => Spec::fixed_window(limit, window),
                }
            }
            "sliding-log" => {
                let (limit, window) = self.limit()?;
                Spec::sliding_log(limit, window)
            }
            "sliding-counter" => {
                let (limit, window) = self.limit()?;
                Spec::sliding_counter(limit, window)
            }
            "cost-log" => {
                let (limit, window) = self.limit()?;
                Spec::cost_log(limit, window)
            }
            "concurrency" => {
                let max = self.number("max")?.ok_or_else(|| self.missing("max"))?;
                Spec::concurrency_telling(max, self.time("wait")?.unwrap_or(Duration::from_secs(1)))
            }
            "maintenance" => {
                let span = self.time("for")?.ok_or_else(|| self.missing("for"))?;
                let from = self.time_or_zero("from")?;
                match self.time("every")? {
                    Some(every) => Spec::maintenance_every(from, span, every),
                    None => Spec::maintenance(from, span),
                }
            }
            "sentence" => {
                let patterns: Vec<&str> = self.all("match");
                if patterns.is_empty() {
                    return Err(self.missing("match"));
                }
                Spec::sentence(patterns, self.time("wait")?.unwrap_or(day))
            }
            "brownout" => {
                let capacity = self.need("capacity", RATE)?;
                let base = self.time("base")?.unwrap_or(Duration::from_millis(50));
                Spec::brownout(capacity, base, self.time("patience")?.unwrap_or(Duration::from_secs(2)))
            }
            "flaky" => {
                let shares = Shares {
                    reset: self.share("reset")?,
                    bad_gateway: self.share("bad-gateway")?,
                    truncated: self.share("truncated")?,
                    stalled: self.share("stalled")?,
                    stall: self.time("stall")?.unwrap_or(Shares::default().stall),
                };
                let total = shares.reset + shares.bad_gateway + shares.truncated + shares.stalled;
                if total > 1.0 {
                    return Err(bad("flaky", &total.to_string(), "shares of no more than 1 together"));
                }
                Spec::flaky(shares)
            }
            kind => return Err(SpecError::UnknownKind { kind: kind.to_owned() }),
        })
    }

    /// Settings that every rule has; of a part without a rule they stay, and are unknown.
    fn rule_keys(&mut self, spec: &mut Spec) -> Result<(), SpecError> {
        let Some(rule) = spec.rules.last_mut() else { return Ok(()) };
        for value in self.all("scope") {
            let expected = "one of endpoint, path, account, client";
            let (_, scope) = SCOPES
                .iter()
                .find(|(name, _)| *name == value)
                .ok_or_else(|| bad("scope", value, expected))?;
            if rule.scope.contains(scope) {
                return Err(SpecError::Twice { key: format!("scope={value}") });
            }
            rule.scope.push(*scope);
        }
        for value in self.all("match") {
            if !value.starts_with(['/', '*']) {
                return Err(bad("match", value, "a path that begins with / or *"));
            }
            rule.matching.push(value.to_owned());
        }
        if let Some(value) = self.one("penalty")? {
            let expected =
                "a time such as 250ms, 30s, 5m, 1d, or two, the second for who comes early: 30s/60s";
            let (pause, early) = penalty(value).ok_or_else(|| bad("penalty", value, expected))?;
            (rule.penalty, rule.penalty_early) = (Some(pause), early);
        }
        if let Some(value) = self.one("ban")? {
            let expected = "refusals, within a time, for a time: 3/60s/10m";
            rule.ban = Some(ban(value).ok_or_else(|| bad("ban", value, expected))?);
        }
        if self.choice("rejected", &[("count", ())], "count")?.is_some() {
            if !rule.kind.has_memory() {
                let why =
                    "only token-bucket, gcra, sliding-log and sliding-counter can count what they refuse";
                return Err(SpecError::NoEffect { key: "rejected", why });
            }
            rule.rejected_count = true;
        }
        Ok(())
    }

    fn whole_keys(&mut self, spec: &mut Spec, seen: &mut Vec<&'static str>) -> Result<(), SpecError> {
        for value in self.all("hint") {
            let expected =
                "one of seconds, http-date, ms, reset-epoch, reset-delta, draft-3, draft-7, structured";
            let hint = Hint::ALL
                .into_iter()
                .find(|hint| hint.name() == value)
                .ok_or_else(|| bad("hint", value, expected))?;
            spec.hints.push(hint);
        }
        if let Some(value) = self.one("status")? {
            once(seen, Some("status"))?;
            let status = value.parse().ok().filter(|status| (400..600).contains(status));
            spec.status = status.ok_or_else(|| bad("status", value, "a status from 400 to 599"))?;
        }
        if let Some(value) = self.one("lie")? {
            once(seen, Some("lie"))?;
            let factor = value.parse().ok().filter(|factor: &f64| factor.is_finite() && *factor >= 0.0);
            spec.lie = factor.ok_or_else(|| bad("lie", value, "a factor such as 0.5 or 3"))?;
        }
        if let Some(value) = self.one("skew")? {
            once(seen, Some("skew"))?;
            let time = parse_duration(value.trim_start_matches('-'));
            let millis = time.and_then(|time| i64::try_from(time.as_millis()).ok());
            let millis = millis.ok_or_else(|| bad("skew", value, "a time such as 1h or -1h"))?;
            spec.skew_ms = if value.starts_with('-') { -millis } else { millis };
        }
        if let Some(value) = self.one("seed")? {
            once(seen, Some("seed"))?;
            spec.seed = value.parse().map_err(|_| bad("seed", value, "a whole number"))?;
        }
        Ok(())
    }

    fn done(&self) -> Result<(), SpecError> {
        match self.left.first() {
            Some((key, _)) => {
                Err(SpecError::UnknownKey { kind: self.kind.to_owned(), key: (*key).to_owned() })
            }
            None => Ok(()),
        }
    }

    fn all(&mut self, key: &str) -> Vec<&'a str> {
        self.left.extract_if(.., |(each, _)| *each == key).map(|(_, value)| value).collect()
    }

    fn one(&mut self, key: &str) -> Result<Option<&'a str>, SpecError> {
        match self.all(key)[..] {
            [] => Ok(None),
            [value] => Ok(Some(value)),
            _ => Err(SpecError::Twice { key: key.to_owned() }),
        }
    }

    fn need<T: FromStr>(&mut self, key: &'static str, expected: &'static str) -> Result<T, SpecError> {
        let value = self.one(key)?.ok_or_else(|| self.missing(key))?;
        value.parse().map_err(|_| bad(key, value, expected))
    }

    fn limit(&mut self) -> Result<(u32, Duration), SpecError> {
        let rate: Rate = self.need("limit", RATE)?;
        Ok((rate.count(), rate.per()))
    }

    fn number(&mut self, key: &str) -> Result<Option<u32>, SpecError> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        let number = value.parse().ok().filter(|number| *number > 0);
        number.map(Some).ok_or_else(|| bad(key, value, NUMBER))
    }

    fn time(&mut self, key: &str) -> Result<Option<Duration>, SpecError> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        let time = parse_duration(value).filter(|time| !time.is_zero());
        time.map(Some).ok_or_else(|| bad(key, value, TIME))
    }

    fn time_or_zero(&mut self, key: &str) -> Result<Duration, SpecError> {
        let Some(value) = self.one(key)? else { return Ok(Duration::ZERO) };
        parse_duration(value).ok_or_else(|| bad(key, value, "a time such as 250ms, 30s, 5m, 1d, or 0"))
    }

    fn share(&mut self, key: &str) -> Result<f64, SpecError> {
        let Some(value) = self.one(key)? else { return Ok(0.0) };
        let share = value.parse().ok().filter(|share| (0.0..=1.0).contains(share));
        share.ok_or_else(|| bad(key, value, SHARE))
    }

    fn choice<T: Copy>(
        &mut self,
        key: &str,
        choices: &[(&str, T)],
        expected: &'static str,
    ) -> Result<Option<T>, SpecError> {
        let Some(value) = self.one(key)? else { return Ok(None) };
        let chosen = choices.iter().find(|(name, _)| *name == value).map(|(_, choice)| *choice);
        chosen.map(Some).ok_or_else(|| bad(key, value, expected))
    }

    fn missing(&self, key: &'static str) -> SpecError {
        SpecError::Missing { kind: self.kind.to_owned(), key }
    }
}

impl Kind {
    fn has_memory(self) -> bool {
        matches!(
            self,
            Kind::TokenBucket { .. }
                | Kind::Gcra { .. }
                | Kind::SlidingLog { .. }
                | Kind::SlidingCounter { .. }
        )
    }
}

fn bad(key: &str, value: &str, expected: &'static str) -> SpecError {
    SpecError::Value { key: key.to_owned(), value: value.to_owned(), expected }
}

/// `3/60s/10m`.
fn ban(text: &str) -> Option<BanSpec> {
    let mut parts = text.split('/');
    let strikes = parts.next()?.parse().ok().filter(|strikes| *strikes > 0)?;
    let within = parse_duration(parts.next()?).filter(|time| !time.is_zero())?;
    let term = parse_duration(parts.next()?).filter(|time| !time.is_zero())?;
    parts.next().is_none().then_some(BanSpec { strikes, within, term })
}

/// `0.3/600s`.
fn wave(text: &str) -> Option<(f64, Duration)> {
    let (share, period) = text.split_once('/')?;
    let share = share.parse().ok().filter(|share| (0.0..=1.0).contains(share))?;
    Some((share, parse_duration(period).filter(|period| !period.is_zero())?))
}

/// `30s`, or `30s/60s`.
fn penalty(text: &str) -> Option<(Duration, Option<Duration>)> {
    let time = |text| parse_duration(text).filter(|time| !time.is_zero());
    match text.split_once('/') {
        None => Some((time(text)?, None)),
        Some((pause, early)) => Some((time(pause)?, Some(time(early)?))),
    }
}

/// `20m/0.5`.
fn step(text: &str) -> Option<(Duration, f64)> {
    let (at, factor) = text.split_once('/')?;
    let factor = factor.parse().ok().filter(|factor: &f64| *factor > 0.0 && factor.is_finite())?;
    Some((parse_duration(at)?, factor))
}

const SCOPES: [(&str, Scope); 4] = [
    ("endpoint", Scope::Endpoint),
    ("path", Scope::Path),
    ("account", Scope::Account),
    ("client", Scope::Client),
];

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts: Vec<(&str, Vec<String>)> = self.rules.iter().map(show_rule).collect();
        if let Some(BrownoutSpec { capacity, base, patience }) = self.brownout {
            let [base, patience] = [base, patience].map(show_duration);
            let settings =
                vec![format!("capacity={capacity}"), format!("base={base}"), format!("patience={patience}")];
            parts.push(("brownout", settings));
        }
        if let Some(Shares { reset, bad_gateway, truncated, stalled, stall }) = self.flaky {
            let shares = [
                ("reset", reset),
                ("bad-gateway", bad_gateway),
                ("truncated", truncated),
                ("stalled", stalled),
            ];
            let mut settings: Vec<String> = shares
                .into_iter()
                .filter(|(_, share)| *share > 0.0)
                .map(|(key, share)| format!("{key}={share}"))
                .collect();
            settings.push(format!("stall={}", show_duration(stall)));
            parts.push(("flaky", settings));
        }
        if parts.is_empty() {
            parts.push(("open", Vec::new()));
        }
        if let Some((_, settings)) = parts.last_mut() {
            settings.extend(self.show_whole());
        }
        for (index, (kind, settings)) in parts.iter().enumerate() {
            let join = if index > 0 { " + " } else { "" };
            let colon = if settings.is_empty() { "" } else { ":" };
            write!(f, "{join}{kind}{colon}{}", settings.join(","))?;
        }
        Ok(())
    }
}

impl Spec {
    fn show_whole(&self) -> Vec<String> {
        let plain = Spec::open();
        let mut settings: Vec<String> =
            self.hints.iter().map(|hint| format!("hint={}", hint.name())).collect();
        if self.status != plain.status {
            settings.push(format!("status={}", self.status));
        }
        if self.lie != plain.lie {
            settings.push(format!("lie={}", self.lie));
        }
        if self.skew_ms != plain.skew_ms {
            let sign = if self.skew_ms < 0 { "-" } else { "" };
            let skew = Duration::from_millis(self.skew_ms.unsigned_abs());
            settings.push(format!("skew={sign}{}", show_duration(skew)));
        }
        if self.seed != plain.seed {
            settings.push(format!("seed={}", self.seed));
        }
        settings
    }
}

fn show_rule(rule: &RuleSpec) -> (&'static str, Vec<String>) {
    let limit = |limit: u32, window: Duration| format!("limit={limit}/{}", show_duration(window));
    let time = |key: &str, time: Duration| format!("{key}={}", show_duration(time));
    let mut sentence = false;
    let (kind, mut settings) = match rule.kind {
        Kind::TokenBucket { rate, burst } => {
            let mut settings = vec![format!("rate={rate}"), format!("burst={burst}")];
            let wave = rule.tide.wave.iter();
            settings.extend(wave.map(|(share, period)| format!("wave={share}/{}", show_duration(*period))));
            let steps = rule.tide.steps.iter();
            settings.extend(steps.map(|(at, factor)| format!("step={}/{factor}", show_duration(*at))));
            ("token-bucket", settings)
        }
        Kind::Gcra { rate, burst } => ("gcra", vec![format!("rate={rate}"), format!("burst={burst}")]),
        Kind::FixedWindow { limit: most, window, first_request: false } => {
            ("fixed-window", vec![limit(most, window)])
        }
        Kind::FixedWindow { limit: most, window, first_request: true } => {
            ("fixed-window", vec![limit(most, window), "phase=first-request".to_owned()])
        }
        Kind::SlidingLog { limit: most, window } => ("sliding-log", vec![limit(most, window)]),
        Kind::SlidingCounter { limit: most, window } => ("sliding-counter", vec![limit(most, window)]),
        Kind::CostLog { limit: most, window } => ("cost-log", vec![limit(most, window)]),
        Kind::Concurrency { max, wait } => ("concurrency", vec![format!("max={max}"), time("wait", wait)]),
        Kind::Maintenance { from, span, every } => {
            let every = every.map(|every| time("every", every));
            ("maintenance", [time("from", from), time("for", span)].into_iter().chain(every).collect())
        }
        Kind::Sentence { wait } => {
            sentence = true;
            ("sentence", vec![time("wait", wait)])
        }
    };
    // A sentence counts by path without being told so.
    let scopes = SCOPES.iter().filter(|(_, scope)| rule.scope.contains(scope));
    settings.extend(
        scopes.filter(|(name, _)| !(sentence && *name == "path")).map(|(name, _)| format!("scope={name}")),
    );
    settings.extend(rule.matching.iter().map(|pattern| format!("match={pattern}")));
    settings.extend(rule.penalty.map(|pause| match rule.penalty_early {
        None => time("penalty", pause),
        Some(early) => format!("{}/{}", time("penalty", pause), show_duration(early)),
    }));
    settings.extend(
        rule.ban.map(|ban| {
            format!("ban={}/{}/{}", ban.strikes, show_duration(ban.within), show_duration(ban.term))
        }),
    );
    settings.extend(rule.rejected_count.then(|| "rejected=count".to_owned()));
    (kind, settings)
}

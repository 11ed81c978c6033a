//! The machine that a [`Spec`] describes: rules by scope, troubles, and the words for a refusal.

use std::collections::HashMap;
use std::time::Duration;

use crate::answer::{Answer, Facts, Fault, ScopeId, Verdict};
use crate::hint::{Telling, http_date};
use crate::limiter::bucket::{Gcra, TokenBucket};
use crate::limiter::concurrency::Concurrency;
use crate::limiter::punish::{Ban, Penalty};
use crate::limiter::tide::TidalBucket;
use crate::limiter::trouble::{Brownout, Effect, Flaky, Maintenance, Sentence};
use crate::limiter::window::{CostLog, FixedWindow, SlidingCounter, SlidingLog};
use crate::limiter::{Budget, Limiter, Refusal, Rule};
use crate::rng;
use crate::spec::{Kind, RuleSpec, Scope, Spec};

/// Counters kept per rule; beyond it the longest unused half is forgotten, as a server's cache would do.
const COUNTERS_MAX: usize = 100_000;

/// What a [`Spec`] describes, as one machine.
#[derive(Debug)]
pub struct Origin {
    spec: Spec,
    epoch: Duration,
    rules: Vec<Scoped>,
    brownout: Option<Brownout>,
    flaky: Option<Flaky>,
}

/// One rule with a counter for each of its keys.
#[derive(Debug)]
struct Scoped {
    counters: HashMap<ScopeId, Counter>,
}

#[derive(Debug)]
struct Counter {
    rule: Box<dyn Rule>,
    used: Duration,
}

impl Origin {
    /// The machine of `spec`; `epoch` is the Unix time at its time zero.
    #[must_use]
    pub fn new(spec: &Spec, epoch: Duration) -> Origin {
        let brownout = spec
            .brownout
            .map(|shape| Brownout::new(shape.capacity.hertz(), shape.base, shape.patience, spec.seed));
        Origin {
            epoch,
            rules: spec.rules.iter().map(|_| Scoped { counters: HashMap::new() }).collect(),
            brownout,
            flaky: spec.flaky.map(|shares| Flaky::new(shares, spec.seed)),
            spec: spec.clone(),
        }
    }

    /// The counters that a request falls under, as index of the rule and key.
    fn scopes(&self, request: &Facts<'_>) -> Vec<(usize, ScopeId)> {
        let keys = self.spec.rules.iter().enumerate();
        keys.filter_map(|(index, rule)| Some((index, key(index, rule, request)?))).collect()
    }

    fn counter(&mut self, index: usize, id: ScopeId, now: Duration) -> &mut dyn Rule {
        let Origin { spec, rules, epoch, .. } = self;
        let counters = &mut rules[index].counters;
        if counters.len() >= COUNTERS_MAX && !counters.contains_key(&id) {
            forget_half(counters);
        }
        let counter = counters
            .entry(id)
            .or_insert_with(|| Counter { rule: build_rule(&spec.rules[index], *epoch), used: now });
        counter.used = now;
        counter.rule.as_mut()
    }

    /// Unix time by the server's own clock, which may be wrong.
    fn wall(&self, now: Duration) -> Duration {
        let wall = self.epoch + now;
        let skew = Duration::from_millis(self.spec.skew_ms.unsigned_abs());
        if self.spec.skew_ms < 0 { wall.saturating_sub(skew) } else { wall + skew }
    }

    /// Tightest first: what is left, then the longest reset.
    fn budgets(&mut self, scopes: &[(usize, ScopeId)], now: Duration) -> Vec<Budget> {
        let mut budgets: Vec<Budget> =
            scopes.iter().filter_map(|(index, id)| self.counter(*index, *id, now).budget(now)).collect();
        budgets.sort_by_key(|budget| (budget.remaining, std::cmp::Reverse(budget.reset)));
        budgets
    }

    fn lied(&self, wait: Duration) -> Duration {
        // No lie is longer than a century, and no product overflows.
        const MOST: f64 = 3_155_760_000.0;
        if self.spec.lie == 1.0 {
            return wait;
        }
        Duration::from_secs_f64((wait.as_secs_f64() * self.spec.lie).clamp(0.0, MOST))
    }

    /// Adds hints, and the `Date` of a clock that is wrong.
    fn tell(&mut self, answer: &mut Answer, scopes: &[(usize, ScopeId)], now: Duration, silent: bool) {
        let wall = self.wall(now);
        answer.headers.push(("date".into(), http_date(wall)));
        if silent || self.spec.hints.is_empty() {
            return;
        }
        let mut budgets = self.budgets(scopes, now);
        for budget in &mut budgets {
            budget.reset = self.lied(budget.reset);
        }
        let wait = answer.wait.map(|wait| self.lied(wait));
        let telling = Telling { wait, budgets: &budgets, wall };
        answer.told = telling.write(&self.spec.hints, &mut answer.headers);
    }
}

/// What an origin decides on a request, before it is put into words: for a simulation, which has no use for headers.
#[derive(Clone, Debug)]
pub struct Ruling {
    /// Served, refused or broken.
    pub verdict: Verdict,
    /// The status line's code.
    pub status: u16,
    /// How long the answer is in the making.
    pub latency: Duration,
    /// When the limiter would truly admit a refused request, if it can know.
    pub wait: Option<Duration>,
    /// A ban does not say when it ends.
    silent: bool,
    refused_by: Option<ScopeId>,
    scopes: Vec<(usize, ScopeId)>,
}

impl Origin {
    /// Lets a request in or turns it away; [`Origin::words`] says so. [`Limiter::arrive`] is both in one.
    pub fn rule(&mut self, now: Duration, request: &Facts<'_>) -> Ruling {
        let scopes = self.scopes(request);
        let mut refusal: Option<(Refusal, ScopeId)> = None;
        for (index, id) in &scopes {
            let rule = self.counter(*index, *id, now);
            rule.weigh(request.cost());
            if rule.test(now) {
                continue;
            }
            let next = rule.refuse(now);
            // A ban speaks before a longer wait does: it is what the client must learn.
            let rank = |refusal: &Refusal| (refusal.silent, refusal.wait);
            if refusal.as_ref().is_none_or(|(worst, _)| rank(worst) < rank(&next)) {
                refusal = Some((next, *id));
            }
        }
        let mut ruling = Ruling {
            verdict: Verdict::Served,
            status: 200,
            latency: Duration::ZERO,
            wait: None,
            silent: false,
            refused_by: None,
            scopes,
        };
        if let Some((refusal, by)) = refusal {
            ruling.verdict = Verdict::Refused;
            ruling.status = refusal.status.unwrap_or(self.spec.status);
            ruling.wait = Some(refusal.wait);
            ruling.silent = refusal.silent;
            ruling.refused_by = Some(by);
            return ruling;
        }
        for (index, id) in &ruling.scopes {
            self.counter(*index, *id, now).take(now);
        }
        let mut effects = [None, None];
        effects[0] = self.brownout.as_mut().map(|brownout| brownout.arrive(now));
        effects[1] = self.flaky.as_mut().and_then(Flaky::arrive);
        for effect in effects.into_iter().flatten() {
            disturb(&mut ruling, effect);
        }
        ruling.silent = ruling.verdict == Verdict::Fault(Fault::ErrorPage);
        ruling
    }

    /// The answer that says what was ruled at the same `now`.
    pub fn words(&mut self, now: Duration, ruling: &Ruling) -> Answer {
        let mut answer = Answer {
            verdict: ruling.verdict,
            status: ruling.status,
            latency: ruling.latency,
            wait: ruling.wait,
            refused_by: ruling.refused_by,
            scopes: ruling.scopes.iter().map(|(_, id)| *id).collect(),
            ..Answer::ok()
        };
        self.tell(&mut answer, &ruling.scopes, now, ruling.silent);
        answer
    }

    /// A request that was ruled on has been answered.
    pub fn left(&mut self, now: Duration, ruling: &Ruling) {
        if ruling.verdict != Verdict::Refused {
            for (index, id) in &ruling.scopes {
                self.counter(*index, *id, now).depart();
            }
        }
    }
}

impl Limiter for Origin {
    fn arrive(&mut self, now: Duration, request: &Facts<'_>) -> Answer {
        let ruling = self.rule(now, request);
        self.words(now, &ruling)
    }

    fn depart(&mut self, now: Duration, request: &Facts<'_>, answer: &Answer) {
        if answer.verdict == Verdict::Refused {
            return;
        }
        for (index, id) in self.scopes(request) {
            self.counter(index, id, now).depart();
        }
    }
}

fn disturb(answer: &mut Ruling, effect: Effect) {
    if answer.verdict != Verdict::Served {
        return; // the first trouble in line decides: an error page is not truncated as well
    }
    let fault = match effect {
        Effect::Slower(latency) => {
            answer.latency += latency;
            return;
        }
        Effect::Error(status, latency) => {
            answer.latency += latency;
            answer.status = status;
            Fault::ErrorPage
        }
        Effect::Reset => Fault::Reset,
        Effect::Truncated => Fault::Truncated,
        Effect::Stall(time) => Fault::Stall(time),
    };
    answer.verdict = Verdict::Fault(fault);
}

/// The key of a request under a rule, or none if the rule does not hold for it.
fn key(index: usize, rule: &RuleSpec, request: &Facts<'_>) -> Option<ScopeId> {
    let path = request.bare_path();
    let pattern = match rule.matching.is_empty() {
        true => 0,
        false => 1 + rule.matching.iter().position(|pattern| matches(pattern, path))? as u64,
    };
    let mut id = rng::mix(index as u64 + 1);
    for scope in &rule.scope {
        let part = match scope {
            Scope::Endpoint if pattern > 0 => pattern,
            Scope::Endpoint => rng::hash(path.split('/').nth(1).unwrap_or_default().as_bytes()),
            Scope::Path => rng::hash(path.as_bytes()),
            Scope::Account => request.account.map_or(0, |account| account.0),
            Scope::Client => rng::hash(request.client.to_string().as_bytes()),
        };
        id = rng::mix(id ^ part.wrapping_add(0x9e37_79b9_7f4a_7c15));
    }
    Some(ScopeId(id))
}

/// Whether `path` fits `pattern`, in which `*` stands for any text, also none.
pub(crate) fn matches(pattern: &str, path: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == path };
    let Some(mut path) = path.strip_prefix(head) else { return false };
    let mut rest = rest;
    // Middle parts are taken at their first place, the last one at the end: enough, for `*` takes anything.
    while let Some((part, next)) = rest.split_once('*') {
        let Some(at) = path.find(part) else { return false };
        path = &path[at + part.len()..];
        rest = next;
    }
    path.ends_with(rest)
}

fn build_rule(spec: &RuleSpec, epoch: Duration) -> Box<dyn Rule> {
    let counted = spec.rejected_count;
    let mut rule: Box<dyn Rule> = match spec.kind {
        Kind::TokenBucket { rate, burst } if spec.tide.is_still() => {
            Box::new(TokenBucket::new(rate, burst, counted))
        }
        Kind::TokenBucket { rate, burst } => {
            Box::new(TidalBucket::new(rate.hertz(), burst, spec.tide.clone(), counted))
        }
        Kind::Gcra { rate, burst } => Box::new(Gcra::new(rate, burst, counted)),
        Kind::FixedWindow { limit, window, first_request: true } => {
            Box::new(FixedWindow::from_first_request(limit, window))
        }
        Kind::FixedWindow { limit, window, first_request: false } => {
            Box::new(FixedWindow::aligned(limit, window, epoch))
        }
        Kind::SlidingLog { limit, window } => Box::new(SlidingLog::new(limit, window, counted)),
        Kind::SlidingCounter { limit, window } => {
            Box::new(SlidingCounter::new(limit, window, epoch, counted))
        }
        Kind::CostLog { limit, window } => Box::new(CostLog::new(limit, window)),
        Kind::Concurrency { max, wait } => Box::new(Concurrency::new(max, wait)),
        Kind::Maintenance { from, span, every } => Box::new(Maintenance::new(from, span, every)),
        Kind::Sentence { wait } => Box::new(Sentence::new(wait)),
    };
    if let Some(pause) = spec.penalty {
        rule = Box::new(Penalty::new(rule, pause, spec.penalty_early.unwrap_or(pause)));
    }
    if let Some(ban) = spec.ban {
        rule = Box::new(Ban::new(rule, ban.strikes, ban.within, ban.term));
    }
    rule
}

fn forget_half(counters: &mut HashMap<ScopeId, Counter>) {
    let mut used: Vec<Duration> = counters.values().map(|counter| counter.used).collect();
    let middle = used.len() / 2;
    let (_, median, _) = used.select_nth_unstable(middle);
    let median = *median;
    counters.retain(|_, counter| counter.used > median);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, path, expected) in [
            ("/a", "/a", true),
            ("/a", "/ab", false),
            ("/a*", "/a", true),
            ("/a*", "/b/a", false),
            ("*", "", true),
            ("*/c", "/a/b/c", true),
            ("/a/*/c", "/a//c", true),
            ("/a/*/c", "/a/c", false),
            ("/a*a", "/a", false),
            ("/*b*b", "/b", false),
            ("/*b*b", "/bb", true),
            ("/*.json*", "/x.json?", true),
        ] {
            assert_eq!(matches(pattern, path), expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_counters_of_a_rule_are_bounded() {
        let spec: Spec = "fixed-window:limit=1/1h,scope=path".parse().unwrap();
        let mut origin = spec.build(Duration::ZERO);
        for n in 0..COUNTERS_MAX as u64 + 10 {
            let answer = origin.arrive(Duration::from_micros(n), &Facts::get(&format!("/{n}")));
            assert_eq!(answer.status, 200);
        }
        assert!(origin.rules[0].counters.len() < COUNTERS_MAX * 2 / 3);
        let last = format!("/{}", COUNTERS_MAX + 9);
        assert_eq!(
            origin.arrive(Duration::from_secs(1), &Facts::get(&last)).status,
            429,
            "the newest are kept"
        );
    }
}

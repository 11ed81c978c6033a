//! How likely a hypothesis makes what was seen.
//!
//! Given when requests started, a limit with known numbers says which of them it refuses. The chance of a hypothesis is how
//! well it says that: each stretch counts by how many of its starts might as well have been the refused one, and by how far
//! the level at the refusal was from where it should have been. So a hypothesis that is always right within one start is told
//! from one that is right within a hundred, though both explain everything. A stretch that it gets wrong counts as a guess and
//! a little more: one that was measured badly ends no hypothesis.

use super::history::{Knot, Seen};

/// A part of the past without a gap: what was let through, as a curve, and what was refused.
#[derive(Clone, Debug)]
pub(super) struct Part {
    knots: Vec<Knot>,
    ticks: Vec<Tick>,
    refusals: Vec<f64>,
    /// It begins with the scope: nothing was counted before.
    whole: bool,
}

/// A refusal, or some starts that were let through, up to a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tick {
    pub(super) at: f64,
    /// Let through by then.
    pub(super) count: f64,
    /// Let through since `before`.
    starts: f64,
    before: f64,
    pub(super) kind: What,
    /// Told, in seconds; negative where nothing was.
    pub(super) told: f64,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum What {
    Passed,
    /// The first refusal of an incident.
    Refused,
    Probe,
}

impl Tick {
    pub(super) fn starts(&self) -> f64 {
        self.starts
    }
}

impl Part {
    pub(super) fn new(knots: Vec<Knot>, seen: &[Seen], whole: bool) -> Part {
        let begins = knots.first().map_or(0.0, |knot| knot.at);
        let seen = seen.iter().filter(|seen| seen.at >= begins);
        let refusals: Vec<f64> = seen.clone().map(|seen| seen.at).collect();
        let mut seen = seen.peekable();
        let mut ticks = Vec::with_capacity(3 * knots.len() + refusals.len());
        let mut count = Cursor::new(&knots);
        let mut refuse = |ticks: &mut Vec<Tick>, until: f64| {
            while let Some(seen) = seen.next_if(|seen| seen.at < until) {
                let kind = if seen.probe { What::Probe } else { What::Refused };
                let (at, told) = (seen.at, f64::from(seen.told));
                ticks.push(Tick { at, count: count.at(at), starts: 0.0, before: at, kind, told });
            }
        };
        for pair in knots.windows(2) {
            let [a, b] = [pair[0], pair[1]];
            let starts = (b.count - a.count).max(0.0);
            let parts = if starts < 2.0 || b.at <= a.at { 1 } else { SPLIT };
            let mut before = a.at;
            for i in 1..=parts {
                let share = f64::from(i) / f64::from(parts);
                let at = a.at + (b.at - a.at) * share;
                refuse(&mut ticks, at);
                let (count, starts) = (a.count + (b.count - a.count) * share, starts / f64::from(parts));
                ticks.push(Tick { at, count, starts, before, kind: What::Passed, told: -1.0 });
                before = at;
            }
        }
        refuse(&mut ticks, f64::INFINITY);
        Part { knots, ticks, refusals, whole }
    }

    pub(super) fn ticks(&self) -> &[Tick] {
        &self.ticks
    }

    pub(super) fn is_whole(&self) -> bool {
        self.whole
    }

    pub(super) fn begins(&self) -> f64 {
        self.knots.first().map_or(0.0, |knot| knot.at)
    }

    pub(super) fn ends(&self) -> f64 {
        self.knots.last().map_or(0.0, |knot| knot.at)
    }

    /// The first refusals of incidents.
    pub(super) fn firsts(&self) -> impl Iterator<Item = &Tick> + Clone {
        self.ticks.iter().filter(|tick| tick.kind == What::Refused)
    }

    pub(super) fn cursor(&self) -> Cursor<'_> {
        Cursor::new(&self.knots)
    }

    /// When so many had been let through.
    fn reached(&self, count: f64) -> Option<f64> {
        let after = self.knots.partition_point(|knot| knot.count <= count);
        let (a, b) = (self.knots.get(after.checked_sub(1)?)?, self.knots.get(after)?);
        Some(a.at + (b.at - a.at) * (count - a.count) / (b.count - a.count).max(1e-9))
    }

    /// Refusals in a time that ends before `to`.
    fn refused_between(&self, from: f64, to: f64) -> f64 {
        let upto = |at: f64| self.refusals.partition_point(|refused| *refused <= at);
        self.refusals.partition_point(|refused| *refused < to).saturating_sub(upto(from)) as f64
    }
}

/// Reads the curve from left to right, or nearly so.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    knots: &'a [Knot],
    here: usize,
}

impl Cursor<'_> {
    fn new(knots: &[Knot]) -> Cursor<'_> {
        Cursor { knots, here: 0 }
    }

    /// How many had been let through by `at`.
    pub(super) fn at(&mut self, at: f64) -> f64 {
        let knots = self.knots;
        while knots.get(self.here + 1).is_some_and(|next| next.at <= at) {
            self.here += 1;
        }
        while self.here > 0 && knots[self.here].at > at {
            self.here -= 1;
        }
        let a = knots[self.here];
        match knots.get(self.here + 1) {
            Some(b) if at > a.at => a.count + (b.count - a.count) * (at - a.at) / (b.at - a.at),
            _ => a.count,
        }
    }
}

/// A hypothesis with its numbers, and the logarithm of how likely it makes what was seen.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Guess {
    pub(super) score: f64,
    pub(super) rate: f64,
    pub(super) number: f64,
    /// A window, or a time of refusals.
    pub(super) window: f64,
    pub(super) phase: f64,
}

impl Guess {
    pub(super) const NONE: Guess =
        Guess { score: f64::NEG_INFINITY, rate: 0.0, number: 0.0, window: 0.0, phase: 0.0 };

    pub(super) fn or(self, other: Guess) -> Guess {
        if other.score > self.score { other } else { self }
    }
}

/// Of a limit that refuses now and then, whoever asks.
pub(super) fn by_chance(parts: &[Part]) -> f64 {
    let mut score = 0.0;
    for part in parts {
        let (mut known, mut starts) = (part.whole, 0.0);
        for tick in &part.ticks {
            match tick.kind {
                What::Passed => starts += tick.starts,
                What::Probe => score -= PROBE_BY_CHANCE,
                What::Refused => {
                    score += if known { chance(starts) } else { 0.0 };
                    (known, starts) = (true, 0.0);
                }
            }
        }
    }
    score
}

/// One of so many starts, and any of them as well.
fn chance(starts: f64) -> f64 {
    -1.0 - (starts + 1.0).ln()
}

/// Adds up how likely the stretches are, for one top.
struct Sum {
    score: f64,
    top: f64,
    noise: f64,
    /// A level that is not above this refuses nothing.
    floor: f64,
    /// Of the stretch: the highest level, the starts, and those within [`FAR`] of the top.
    most: f64,
    starts: f64,
    near: [f64; FAR.len()],
}

impl Sum {
    fn new(top: f64, noise: f64) -> Sum {
        let floor = f64::NEG_INFINITY;
        Sum { score: 0.0, top, noise, floor, most: f64::NEG_INFINITY, starts: 0.0, near: [0.0; FAR.len()] }
    }

    /// A new stretch.
    fn begin(&mut self) {
        (self.most, self.starts, self.near) = (f64::NEG_INFINITY, 0.0, [0.0; FAR.len()]);
    }

    /// So many starts were let through, with the level going from `low` to `high`.
    fn passed(&mut self, low: f64, high: f64, starts: f64) {
        if starts <= 0.0 {
            return;
        }
        self.most = self.most.max(high);
        self.starts += starts;
        if high <= self.top - FAR[FAR.len() - 1] * self.noise {
            return;
        }
        for (near, far) in self.near.iter_mut().zip(FAR) {
            let from = (self.top - far * self.noise).max(self.floor);
            if high > from {
                *near += starts * if low >= from { 1.0 } else { (high - from) / (high - low).max(1e-9) };
            }
        }
    }

    fn refused(&mut self, level: f64) {
        // Those that were as near to being refused.
        let lower = (self.top - level) / self.noise + 1.0;
        let far = FAR.iter().position(|far| *far >= lower).filter(|_| level > self.floor);
        let near = far.map_or(self.starts, |k| self.near[k]);
        let off = ((level - self.top).abs() / self.noise - 0.5).max(0.0);
        let cost = (1.0 + near).ln() + 1.0 + off + self.over();
        self.score -= cost.min(WRONG - chance(self.starts));
        self.begin();
    }

    fn probe_refused(&mut self, level: f64) {
        let off = ((self.top - level - 0.7) / self.noise).max(0.0);
        self.score -= if level <= self.floor { PROBE_WRONG } else { off.min(PROBE_WRONG) };
    }

    fn told(&mut self, wait: Option<f64>, tick: &Tick) {
        if tick.told >= 0.0 {
            // Whole seconds, rounded up.
            let off = wait.map_or(0.05, |wait| (wait - tick.told).max(tick.told - 1.0 - wait));
            self.score -= (off / 0.1).clamp(0.0, TOLD_WRONG);
        }
    }

    /// A stretch that the hypothesis says nothing on.
    fn skip(&mut self) {
        self.score += chance(self.starts);
        self.begin();
    }

    /// More was let through than the top.
    fn over(&self) -> f64 {
        ((self.most - self.top) / self.noise - 1.0).max(0.0)
    }

    fn end(&mut self) {
        self.score -= self.over().min(WRONG);
        self.begin();
    }
}

/// Tops to try, from the levels at refusals.
fn tops(levels: &mut [f64]) -> impl Iterator<Item = f64> + use<> {
    levels.sort_by(f64::total_cmp);
    let n = levels.len();
    let tops = [n / 4, 0, n / 2, 3 * n / 4].map(|i| levels.get(i).copied());
    let mut last = f64::NEG_INFINITY;
    tops.into_iter().flatten().filter(move |top| (*top - std::mem::replace(&mut last, *top)).abs() >= 0.3)
}

/// A window whose level is known at a moment, where enough of the past is. `passed` tells of starts that were let through in the
/// part of that number, with the levels before and after.
fn windowed(
    parts: &[Part],
    (window, phase): (f64, f64),
    beat: f64,
    mut levels: impl FnMut(&Part, &mut Vec<Option<f64>>),
    mut passed: impl FnMut(&mut Sum, usize, &Tick, (f64, f64)),
    wait: impl Fn(&Part, &Tick, f64) -> Option<f64>,
) -> Guess {
    let (mut all, mut met) = (Vec::new(), Vec::new());
    for part in parts {
        let mut of = Vec::with_capacity(part.ticks.len());
        levels(part, &mut of);
        let firsts = part.ticks.iter().zip(&of).filter(|(tick, _)| tick.kind == What::Refused);
        met.extend(firsts.filter_map(|(_, level)| *level));
        all.push(of);
    }
    let mut best = Guess::NONE;
    'tops: for top in tops(&mut met).filter(|top| *top >= FEWEST) {
        let mut sum = Sum::new(top, NOISE + FINE * top);
        for (i, (part, levels)) in parts.iter().zip(&all).enumerate() {
            let (mut known, mut before) = (part.whole, f64::INFINITY);
            for (tick, level) in part.ticks.iter().zip(levels) {
                let Some(level) = *level else {
                    known |= sum.unknown(tick, known);
                    continue;
                };
                match tick.kind {
                    What::Passed => passed(&mut sum, i, tick, (before, level)),
                    What::Probe => sum.probe_refused(level),
                    What::Refused if known => sum.refused(level),
                    What::Refused => sum.begin(),
                }
                known |= tick.kind == What::Refused;
                if tick.told >= 0.0 {
                    sum.told(wait(part, tick, top), tick);
                }
                before = level;
                if tick.kind == What::Refused && sum.score <= best.score.max(beat) {
                    continue 'tops;
                }
            }
            sum.end();
        }
        let rate = top / window;
        best = best.or(Guess { score: sum.score, rate, number: top, window, phase });
    }
    best
}

/// Starts that were let through while a level went from one to the other.
fn pass(sum: &mut Sum, _: usize, tick: &Tick, (before, level): (f64, f64)) {
    sum.passed(before.min(level), level, tick.starts);
}

impl Sum {
    /// A tick of which the level is not known. Returns whether a stretch begins with it.
    fn unknown(&mut self, tick: &Tick, known: bool) -> bool {
        match tick.kind {
            What::Passed => self.starts += tick.starts,
            What::Probe => self.score -= PROBE_BY_CHANCE,
            What::Refused if known => self.skip(),
            What::Refused => self.begin(),
        }
        tick.kind == What::Refused
    }
}

/// A sliding log; one that `counts` refusals too. As with the others, a guess that does not `beat` a score is none.
pub(super) fn log(parts: &[Part], window: f64, counts: bool, beat: f64) -> Guess {
    let levels = |part: &Part, out: &mut Vec<Option<f64>>| {
        let mut gone = part.cursor();
        out.extend(part.ticks.iter().map(|tick| {
            let from = tick.at - window;
            let refused = if counts { part.refused_between(from, tick.at) } else { 0.0 };
            (part.whole || from >= part.begins()).then(|| tick.count - gone.at(from) + refused)
        }));
    };
    // The oldest request of the window leaves it.
    let wait = |part: &Part, tick: &Tick, top: f64| Some(part.reached(tick.count - top)? + window - tick.at);
    windowed(parts, (window, 0.0), beat, levels, pass, wait)
}

/// Two counters, the last one weighted by how much of its window still overlaps.
pub(super) fn counter(parts: &[Part], (window, phase): (f64, f64), beat: f64) -> Guess {
    let levels = |part: &Part, out: &mut Vec<Option<f64>>| {
        let (mut edge, mut last) = (part.cursor(), part.cursor());
        out.extend(part.ticks.iter().map(|tick| {
            let begun = begin(tick.at, window, phase);
            (part.whole || begun - window >= part.begins())
                .then(|| counted(tick, begun, window, &mut edge, &mut last))
        }));
    };
    windowed(parts, (window, phase), beat, levels, pass, |_, _, _| None)
}

/// The level of a sliding counter.
pub(super) fn counted(
    tick: &Tick,
    begun: f64,
    window: f64,
    edge: &mut Cursor<'_>,
    last: &mut Cursor<'_>,
) -> f64 {
    let at_edge = edge.at(begun);
    let before = at_edge - last.at(begun - window);
    tick.count - at_edge + before * (1.0 - (tick.at - begun) / window)
}

/// Where the window begins that `at` is in.
pub(super) fn begin(at: f64, window: f64, phase: f64) -> f64 {
    phase + ((at - phase) / window).floor() * window
}

/// A fixed window. What counts is how full each window was at its end.
pub(super) fn fixed(parts: &[Part], (window, phase): (f64, f64), beat: f64) -> Guess {
    let levels = |part: &Part, out: &mut Vec<Option<f64>>| {
        let mut edge = part.cursor();
        out.extend(part.ticks.iter().map(|tick| {
            let begun = begin(tick.at, window, phase);
            (part.whole || begun >= part.begins()).then(|| tick.count - edge.at(begun))
        }));
    };
    let mut ends: Vec<Cursor<'_>> = parts.iter().map(Part::cursor).collect();
    let passed = |sum: &mut Sum, i: usize, tick: &Tick, (_, level): (f64, f64)| {
        let begun = begin(tick.at, window, phase);
        pass_windows(sum, &parts[i], tick, (window, begun), level, &mut ends[i]);
    };
    // A new window begins.
    let wait = |_: &Part, tick: &Tick, _: f64| Some(begin(tick.at, window, phase) + window - tick.at);
    windowed(parts, (window, phase), beat, levels, passed, wait)
}

/// Starts that were let through, some of them at the ends of windows.
fn pass_windows(
    sum: &mut Sum,
    part: &Part,
    tick: &Tick,
    (window, begun): (f64, f64),
    level: f64,
    ends: &mut Cursor<'_>,
) {
    if tick.starts <= 0.0 {
        return;
    }
    let span = tick.at - tick.before;
    let pace = tick.starts / span.max(1e-9);
    if span > 2.0 * window {
        sum.passed(0.0, pace * window, tick.starts);
        return;
    }
    let mut from = tick.before;
    let mut end = begin(from, window, begun) + window;
    while end <= begun + 1e-9 && end <= tick.at {
        if part.whole || end - window >= part.begins() {
            let before = ends.at(end - window);
            let (high, starts) = (ends.at(end) - before, (end - from) * pace);
            sum.passed(high - starts, high, starts);
        }
        from = end;
        end += window;
    }
    let starts = (tick.at - from) * pace;
    sum.passed(level - starts, level, starts);
}

/// A bucket. With a `ban`, a refusal starts a time in which everything is refused, and each one in it starts that anew; what a
/// probe meets then says nothing of the bucket.
pub(super) fn bucket(parts: &[Part], rate: f64, ban: f64, beat: f64) -> Guess {
    let flow = |level: &mut f64, from: (f64, f64), tick: &Tick| {
        *level = (*level + tick.count - from.1 - rate * (tick.at - from.0)).max(0.0);
        (tick.at, tick.count)
    };
    // It was full at the start: what it had paid out at a refusal is its burst.
    let mut met = Vec::new();
    for part in parts.iter().filter(|part| part.whole) {
        let (mut level, mut from) = (0.0, (part.begins(), part.knots.first().map_or(0.0, |knot| knot.count)));
        for tick in &part.ticks {
            from = flow(&mut level, from, tick);
            if tick.kind == What::Refused {
                met.push(level);
            }
        }
    }
    if met.is_empty() {
        met.extend([0.0, 3.0, 30.0, 1000.0]);
    }
    let mut best = Guess::NONE;
    // At the first one it is known best; later ones drift.
    let first = met[0];
    'tops: for top in std::iter::once(first).chain(tops(&mut met).filter(|top| (top - first).abs() >= 0.3)) {
        let mut sum = Sum { floor: IDLE, ..Sum::new(top, NOISE) };
        for part in parts {
            let first = part.knots.first().copied().unwrap_or_default();
            let (mut level, mut from, mut known) = (0.0, (first.at, first.count), part.whole);
            let mut refused = f64::NEG_INFINITY;
            for tick in &part.ticks {
                let before = level;
                from = flow(&mut level, from, tick);
                let banned = ban > 0.0 && tick.at - refused < ban;
                match tick.kind {
                    What::Passed if !known => {}
                    What::Passed => {
                        if banned && tick.starts >= 0.9 && tick.at - refused < ban - 0.05 {
                            sum.score -= BAN_WRONG;
                            refused = f64::NEG_INFINITY;
                        }
                        sum.passed(before.min(level), level, tick.starts);
                    }
                    What::Probe if banned => {}
                    What::Probe => sum.probe_refused(level),
                    What::Refused => {
                        if known {
                            sum.refused(level);
                        } else {
                            sum.begin();
                        }
                        known = true;
                        level = level.clamp(top - 0.5, top + 0.5).max(0.0); // there it was, whatever was measured
                    }
                }
                if tick.kind != What::Passed {
                    sum.told(Some(((level - top).max(0.0) / rate).max(ban)), tick);
                    refused = tick.at;
                    if sum.score <= best.score.max(beat) {
                        continue 'tops;
                    }
                }
            }
            sum.end();
        }
        best = best.or(Guess { score: sum.score, rate, number: top + 1.0, window: ban, phase: 0.0 });
    }
    best
}

/// Parts that a piece of the curve is looked at in.
const SPLIT: u32 = 4;
/// Levels are off by so much, and by a share of the top: the curve is no finer.
const NOISE: f64 = 0.5;
const FINE: f64 = 0.0007;
/// How far below the top a start is near to being refused, in units of the noise.
const FAR: [f64; 6] = [3.0, 4.0, 6.0, 9.0, 14.0, 22.0];
/// A bucket that is full refuses nobody.
const IDLE: f64 = 0.02;
/// A window of less than a request is none.
const FEWEST: f64 = 0.9;
/// What a wrong word costs beyond a guess: on a stretch, a refused probe, a told time, a ban.
const WRONG: f64 = 3.0;
const PROBE_WRONG: f64 = 6.0;
const TOLD_WRONG: f64 = 4.0;
const BAN_WRONG: f64 = 4.0;
/// And what a refused probe costs a guess.
const PROBE_BY_CHANCE: f64 = 1.0;

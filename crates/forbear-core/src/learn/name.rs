//! Which kind of limit it is, and its numbers, by what makes all that was seen most likely (L4).
//!
//! The pace follows from whatever explains the last stretches, and need not know what that is. To name a kind is another
//! thing: each kind gets the numbers that suit it best, and one is named only where it is much likelier than the others, and
//! than a limit that refuses by chance. The first incidents tell most, for then the limit had counted nothing yet: a bucket
//! was full, and a window began to fill. So they are kept for good, beside the last ones.

use super::{
    Kind,
    fit::{Fit, Shape},
    history::{History, Opening},
    likely::{Guess, Part, What, begin, bucket, by_chance, counted, counter, fixed, log},
};

/// A kind that was found, and its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Named {
    pub(super) kind: Kind,
    pub(super) rate: f64,
    /// Zero where it is not known well enough to be said.
    pub(super) number: f64,
    /// The same of a window, or of a time of refusals.
    pub(super) window: f64,
    /// How far it is ahead of what comes next, as a logarithm.
    pub(super) ahead: f64,
}

/// What was found, if anything.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Finding {
    Named(Named),
    /// Nothing is far enough ahead; this kind is likelier than others.
    Likeliest(Kind),
}

/// Looks for a kind. `fits` are good places to look.
pub(super) fn find(history: &History, opening: &Opening, fits: &[Option<Fit>]) -> Option<Finding> {
    let parts = parts(history, opening);
    let search = Search::new(&parts, fits)?;
    let gaps = Gaps::of(&parts);
    let refusals = parts.iter().flat_map(Part::firsts).count().max(2) as f64;
    // What more numbers cost: they fit more by themselves.
    let less = |guess: Guess, numbers: f64| guess.score - numbers * (0.5 * refusals.ln() + 1.0);
    let plain = search.bucket(0.0);
    let banned = gaps.bans().map(|ban| search.bucket(ban)).fold(Guess::NONE, Guess::or);
    let (fixed, counter) = (search.fixed(), search.counter());
    let log = search.log();
    let counting = search.counting_log(log);
    let sliding = if less(counter, 3.0) > less(log.or(counting), 2.0) {
        (less(counter, 3.0), counter)
    } else {
        (less(log, 2.0).max(less(counting, 2.0) - 1.0), log.or(counting))
    };
    let mut kinds = [
        (Kind::Bucket, less(plain, 2.0), plain),
        (Kind::Penalty, less(banned, 3.0), banned),
        (Kind::FixedWindow, less(fixed, 3.0), fixed),
        (Kind::SlidingWindow, sliding.0, sliding.1),
    ];
    kinds.sort_by(|a, b| b.1.total_cmp(&a.1));
    let (kind, score, guess) = kinds[0];
    let ahead = score - kinds[1].1;
    if ahead < AHEAD || score - by_chance(&parts) < MORE_THAN_CHANCE {
        return Some(Finding::Likeliest(kind));
    }
    let whole = parts[0].is_whole();
    let number = match kind {
        // Requests on the wire blur it by one or two.
        Kind::Bucket | Kind::Penalty => {
            if whole && guess.number >= 500.0 {
                guess.number
            } else {
                0.0
            }
        }
        // At an even pace a log and a counter differ by one.
        Kind::SlidingWindow => {
            if guess.number >= 34.0 {
                guess.number
            } else {
                0.0
            }
        }
        _ => guess.number,
    };
    let window = if kind == Kind::Penalty { gaps.ban() } else { guess.window };
    Some(Finding::Named(Named { kind, rate: guess.rate, number: number.round(), window, ahead }))
}

/// The first incidents and the last ones, where they are not the same.
fn parts(history: &History, opening: &Opening) -> Vec<Part> {
    let lost = history.has_lost() || history.begins() > 0.0;
    let mut parts = Vec::with_capacity(2);
    if lost {
        let (knots, seen) = opening.all();
        if knots.len() > 1 {
            parts.push(Part::new(knots, seen, true));
        }
    }
    parts.push(Part::new(history.curve().collect(), history.seen(), opening.is_fresh() && !lost));
    parts
}

/// How long after a refusal probes were refused, and let through.
#[derive(Clone, Copy, Debug)]
struct Gaps {
    failed: f64,
    passed: f64,
    /// The longest time that was told.
    told: f64,
}

impl Gaps {
    fn of(parts: &[Part]) -> Gaps {
        let mut gaps = Gaps { failed: 0.0, passed: f64::INFINITY, told: 0.0 };
        for part in parts {
            let mut refused = f64::NEG_INFINITY;
            let mut pause_ends = f64::NEG_INFINITY; // before that, what is let through was on the wire already
            for tick in part.ticks() {
                gaps.told = gaps.told.max(tick.told);
                match tick.kind {
                    What::Passed if tick.starts() > 0.5 && pause_ends > refused => {
                        if refused > f64::NEG_INFINITY {
                            gaps.passed = gaps.passed.min(pause_ends - refused);
                        }
                        (refused, pause_ends) = (f64::NEG_INFINITY, f64::NEG_INFINITY);
                    }
                    What::Passed if tick.starts() > 0.5 => {}
                    What::Passed => pause_ends = tick.at,
                    What::Probe | What::Refused => {
                        if tick.kind == What::Probe {
                            gaps.failed = gaps.failed.max(tick.at - refused);
                        }
                        refused = tick.at;
                    }
                }
            }
        }
        gaps
    }

    /// Times of refusals to try.
    fn bans(&self) -> impl Iterator<Item = f64> + use<> {
        let told = [self.told - 0.5, self.told - 0.02, self.told - 0.98];
        let seen = [self.failed + 0.7 * (self.passed - self.failed), self.failed + 0.01, 0.0];
        let bans = if self.told >= 2.0 { told } else { seen };
        let none = self.failed <= 0.0 && self.told < 2.0 || self.told == 1.0;
        bans.into_iter().filter(move |ban| !none && ban.is_finite() && *ban > 0.05)
    }

    /// How long a ban lasts, where that is known to a few per cent; zero where not.
    fn ban(&self) -> f64 {
        if self.told >= 10.0 {
            return self.told - 0.5;
        }
        let middle = 0.5 * (self.failed + self.passed);
        let spread = self.passed - self.failed;
        if self.told < 2.0 && spread > 0.0 && spread < 0.1 * middle { middle } else { 0.0 }
    }
}

/// Looks for the best numbers of each kind.
struct Search<'a> {
    parts: &'a [Part],
    fits: &'a [Option<Fit>],
    /// What was let through from refusal to refusal, by the second: of all of them, and of the last ones.
    rates: [f64; 2],
    /// Let through between them.
    total: f64,
    /// No window is longer.
    longest: f64,
}

impl Search<'_> {
    fn new<'a>(parts: &'a [Part], fits: &'a [Option<Fit>]) -> Option<Search<'a>> {
        let last = parts.last()?;
        let firsts: Vec<(f64, f64)> = last.firsts().map(|tick| (tick.at, tick.count)).collect();
        let [first, .., end] = firsts[..] else { return None };
        let late = firsts[firsts.len().saturating_sub(LATE).min(firsts.len() - 2)];
        let rate = |from: (f64, f64)| (end.1 - from.1) / (end.0 - from.0).max(1e-9);
        let total = end.1 - first.1;
        let rates = [rate(first), rate(late)];
        if total < 1.0 || rates[1] <= 0.0 {
            return None;
        }
        let span = last.ends() - last.begins();
        // What a window had let through at its first refusal was all of it, or more.
        let full = parts[0].firsts().next().filter(|_| parts[0].is_whole());
        let longest = full.map_or(span, |tick| (1.1 * tick.count + 3.0) / rates[0]).max(1.0);
        let longest = longest.min(if parts.len() == 1 { span } else { span / 1.5 });
        Some(Search { parts, fits, rates, total, longest })
    }

    fn last(&self) -> &Part {
        &self.parts[self.parts.len() - 1]
    }

    fn fitted(&self, shape: Shape) -> impl Iterator<Item = &Fit> {
        self.fits.iter().flatten().filter(move |fit| fit.shape == shape)
    }

    fn bucket(&self, ban: f64) -> Guess {
        let mut rates = Vec::with_capacity(64);
        let fine = 0.5 / self.total.max(20.0);
        for rate in self.rates {
            rates.extend((-5..=5).map(|k| rate * (fine * f64::from(k)).exp()));
        }
        rates.extend((-10..=10).map(|k| self.rates[0] * (0.03 * f64::from(k)).exp()));
        rates.extend(self.fitted(Shape::Bucket).map(|fit| fit.rate));
        let better = |best: Guess, rate| best.or(bucket(self.parts, rate, ban, best.score));
        let mut best = rates.into_iter().fold(Guess::NONE, better);
        let mut step = 0.01;
        for _ in 0..6 {
            let rate = best.rate;
            for k in [-3, -2, -1, 1, 2, 3] {
                best = better(best, rate * (1.0 + step * f64::from(k) / 3.0));
            }
            step *= 0.35;
        }
        best
    }

    /// How far the level of a log at the late refusals is from that at the first one.
    fn log_misses(&self, window: f64) -> f64 {
        let last = self.last();
        let mut cursor = last.cursor();
        let known = last.firsts().filter(|tick| last.is_whole() || tick.at - window >= last.begins());
        let mut levels: Vec<f64> = known.map(|tick| tick.count - cursor.at(tick.at - window)).collect();
        let Some(first) = self.parts[0].firsts().next() else { return 0.0 };
        if levels.is_empty() {
            return 0.0;
        }
        let middle = levels.len() / 2;
        let (_, level, _) = levels.select_nth_unstable_by(middle, f64::total_cmp);
        *level - (first.count - self.parts[0].cursor().at(first.at - window))
    }

    fn log(&self) -> Guess {
        let mut windows: Vec<f64> = self.fitted(Shape::Log).map(|fit| fit.window).collect();
        let mut before = (SHORTEST, self.log_misses(SHORTEST));
        for i in 1..=STEPS {
            let window = SHORTEST * (self.longest / SHORTEST).powf(f64::from(i) / f64::from(STEPS));
            let here = (window, self.log_misses(window));
            if here.1.abs() < 2.0 {
                windows.push(window);
            }
            if here.1 * before.1 < 0.0 {
                let (mut low, mut high) = (before, here.0);
                for _ in 0..12 {
                    let middle = (low.0 + high) / 2.0;
                    let misses = self.log_misses(middle);
                    if misses * low.1 < 0.0 {
                        high = middle;
                    } else {
                        low = (middle, misses);
                    }
                }
                windows.push((low.0 + high) / 2.0);
            }
            before = here;
        }
        let better = |best: Guess, window| best.or(log(self.parts, window, false, best.score));
        windows.truncate(LOGS);
        polished(windows.into_iter().fold(Guess::NONE, better), better)
    }

    /// A log that counts refusals too has nearly the window of one that does not.
    fn counting_log(&self, plain: Guess) -> Guess {
        let better = |best: Guess, window| best.or(log(self.parts, window, true, best.score));
        if plain.window > 0.0 { polished(better(Guess::NONE, plain.window), better) } else { Guess::NONE }
    }

    fn counter(&self) -> Guess {
        let full = self.parts[0].firsts().next().filter(|_| self.parts[0].is_whole());
        let top = full.map_or(self.longest, |tick| tick.count / self.rates[0]);
        let mut places: Vec<(f64, f64, f64)> = Vec::new();
        for i in 0..=30 {
            let window = top * 1.05f64.powi(2 - i);
            if window >= 0.5 && window <= self.longest {
                places.extend((0..10).filter_map(|k| {
                    let phase = window * f64::from(k) / 10.0;
                    Some((self.counter_spread(window, phase)?, window, phase))
                }));
            }
        }
        places.sort_by(|a, b| a.0.total_cmp(&b.0));
        places.truncate(10);
        places.extend(self.fitted(Shape::Counter).map(|fit| (0.0, fit.window, fit.phase)));
        let better = |best: Guess, at| best.or(counter(self.parts, at, best.score));
        let mut best = places.into_iter().fold(Guess::NONE, |best, (_, w, p)| better(best, (w, p)));
        let (mut step, mut turn) = (0.05, 0.1);
        for _ in 0..8 {
            best = self.around(best, step, turn).fold(best, better);
            (step, turn) = (step * 0.55, turn * 0.55);
        }
        best
    }

    /// How far apart the levels of a counter are at its refusals.
    fn counter_spread(&self, window: f64, phase: f64) -> Option<f64> {
        let mut levels = Vec::with_capacity(32);
        for part in self.parts {
            let (mut edge, mut last) = (part.cursor(), part.cursor());
            for tick in part.firsts() {
                let begun = begin(tick.at, window, phase);
                if part.is_whole() || begun - window >= part.begins() {
                    levels.push(counted(tick, begun, window, &mut edge, &mut last));
                }
            }
        }
        if levels.len() < 3 {
            return None;
        }
        let n = levels.len() as f64;
        let mean = levels.iter().sum::<f64>() / n;
        Some(levels.iter().map(|level| (level - mean).abs()).sum::<f64>() / n / (1.0 + 0.0007 * mean))
    }

    /// Each refusal of a fixed window lies near the end of one: the windows by which they all do. Looked for in the last few,
    /// and looked at closer in more.
    fn rhythms(&self) -> Vec<(f64, f64)> {
        let all: Vec<f64> = self.last().firsts().map(|tick| tick.at).collect();
        let late = &all[all.len().saturating_sub(LATE)..];
        let few = &late[late.len().saturating_sub(LATE / 2)..];
        let (Some(first), Some(from), Some(end)) = (late.first(), few.first(), late.last()) else {
            return Vec::new();
        };
        let turns = |of: &[f64], window: f64| {
            of.iter().fold((0.0, 0.0), |(x, y), at| {
                let (sin, cos) = ((at - first) * std::f64::consts::TAU / window).sin_cos();
                (x + cos, y + sin)
            })
        };
        let together = |of: &[f64], window: f64| {
            let (x, y) = turns(of, window);
            (x * x + y * y) / (of.len() * of.len()) as f64
        };
        let (short, long) = ((end - from).max(1.0), (end - first).max(1.0));
        let step = |window: f64, span: f64| (0.08 * window * window / span).min(0.05 * window);
        // The longer the time, the finer the steps: then short windows are left out.
        let mut peaks: Vec<(f64, f64)> = Vec::new();
        let (mut before, mut here) = (0.0, (0.0, 0.0));
        let mut window = (2.0 * SHORTEST).max(2.0 * SHORTEST / SPAN * short);
        while window < self.longest.min(long) {
            let next = together(few, window);
            if here.0 > before && here.0 >= next && here.0 > 0.25 {
                peaks.push(here);
            }
            (before, here) = (here.0, (next, window));
            window += step(window, short);
        }
        let strongest = |peaks: &mut Vec<(f64, f64)>, n| {
            peaks.sort_by(|a, b| b.0.total_cmp(&a.0));
            peaks.truncate(n);
        };
        strongest(&mut peaks, 30);
        // What was met far above the limit lies early in its window: the last few say best what there is.
        let of_few = peaks.iter().take(6).map(|peak| (few, *peak)).collect::<Vec<_>>();
        for peak in &mut peaks {
            let (coarse, fine) = (step(peak.1, short), 0.5 * step(peak.1, long));
            let steps = (coarse / fine).ceil().min(16.0) as i32;
            let near = (-steps..=steps).map(|k| peak.1 + fine * f64::from(k));
            let near = near.map(|window| (together(late, window), window));
            *peak = near.fold((0.0, peak.1), |best, next| if next.0 > best.0 { next } else { best });
        }
        strongest(&mut peaks, 12);
        let edge = |(of, (_, window)): (&[f64], (f64, f64))| {
            let (x, y) = turns(of, window);
            (window, first + y.atan2(x) * window / std::f64::consts::TAU)
        };
        peaks.into_iter().map(|peak| (late, peak)).chain(of_few).map(edge).collect()
    }

    fn fixed(&self) -> Guess {
        let better = |best: Guess, at| best.or(fixed(self.parts, at, best.score));
        let mut best = Guess::NONE;
        for fit in self.fitted(Shape::Fixed) {
            best = better(best, (fit.window, fit.phase));
        }
        for (window, edge) in self.rhythms() {
            for j in -1..10 {
                best = better(best, (window, edge + 0.03 * window * f64::from(j)));
            }
        }
        // What repeats in a window repeats in a half of it.
        for times in [2, 3, 2, 5] {
            let (at, window) = (best, best.window * f64::from(times));
            if at.window > 0.0 && window <= self.longest {
                best = (0..times)
                    .fold(best, |best, k| better(best, (window, at.phase + at.window * f64::from(k))));
            }
        }
        let last = self.last();
        let (mut step, mut turn) =
            ((0.4 * best.window / (last.ends() - last.begins()).max(1.0)).min(0.02), 0.04);
        for _ in 0..11 {
            best = self.around(best, step, turn).fold(best, better);
            (step, turn) = (step * 0.6, turn * 0.6);
        }
        best
    }

    /// The windows and phases around one; turned around the end of the past, where it is known best.
    fn around(&self, at: Guess, step: f64, turn: f64) -> impl Iterator<Item = (f64, f64)> + use<> {
        let end = self.last().ends();
        let turns = ((end - at.phase) / at.window.max(1e-9)).round();
        let near = [(-1, -1), (-1, 0), (-1, 1), (0, -1), (0, 1), (1, -1), (1, 0), (1, 1)];
        near.into_iter().filter(move |_| at.window > 0.0).map(move |(k, j)| {
            let window = at.window * (1.0 + step * f64::from(k));
            (window, at.phase + turns * (at.window - window) + turn * window * f64::from(j))
        })
    }
}

/// The best window around the one that was found.
fn polished(found: Guess, better: impl Fn(Guess, f64) -> Guess) -> Guess {
    let (mut best, mut step) = (found, 0.03);
    for _ in 0..5 {
        let window = best.window;
        if window > 0.0 {
            for k in [-1.0, -0.67, -0.33, 0.33, 0.67, 1.0] {
                best = better(best, window * (1.0 + step * k));
            }
        }
        step *= 0.4;
    }
    best
}

/// One kind is named that is ahead of the others by this, and of chance.
const AHEAD: f64 = 3.0;
const MORE_THAN_CHANCE: f64 = 4.0;
/// So many refusals are the late ones.
const LATE: usize = 12;
const SHORTEST: f64 = 0.3;
/// Seconds in which all windows can be looked at in some ten thousand steps.
const SPAN: f64 = 600.0;
/// Windows of a log that are looked at, and looked at closer.
const STEPS: i32 = 100;
const LOGS: usize = 24;

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(paces: &[f64], admits: impl FnMut(f64) -> bool) -> (History, Opening) {
        let mut opening = Opening::new();
        let (history, _) = crate::learn::drive::drive(paces, 0.0002, admits, |history| opening.keep(history));
        (history, opening)
    }

    fn named(paces: &[f64], admits: impl FnMut(f64) -> bool) -> Option<Named> {
        let (history, opening) = drive(paces, admits);
        match find(&history, &opening, &[])? {
            Finding::Named(named) => Some(named),
            Finding::Likeliest(_) => None,
        }
    }

    /// Twenty a second, whatever the kind.
    const PACES: [f64; 8] = [40.0, 25.0, 19.6, 21.0, 19.8, 22.0, 19.7, 19.9];

    #[test]
    fn l4_kinds_of_the_same_rate_are_told_apart() {
        let (mut tokens, mut at) = (150.0f64, 0.0);
        let bucket = named(&PACES, |now| {
            (tokens, at) = ((tokens + 20.0 * (now - at)).min(150.0), now);
            let admitted = tokens >= 1.0;
            tokens -= f64::from(u8::from(admitted));
            admitted
        });
        let bucket = bucket.unwrap();
        assert_eq!(bucket.kind, Kind::Bucket);
        assert!((bucket.rate / 20.0 - 1.0).abs() < 0.01, "{bucket:?}");

        let (mut begun, mut used) = (-1.0, 0);
        let fixed = named(&PACES, |now| {
            let window = ((now + 3.0) / 10.0).floor();
            if window != begun {
                (begun, used) = (window, 0);
            }
            let admitted = used < 200;
            used += i32::from(admitted);
            admitted
        });
        let fixed = fixed.unwrap();
        assert_eq!(fixed.kind, Kind::FixedWindow);
        assert!(
            (fixed.window / 10.0 - 1.0).abs() < 0.05 && (fixed.number / 200.0 - 1.0).abs() < 0.03,
            "{fixed:?}"
        );

        let mut log = std::collections::VecDeque::new();
        let sliding = named(&PACES, |now| {
            while log.front().is_some_and(|at| *at + 10.0 <= now) {
                log.pop_front();
            }
            let admitted = log.len() < 200;
            if admitted {
                log.push_back(now);
            }
            admitted
        });
        let sliding = sliding.unwrap();
        assert_eq!(sliding.kind, Kind::SlidingWindow);
        assert!(
            (sliding.window / 10.0 - 1.0).abs() < 0.05 && (sliding.number / 200.0 - 1.0).abs() < 0.03,
            "{sliding:?}"
        );
    }

    #[test]
    fn l4_what_refuses_by_chance_is_not_named() {
        let mut state = 7u32;
        let found = named(&[20.0; 8], |_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 8 > (1 << 24) / 150
        });
        assert_eq!(found, None);
    }
}

//! Hypotheses on the kind of a limit, and its numbers.
//!
//! Every limiter that counts has a level that rises with what it lets through, and refuses at its top: tokens gone, requests
//! in the window. Of a true hypothesis the level is the same at every refusal, and never higher at anything that was let
//! through. [`Fit`] looks for the numbers for which that holds.

use super::history::History;

/// A kind of limit with a level.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Shape {
    Bucket,
    Fixed,
    Log,
    Counter,
}

/// A hypothesis with its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Fit {
    pub(super) shape: Shape,
    /// Starts a second.
    pub(super) rate: f64,
    /// The rates of all numbers that fit.
    pub(super) least: f64,
    pub(super) most: f64,
    /// The burst, or the limit of a window.
    pub(super) number: f64,
    /// The window, in seconds; none for a bucket.
    pub(super) window: f64,
    /// Where a window begins.
    pub(super) phase: f64,
    /// How far it is from fitting, in shares of `number`; negative: it fits, with so much to spare.
    pub(super) misfit: f64,
}

impl Fit {
    /// How long after `now` a window has room again, with a little to spare.
    pub(super) fn wait(&self, history: &History, now: f64) -> f64 {
        let spare = 0.01 * self.window;
        if self.shape != Shape::Log {
            let begun = self.phase + ((now - self.phase) / self.window).floor() * self.window;
            let soft = if self.shape == Shape::Counter { 0.01 * self.window } else { 0.0 };
            return begun + self.window - now + spare + soft;
        }
        // What was let through one window ago leaves it.
        let gone = history.count(now) - self.number;
        let oldest = history.curve().find(|knot| knot.count > gone + 1.0);
        oldest.map_or(0.0, |knot| (knot.at + self.window - now).clamp(0.0, self.window)) + spare
    }
}

/// A moment of the past that a hypothesis must explain.
#[derive(Clone, Copy, Debug)]
struct Moment {
    at: f64,
    count: f64,
    refused: bool,
    /// Told, in seconds; negative where nothing was.
    told: f64,
}

/// What the hypotheses are tested on.
pub(super) struct Bench<'a> {
    history: &'a History,
    moments: [Moment; 128],
    len: usize,
    /// What is older is counted, but not explained.
    from: f64,
    /// The lower and the upper end of the time in which a window must have begun.
    brackets: &'a [(f64, f64)],
    /// Failed probes are explained too.
    probes: bool,
    whole: bool,
}

impl<'a> Bench<'a> {
    /// Explains everything since `from`; `probes`: failed probes too.
    pub(super) fn new(
        history: &'a History,
        from: f64,
        probes: bool,
        brackets: &'a [(f64, f64)],
    ) -> Bench<'a> {
        let none = Moment { at: 0.0, count: 0.0, refused: false, told: -1.0 };
        let from = from.max(history.begins());
        let mut bench =
            Bench { history, moments: [none; 128], len: 0, from, brackets, probes, whole: from <= 0.0 };
        let mut refusals = history.seen().iter().filter(|s| s.at >= from && (probes || !s.probe)).peekable();
        for knot in history.curve() {
            while let Some(seen) = refusals.next_if(|s| s.at < knot.at) {
                let told = f64::from(seen.told);
                bench.push(Moment { at: seen.at, count: history.count(seen.at), refused: true, told });
            }
            bench.push(Moment { at: knot.at, count: knot.count, refused: false, told: -1.0 });
        }
        for seen in refusals {
            let told = f64::from(seen.told);
            bench.push(Moment { at: seen.at, count: history.count(seen.at), refused: true, told });
        }
        bench
    }

    fn push(&mut self, moment: Moment) {
        if self.len < self.moments.len() {
            self.moments[self.len] = moment;
            self.len += 1;
        }
    }

    fn moments(&self) -> &[Moment] {
        &self.moments[..self.len]
    }

    /// The best bucket.
    pub(super) fn bucket(&self, low: f64, high: f64) -> Option<Fit> {
        let mut best = Best::new(Shape::Bucket);
        for i in 0..=GRID {
            let rate = low * (high / low).powf(i as f64 / GRID as f64);
            self.bucket_at(rate, &mut best);
        }
        best.refine(low, high, |rate, best| self.bucket_at(rate, best));
        best.done()
    }

    fn bucket_at(&self, rate: f64, best: &mut Best) {
        // What a penalty tells is its own time, and not the bucket's.
        let told = if self.probes { self.told_misfit(|_| 1.0 / rate) } else { 0.0 };
        if self.whole {
            // It was full at the start: what its first refusal had used up is its burst.
            let levels = self.levels(rate, 0.0, f64::INFINITY);
            best.offer(rate, levels.least, 0.0, 0.0, levels.spread(), told);
            return;
        }
        for burst in [f64::INFINITY, rate * 10.0, rate * 3.0, rate, rate * 0.3] {
            if burst < LEAST_NUMBER {
                continue;
            }
            let levels = self.levels(rate, burst, burst);
            let number = if burst.is_finite() { burst } else { LEAST_NUMBER };
            best.offer(rate, number, 0.0, 0.0, levels.spread(), told);
        }
    }

    /// What a bucket has paid out and not got back: `level` of it at the beginning, and no more than `full`.
    fn levels(&self, rate: f64, level: f64, full: f64) -> Levels {
        let mut level = if level.is_finite() { level } else { 0.0 };
        // Of a bucket that never fills up again only the differences matter.
        let floor = if full.is_finite() || self.whole { 0.0 } else { f64::NEG_INFINITY };
        let mut levels = Levels::new();
        let from = self.from.max(0.0);
        let (mut before, mut count) = (from, self.history.count(self.from));
        for m in self.moments().iter().filter(|m| m.at >= from) {
            let (dt, dn) = (m.at - before, m.count - count);
            level = (level + dn - rate * dt).max(floor);
            (before, count) = (m.at, m.count);
            levels.add(level, m.refused);
        }
        levels
    }

    /// The best sliding log.
    pub(super) fn log(&self, low: f64, high: f64) -> Option<Fit> {
        let mut best = Best::new(Shape::Log);
        for i in 0..=2 * GRID {
            let window = low * (high / low).powf(i as f64 / (2 * GRID) as f64);
            self.log_at(window, &mut best);
        }
        best.refine(low, high, |window, best| self.log_at(window, best));
        best.done()
    }

    fn log_at(&self, window: f64, best: &mut Best) {
        let mut levels = Levels::new();
        for m in self.moments() {
            if m.at >= self.from {
                levels.add(m.count - self.history.count(m.at - window), m.refused);
            }
            let later = m.at + window;
            if !m.refused && later >= self.from && later <= self.history.last().at {
                levels.add(self.history.count(later) - m.count, false);
            }
            if levels.is_hopeless(best) {
                return;
            }
        }
        let least = levels.least;
        let told = self.told_misfit(|m| {
            // The oldest request of the window leaves it.
            let gone = m.count - least;
            let mut k = self.moments().iter().filter(|k| !k.refused);
            let at = k.find(|k| k.count > gone).map_or(m.at, |k| k.at);
            (at.min(m.at) + window - m.at).max(0.0)
        });
        best.offer(least / window, least, window, 0.0, levels.spread(), told);
    }

    /// The best fixed window, whose edges lie between what was refused and what was let through again.
    pub(super) fn fixed(&self, low: f64, high: f64, known: Option<f64>) -> Option<Fit> {
        let mut best = Best::new(Shape::Fixed);
        let (&(early, late), before) = self.brackets.split_last()?;
        if before.is_empty() {
            for i in 0..=GRID {
                let window = low * (high / low).powf(i as f64 / GRID as f64);
                let span = (late - early).min(window);
                (0..=PHASES)
                    .for_each(|k| self.fixed_at(window, late - span * k as f64 / PHASES as f64, &mut best));
            }
            return best.done();
        }
        for (then_early, then_late) in before.iter().rev().take(2) {
            for k in 1..=4 {
                let (short, long) = ((early - then_late) / f64::from(k), (late - then_early) / f64::from(k));
                let (short, long) = (short.max(low), long.min(high));
                for i in 0..=8 {
                    let window = short + (long - short) * f64::from(i) / 8.0;
                    if window < low || window > high {
                        continue;
                    }
                    let span = (late - early).min(window);
                    (0..=4).for_each(|k| self.fixed_at(window, late - span * f64::from(k) / 4.0, &mut best));
                }
            }
        }
        let known = known.filter(|window| *window > 0.0);
        let span = (self.history.last().at - self.from).max(1.0);
        if let Some(known) = known {
            // Over many windows a small error adds up: the search is as fine as the past is long.
            let step = 0.15 * known * known / span;
            for i in -12..=12 {
                let window = known + step * f64::from(i);
                let span = (late - early).min(window);
                (0..=6).for_each(|k| self.fixed_at(window, late - span * f64::from(k) / 6.0, &mut best));
            }
        }
        let fine = (0.05 * best.fit.window / span).min(0.002);
        let (window, span) = (best.fit.window, (late - early).min(best.fit.window) / 4.0);
        let phase = best.fit.phase;
        for i in -4..=4 {
            for k in -3..=3 {
                let window = window * (1.0 + fine * f64::from(i));
                self.fixed_at(window, phase + span * f64::from(k) / 4.0, &mut best);
            }
        }
        best.done()
    }

    fn fixed_at(&self, window: f64, phase: f64, best: &mut Best) {
        let begin = |at: f64| phase + ((at - phase) / window).floor() * window;
        let (mut levels, last) = (Levels::new(), self.history.last().at);
        // The newest first: they are the ones that a wrong window explains worst.
        for m in self.moments().iter().rev().filter(|m| m.at >= self.from) {
            let begun = begin(m.at);
            levels.add(m.count - self.history.count(begun), m.refused);
            if !m.refused && (begun >= self.from || self.whole) {
                let end = self.history.count((begun + window).min(last));
                levels.add(end - self.history.count(begun), false);
                levels.add(self.history.count((begun + 2.0 * window).min(last)) - end, false);
            }
            if levels.is_hopeless(best) {
                return;
            }
        }
        let least = levels.least;
        let told = self.told_misfit(|m| begin(m.at) + window - m.at);
        best.offer(least / window, least, window, phase, levels.spread(), told);
    }

    /// The best sliding counter.
    pub(super) fn counter(&self, low: f64, high: f64) -> Option<Fit> {
        let mut best = Best::new(Shape::Counter);
        for i in 0..=GRID {
            let window = low * (high / low).powf(i as f64 / GRID as f64);
            for k in 0..PHASES {
                self.counter_at(window, window * k as f64 / PHASES as f64, &mut best);
            }
        }
        let phase = best.fit.phase;
        best.refine(low, high, |window, best| self.counter_at(window, phase, best));
        best.done()
    }

    fn counter_at(&self, window: f64, phase: f64, best: &mut Best) {
        let mut levels = Levels::new();
        for m in self.moments().iter().filter(|m| m.at >= self.from) {
            let begun = phase + ((m.at - phase) / window).floor() * window;
            let at_begun = self.history.count(begun);
            let last = at_begun - self.history.count(begun - window);
            let level = m.count - at_begun + last * (1.0 - (m.at - begun) / window);
            levels.add(level, m.refused);
            if levels.is_hopeless(best) {
                return;
            }
        }
        let least = levels.least;
        best.offer(least / window, least, window, phase, levels.spread(), 0.0);
    }

    /// How far the told waits are from those that a hypothesis gives, beyond the rounding to a second.
    fn told_misfit(&self, wait: impl Fn(&Moment) -> f64) -> f64 {
        let told = self.moments().iter().filter(|m| m.refused && m.told >= 0.0 && m.at >= self.from);
        told.map(|m| {
            let wait = wait(m);
            ((wait - m.told).max(m.told - 1.0 - wait) - 0.3) / m.told.max(1.0)
        })
        .fold(0.0, f64::max)
    }
}

/// The levels of a hypothesis.
struct Levels {
    /// The least at a refusal.
    least: f64,
    /// The most at all.
    most: f64,
}

impl Levels {
    fn new() -> Levels {
        Levels { least: f64::INFINITY, most: f64::NEG_INFINITY }
    }

    fn add(&mut self, level: f64, refused: bool) {
        self.most = self.most.max(level);
        if refused {
            self.least = self.least.min(level);
        }
    }

    fn spread(&self) -> f64 {
        self.most - self.least
    }

    /// It cannot become better than what there is already.
    fn is_hopeless(&self, best: &Best) -> bool {
        let over = (self.spread() - SLACK) / self.most.max(10.0);
        over > 0.05 && over > best.fit.misfit
    }
}

/// The best numbers so far, and the range of all that fit.
struct Best {
    fit: Fit,
    some: bool,
    least: f64,
    most: f64,
}

impl Best {
    fn new(shape: Shape) -> Best {
        let fit = Fit {
            shape,
            rate: 0.0,
            least: 0.0,
            most: 0.0,
            number: 0.0,
            window: 0.0,
            phase: 0.0,
            misfit: f64::INFINITY,
        };
        Best { fit, some: false, least: f64::INFINITY, most: 0.0 }
    }

    fn offer(&mut self, rate: f64, number: f64, window: f64, phase: f64, over: f64, told: f64) {
        if !rate.is_finite() || rate <= 0.0 {
            return;
        }
        let misfit =
            ((over - SLACK - 0.004 * number) / number.max(10.0)).max(if told > 0.05 { told } else { -1.0 });
        if number < (if window > 0.0 { 3.0 * LEAST_NUMBER } else { LEAST_NUMBER }) {
            return;
        }
        if misfit <= 0.0 {
            (self.least, self.most) = (self.least.min(rate), self.most.max(rate));
        }
        if misfit < self.fit.misfit {
            self.fit = Fit { rate, number, window, phase, misfit, ..self.fit };
            self.some = true;
        }
    }

    /// Looks closer around the best so far.
    fn refine(&mut self, low: f64, high: f64, mut at: impl FnMut(f64, &mut Best)) {
        if !self.some {
            return;
        }
        let mut step = (high / low).powf(1.0 / GRID as f64);
        for _ in 0..4 {
            let here = if self.fit.window > 0.0 { self.fit.window } else { self.fit.rate };
            for i in -4..=4i32 {
                at((here * step.powf(f64::from(i) / 4.0)).clamp(low, high), self);
            }
            step = step.powf(0.3);
        }
    }

    fn done(mut self) -> Option<Fit> {
        (self.fit.least, self.fit.most) =
            if self.most > 0.0 { (self.least, self.most) } else { (self.fit.rate, self.fit.rate) };
        self.some.then_some(self.fit)
    }
}

/// Fewer in a window are not told from chance.
const LEAST_NUMBER: f64 = 10.0;
const GRID: usize = 40;
const PHASES: usize = 6;
/// The curve of the past is a start off here, a refusal there.
const SLACK: f64 = 2.5;

#[cfg(test)]
mod tests {
    use super::*;

    fn drive(paces: &[f64], admits: impl FnMut(f64) -> bool) -> (History, Vec<(f64, f64)>) {
        crate::learn::drive::drive(paces, 0.0, admits, |_| {})
    }

    #[test]
    fn l4_a_bucket_is_seen_from_three_refusals() {
        let (mut tokens, mut at) = (60.0f64, 0.0);
        let (history, edges) = drive(&[40.0, 25.0, 30.0], |now| {
            (tokens, at) = ((tokens + 20.0 * (now - at)).min(60.0), now);
            let admitted = tokens >= 1.0;
            tokens -= f64::from(u8::from(admitted));
            admitted
        });
        let bench = Bench::new(&history, 0.0, true, &edges);
        let fit = bench.bucket(5.0, 60.0).unwrap();
        assert!(fit.misfit <= 0.01, "{fit:?}");
        assert!((fit.rate / 20.0 - 1.0).abs() < 0.05 && (fit.number - 60.0).abs() < 6.0, "{fit:?}");
    }

    #[test]
    fn l4_a_window_is_seen_and_is_no_bucket() {
        let (mut begun, mut used) = (-1.0, 0);
        let (history, edges) = drive(&[80.0, 40.0, 30.0], |now| {
            let window = ((now + 3.0) / 10.0).floor();
            if window != begun {
                (begun, used) = (window, 0);
            }
            let admitted = used < 200;
            used += i32::from(admitted);
            admitted
        });
        let bench = Bench::new(&history, 0.0, true, &edges);
        let fixed = bench.fixed(0.4, 60.0, None).unwrap();
        assert!(fixed.misfit <= 0.01, "{fixed:?}");
        assert!(
            (fixed.window / 10.0 - 1.0).abs() < 0.08 && (fixed.number / 200.0 - 1.0).abs() < 0.05,
            "{fixed:?}"
        );
        assert!(
            bench.bucket(2.0, 100.0).is_none_or(|fit| fit.misfit > 0.05),
            "it is shut for too long for a bucket"
        );
    }
}

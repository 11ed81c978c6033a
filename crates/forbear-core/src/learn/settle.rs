//! The pace after an incident: from a hypothesis where one holds, else from what was let through.

use super::{fit::Shape, history::History, model::Model};

/// What lay between two refusals. Times in seconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) accepted: f64,
    /// From the refusal before, from the reopening, and from the reopening to the next one.
    pub(super) all: f64,
    pub(super) open: f64,
    pub(super) cycle: f64,
    /// Starts a second at its end.
    pub(super) pace: f64,
    /// Nothing was refused before.
    pub(super) first: bool,
    /// Where the limit was believed to be.
    pub(super) limit: f64,
    /// The least time between two refusals of our own making.
    pub(super) period: f64,
    /// The limit lets through again soon.
    pub(super) cheap: bool,
    /// It starts a time of refusals, as far as anybody knows.
    pub(super) punishes: bool,
    /// By what share the pace grew, at its end, in the time that it takes to see a refusal.
    pub(super) pushed: f64,
    /// Let through by the second in the best part of it, beyond what is there at once.
    pub(super) borne: f64,
}

impl Stretch {
    /// It was as long as it was meant to be.
    fn is_long(&self) -> bool {
        self.open >= self.period / 3.0
    }

    /// What was let through by the second, from one opening to the next.
    fn mean(&self) -> f64 {
        self.accepted / self.cycle.max(1e-3)
    }

    /// The pace at which it was refused, less what it grew before that could be seen.
    fn reached(&self) -> f64 {
        self.pace * (SEEN - self.pushed.max(SEEN)).exp()
    }

    /// A long and slow climb has borne more than that.
    fn bore_more_than(&self, rate: f64) -> bool {
        self.is_long() && self.pushed < SEEN && self.pace > rate * 1.02
    }
}

/// A pace to go on with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    pub(super) rate: f64,
    /// Where it expects to be refused.
    pub(super) limit: f64,
    /// What the limit is, where that is more than a guess.
    pub(super) certain: Option<f64>,
}

/// What is remembered from incident to incident.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Settle {
    /// Short stretches in a row.
    shorts: i32,
    /// Long ones so far.
    longs: u32,
    /// Let through by the second, in the cycle before.
    mean: f64,
    /// How often in a row the limit was found where it was.
    steady: u32,
    found: f64,
    /// What share of a pause may be made up for.
    makes_up: f64,
    made_up: bool,
}

impl Settle {
    pub(super) fn new() -> Settle {
        Settle { shorts: 0, longs: 0, mean: 0.0, steady: 0, found: 0.0, makes_up: CREDIT, made_up: false }
    }

    /// The limit is not where it was.
    pub(super) fn moved(&mut self) {
        self.steady = 0;
    }

    /// How far below a limit the pace stays: less and less while it is found where it was.
    pub(super) fn margin(&self) -> f64 {
        (MARGIN / (1.0 + 0.5 * f64::from(self.steady))).max(LEAST_MARGIN)
    }

    /// The share of the budget for looking that a limit needs which stays where it is.
    pub(super) fn calm(&self) -> f64 {
        1.0 / (1.0 + 0.25 * f64::from(self.steady.min(4)))
    }

    /// Starts to make up for after a pause of so many, where the limit has `forgiven` it; fewer after each time that this was
    /// followed by a refusal soon.
    pub(super) fn credit(&mut self, forgiven: bool, stretch: &Stretch, pause: f64) -> f64 {
        if self.made_up {
            self.makes_up =
                if stretch.is_long() { (self.makes_up + 0.1).min(1.0) } else { self.makes_up * 0.5 };
        }
        let credit = if forgiven { self.makes_up * pause } else { 0.0 };
        self.made_up = credit >= 1.0;
        if self.made_up { credit } else { 0.0 }
    }

    /// The pace after this stretch.
    pub(super) fn find(&mut self, s: &Stretch, model: &Model) -> Found {
        if self.found > 0.0 && (s.pace / self.found - 1.0).abs() > ELSEWHERE {
            self.moved(); // how sure it was of the old place says nothing of this one
        }
        let found = self.look(s, model);
        if let Some(certain) = found.certain {
            let near = (certain / self.found - 1.0).abs() < 0.02;
            self.steady = if near { (self.steady + 1).min(16) } else { 0 };
            self.found = certain;
        }
        self.mean = s.mean();
        found
    }

    /// Where one refusal too many is a ban nothing is tried above what was let through from one refusal to the next, which every
    /// limit allows, unless a slow climb has shown it.
    pub(super) fn beware(&self, s: &Stretch, found: Found) -> Found {
        let through = (s.accepted / s.all.max(1e-3)).max(s.borne);
        if s.is_long() || found.certain.is_some() || found.limit <= through {
            return found;
        }
        let m = self.margin();
        let rate = through * (1.0 - m);
        Found { rate, limit: found.limit.min(through * (1.0 + 2.0 * m)), certain: Some(through) }
    }

    fn look(&mut self, s: &Stretch, model: &Model) -> Found {
        let m = self.margin();
        if s.first {
            let mean = s.mean();
            return Found { rate: mean.min(0.6 * s.pace).max(0.1 * s.pace), limit: s.pace, certain: None };
        }
        if let Some(known) = model.known.filter(|known| !s.bore_more_than(known.rate)) {
            self.shorts = 0;
            return Found {
                rate: known.rate * (1.0 - 0.5 * m),
                limit: known.rate,
                certain: Some(known.rate),
            };
        }
        let settled = !model.cut && self.shorts < 3 && (model.moves == 0 || model.incidents >= 3);
        match self.range(s, model).filter(|_| settled) {
            Some(range) => self.by_hypothesis(s, range, m),
            None => self.by_count(s, m),
        }
    }

    /// The rates of all hypotheses that hold, as far as this stretch does not rule them out.
    fn range(&self, s: &Stretch, model: &Model) -> Option<(f64, f64)> {
        let (low, high) = model.range()?;
        // From refusal to refusal a bucket lets through no more than flows in.
        let bucket = model.holding().all(|fit| fit.shape == Shape::Bucket);
        let borne = if bucket && s.accepted >= ENOUGH { 0.98 * s.accepted / s.all } else { 0.0 };
        let (low, high) = (low.max(borne), high.min(s.pace));
        (low <= high).then_some((low, high))
    }

    fn by_hypothesis(&mut self, s: &Stretch, (low, high): (f64, f64), m: f64) -> Found {
        self.shorts = if s.is_long() { 0 } else { self.shorts + 1 };
        let middle = (low * high).sqrt();
        let narrow = high < low * 1.2;
        if narrow && s.is_long() && s.pace >= s.limit * (1.0 - 2.0 * m) {
            self.longs += 1;
            let limit = s.pace.min(middle * (1.0 + m));
            Found { rate: limit * (1.0 - 1.5 * m), limit, certain: Some(limit) }
        } else if narrow && !(s.is_long() && s.pace > high) {
            Found { rate: middle * (1.0 - m).max(low / high), limit: high, certain: Some(middle) }
        } else {
            let rate = if s.cheap { middle } else { low };
            // Of hypotheses that are far apart the lowest is far too low: what came to pass, pause and all, is better.
            let rate = rate.max(s.borne * (1.0 - m)).max(s.mean()).min(s.pace);
            let high = high.max(rate);
            Found { rate, limit: if s.is_long() { s.pace } else { high }, certain: None }
        }
    }

    /// Right for every kind, as long as more was offered than allowed.
    fn by_count(&mut self, s: &Stretch, m: f64) -> Found {
        if s.is_long() && s.pace >= s.limit * (1.0 - 2.0 * m) {
            // A slow climb met it: there it is.
            self.longs += 1;
            self.shorts = 0;
            let pace = s.reached();
            return Found { rate: pace * (1.0 - 1.5 * m), limit: pace, certain: Some(pace) };
        }
        self.shorts += 1;
        let mean = s.mean();
        if s.accepted < ENOUGH {
            let less = (1.5 * m * 2f64.powi(self.shorts - 1)).min(0.5);
            return Found { rate: s.pace * (1.0 - less), limit: s.pace, certain: None };
        }
        let (rate, above) = if (s.all - s.open) / s.all < 0.1 {
            // A climb from far below has offered less than was allowed.
            ((s.accepted / s.all).max(s.borne), 2.0 / s.accepted)
        } else if (mean / self.mean - 1.0).abs() < 0.06 && !s.punishes {
            (mean, 0.0) // twice the same; but what punishes makes this a mean of its own time
        } else if s.borne > 0.0 {
            // Between what was borne and what was refused: the next to be tried is the middle.
            let low = mean.max(s.borne).min(s.pace);
            let limit = (low * s.pace).sqrt().min(s.pace * (1.0 - m)).max(low * (1.0 + m));
            return Found { rate: low * (1.0 - m), limit, certain: None };
        } else {
            let less = (1.5 * m * 2f64.powi(self.shorts)).min(0.6);
            let floor = if self.longs > 0 || s.punishes { s.pace * (1.0 - less) } else { 0.0 };
            return Found { rate: mean.max(floor).min(s.pace), limit: s.pace * (1.0 - m), certain: None };
        };
        self.shorts = 0;
        Found { rate: rate * (1.0 - m), limit: rate * (1.0 + 2.0 * m + above), certain: Some(rate) }
    }
}

/// What was let through by the second in the best part of a time, beyond a burst and the time that this took: what holds no
/// more at once allows as much.
pub(super) fn borne(history: &History, from: f64, until: f64, (burst, time): (f64, f64)) -> f64 {
    let knots = history.curve().map(|knot| knot.at).filter(|at| *at > from && *at < until).chain([until]);
    let ends: Vec<(f64, f64)> = [from].into_iter().chain(knots).map(|at| (at, history.count(at))).collect();
    let mut most = 0.0f64;
    for (i, begin) in ends.iter().enumerate() {
        for end in &ends[i + 1..] {
            let (count, took) = (end.1 - begin.1 - burst, end.0 - begin.0);
            // Something flowed in while the burst was met, so it was less than that; of a short part this says too much.
            let took = if took > 3.0 * time { took - time } else { took };
            if took > 0.0 {
                most = most.max(count / took);
            }
        }
    }
    most
}

/// The share below a limit at which its pace begins.
const MARGIN: f64 = 0.026;
const LEAST_MARGIN: f64 = 0.007;
/// Growth that is seen in time, and a share by which a limit is not where it was.
const SEEN: f64 = 0.02;
const ELSEWHERE: f64 = 0.08;
/// The share of a pause that is made up for at first: a bucket has saved up all of it, a window nothing.
const CREDIT: f64 = 0.3;
/// So many let through are an average.
const ENOUGH: f64 = 25.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// A climb from 2 to 10 a second in twenty seconds, evenly.
    fn climb() -> History {
        let (mut history, mut at) = (History::new(), 0.0);
        while at < 20.0 {
            at += 1.0 / (2.0 + 0.4 * at);
            history.started(at, 1.0);
        }
        history
    }

    #[test]
    fn l1_a_climb_has_borne_more_than_its_mean() {
        let history = climb();
        let mean = history.count(20.0) / 20.0;
        let of = |burst| borne(&history, 0.0, 20.0, burst);
        assert!((mean - 6.0).abs() < 0.2, "{mean}");
        assert!((7.0..10.0).contains(&of((3.0, 0.1))), "little at once: {}", of((3.0, 0.1)));
        assert!(of((60.0, 0.1)) < of((3.0, 0.1)), "a burst may have borne it");
        assert!(of((60.0, 3.0)) > of((60.0, 0.1)), "less so the longer that it took");
        assert_eq!(of((500.0, 0.1)), 0.0, "or all of it");
    }

    /// A stretch at the end of which a pace of 10 a second was refused, and then nothing for a minute.
    fn punished(borne: f64) -> Stretch {
        Stretch {
            accepted: 180.0,
            all: 90.0,
            open: 30.0,
            cycle: 90.0,
            pace: 10.0,
            first: false,
            limit: 12.0,
            period: 5000.0,
            cheap: false,
            punishes: true,
            pushed: 0.0,
            borne,
        }
    }

    #[test]
    fn l2_a_punishment_is_no_part_of_the_time_that_a_pace_is_taken_from() {
        let (mut settle, model) = (Settle::new(), Model::new());
        settle.find(&punished(0.0), &model);
        let found = settle.find(&punished(0.0), &model);
        assert!(found.rate > 5.0 && found.certain.is_none(), "twice two a second, pauses and all: {found:?}");
        let calm = Stretch { punishes: false, ..punished(0.0) };
        let found = settle.find(&calm, &model);
        assert!((found.rate / 2.0 - 1.0).abs() < 0.05, "what punishes nobody allows the mean: {found:?}");
    }

    #[test]
    fn l2_between_what_was_borne_and_what_was_refused_the_middle_comes_next() {
        let found = Settle::new().find(&punished(6.4), &Model::new());
        assert!((6.0..=6.4).contains(&found.rate), "{found:?}");
        assert!((found.limit - 8.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn l3_after_a_ban_nothing_is_tried_above_what_was_let_through() {
        let settle = Settle::new();
        let found = Found { rate: 9.0, limit: 9.7, certain: None };
        let careful = settle.beware(&punished(6.0), found);
        assert!(careful.rate < 6.0 && careful.limit < 6.4, "{careful:?}");
        let slow = Stretch { open: 3000.0, ..punished(6.0) };
        assert_eq!(settle.beware(&slow, found), found, "a slow climb has shown more");
    }
}

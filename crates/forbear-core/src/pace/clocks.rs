//! The rates of a scope at work: where it stands on each of them (C1).

use std::time::Duration;

use super::{Counts, MAX_RATES, Rate, RateList};
use crate::{
    cost::{CostBudget, RequestBudget},
    time::Timestamp,
};

/// The rates that hold for a scope together, made ready for [`Clocks`].
///
/// Each is a GCRA (ITU-T I.371, the virtual scheduling form). For `N/W` with burst `b` the interval between starts is
/// `W / (N - b + 1)`, rounded up to a nanosecond, so that *every* window of `W` has at most `N` starts (C1): a plain
/// `W / N` would let `b - 1` more through in the first one.
///
/// A start that costs more than the burst is a burst by itself. So what a scope's starts cost counts as its burst too, up
/// to a quarter of `N`, from the first such start on: the schedule slows down, and before that start it rests for as long as
/// the step up takes. What is above a quarter rests so each time, since a schedule slow enough for it would be slow for all.
/// So no window has more cost than `N` either, in whatever order large and small come.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Rates([Option<Spacing>; MAX_RATES]);

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Spacing {
    rate: Rate,
    /// Nanoseconds between starts of cost 1, where none costs more than the burst.
    interval_ns: u64,
}

/// Where a scope stands on each of its rates: the theoretical arrival time of the next start, in nanoseconds.
///
/// Most scopes have two rates at most and count requests, and there may be a million of them: what the others need besides
/// is apart.
#[derive(Clone, Debug, Default)]
pub struct Clocks {
    near: [u64; NEAR],
    far: Option<Box<Far>>,
}

#[derive(Clone, Copy, Debug)]
struct Far {
    clocks: [u64; MAX_RATES - NEAR],
    /// The most that a start has cost, or was found to have cost.
    largest: u32,
    budget: CostBudget,
    requests: RequestBudget,
}

impl From<RateList> for Rates {
    fn from(list: RateList) -> Rates {
        let mut all = [None; MAX_RATES];
        all.iter_mut().zip(list.iter()).for_each(|(slot, rate)| *slot = Some(Spacing::from(rate)));
        Rates(all)
    }
}

impl From<Rate> for Spacing {
    fn from(rate: Rate) -> Spacing {
        Spacing { rate, interval_ns: interval(rate, rate.burst()) }
    }
}

/// Nanoseconds between starts where `burst` of them may come at once.
fn interval(rate: Rate, burst: u32) -> u64 {
    nanos(rate.per()).div_ceil(u64::from(rate.count() - burst.min(rate.count()) + 1))
}

impl Spacing {
    fn weight(&self, cost: u32) -> u32 {
        match self.rate.counts() {
            Counts::Requests => 1,
            Counts::Cost => cost,
        }
    }

    /// What counts as its burst beside single starts that cost up to `largest`.
    fn burst(&self, largest: u32) -> u32 {
        match self.rate.counts() {
            Counts::Requests => self.rate.burst(),
            Counts::Cost => self.rate.burst().max(largest.min(self.rate.count() / 4)),
        }
    }

    fn interval(&self, largest: u32) -> u64 {
        match self.burst(largest) {
            burst if burst == self.rate.burst() => self.interval_ns,
            burst => interval(self.rate, burst),
        }
    }

    /// From when on a start of this cost conforms, of a clock that stands at `tat`.
    fn earliest(&self, tat: u64, largest: u32, cost: u32) -> u64 {
        let (weight, own) = (self.weight(cost).max(1), self.rate.burst());
        let interval = self.interval(largest);
        let times = |n: u32| interval.saturating_mul(u64::from(n));
        if weight <= own {
            return tat.saturating_sub(times(own - weight));
        }
        tat.saturating_add(times(weight.saturating_sub(self.burst(largest))))
    }
}

impl Rates {
    /// Whether nothing is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0[0].is_none()
    }

    /// The rate that a request of this cost is too large for: it has more than the rate allows in a whole window, so no
    /// wait ends with its start.
    ///
    /// ```
    /// use forbear_core::pace::{RateList, Rates};
    /// let rates = Rates::from("60/min requests, 9000/min tokens".parse::<RateList>().unwrap());
    /// assert_eq!(rates.never(9000), None);
    /// assert_eq!(rates.never(9001).unwrap().to_string(), "9000/min");
    /// ```
    #[must_use]
    pub fn never(&self, cost: u32) -> Option<Rate> {
        let too_large = |spacing: &&Spacing| spacing.weight(cost) > spacing.rate.count();
        self.spacings().find(too_large).map(|spacing| spacing.rate)
    }

    /// The earliest moment at which a start of this cost conforms to every rate. One that costs more than a rate's whole
    /// count is let pass after a long rest: whoever asks has asked [`Rates::never`] before.
    #[must_use]
    pub fn earliest(&self, clocks: &Clocks, cost: u32) -> Timestamp {
        let mut latest = 0;
        for (i, spacing) in self.spacings().enumerate() {
            latest = latest.max(spacing.earliest(clocks.at(i), clocks.largest(), cost));
        }
        Timestamp::from_micros(latest.div_ceil(1000))
    }

    /// The least time from the first start to the last of so many, which cost so much together and at most `largest` each:
    /// the slowest of the rates has its way.
    #[must_use]
    pub fn least_time(&self, starts: u64, cost: u64, largest: u32) -> Duration {
        let by = |spacing: &Spacing| {
            let (all, last) = match spacing.rate.counts() {
                Counts::Requests => (starts, 1),
                Counts::Cost => (cost, largest),
            };
            let waited_for = all.saturating_sub(u64::from(last.max(spacing.rate.burst())));
            spacing.interval_ns.saturating_mul(waited_for)
        };
        Duration::from_nanos(self.spacings().map(by).max().unwrap_or(0))
    }

    /// Notes a start of this cost at `now`.
    pub fn take(&self, clocks: &mut Clocks, now: Timestamp, cost: u32) {
        self.rise(clocks, cost);
        let (now_ns, largest) = (now.as_micros().saturating_mul(1000), clocks.largest());
        for (i, spacing) in self.spacings().enumerate() {
            let step = spacing.interval(largest).saturating_mul(u64::from(spacing.weight(cost)));
            clocks.set(i, clocks.at(i).max(now_ns).saturating_add(step));
        }
    }

    /// Lets `starts` slots of each rate pass unused.
    pub(crate) fn skip(&self, clocks: &mut Clocks, now: Timestamp, starts: f64) {
        let now_ns = now.as_micros().saturating_mul(1000);
        for (i, spacing) in self.spacings().enumerate() {
            let step = (spacing.interval(clocks.largest()) as f64 * starts.max(0.0)) as u64;
            clocks.set(i, clocks.at(i).max(now_ns).saturating_add(step));
        }
    }

    /// Nothing may start ahead of the schedule from `now` on, until it has waited for it.
    pub(crate) fn spend_burst(&self, clocks: &mut Clocks, now: Timestamp) {
        let now_ns = now.as_micros().saturating_mul(1000);
        for (i, spacing) in self.spacings().enumerate() {
            let ahead = u64::from(spacing.rate.burst() - 1);
            let ahead = spacing.interval(clocks.largest()).saturating_mul(ahead);
            clocks.set(i, clocks.at(i).max(now_ns.saturating_add(ahead)));
        }
    }

    /// How many starts the slowest rate allows in `time`, once its burst is used up; none without any rate.
    pub(crate) fn starts_in(&self, time: Duration) -> Option<f64> {
        let slowest = self.spacings().map(|spacing| spacing.interval_ns).max()?;
        Some(nanos(time) as f64 / slowest as f64)
    }

    /// Corrects the schedule at `now`, once the real cost of a start is known (C1).
    ///
    /// What it has cost beyond the estimate is paid before the next start. What it has cost less is given back, but never
    /// makes more than a full burst of it. A cost above a rate's whole count counts as that: the next start is one window
    /// later, whatever a server says.
    pub fn correct(&self, clocks: &mut Clocks, now: Timestamp, estimated: u32, real: u32) {
        if real > estimated {
            self.rise(clocks, real);
        }
        let (now_ns, largest) = (now.as_micros().saturating_mul(1000), clocks.largest());
        for (i, spacing) in self.spacings().enumerate() {
            if spacing.rate.counts() == Counts::Requests {
                continue;
            }
            let tat = clocks.at(i);
            let real = real.min(spacing.rate.count().max(estimated));
            let apart = u64::from(estimated.abs_diff(real));
            if real > estimated {
                clocks.set(i, tat.saturating_add(spacing.interval(largest).saturating_mul(apart)));
            } else {
                // At the shortest interval: the start may have been taken at it, before the schedule slowed down.
                let back = spacing.interval_ns.saturating_mul(apart);
                clocks.set(i, tat.saturating_sub(back).max(tat.min(now_ns)));
            }
        }
    }

    /// Remembers what starts may cost, where a rate counts it.
    fn rise(&self, clocks: &mut Clocks, cost: u32) {
        let counts = |spacing: &Spacing| spacing.weight(cost) > spacing.burst(clocks.largest());
        if self.spacings().any(counts) {
            clocks.far().largest = clocks.largest().max(cost);
        }
    }

    fn spacings(&self) -> impl Iterator<Item = &Spacing> {
        self.0.iter().map_while(Option::as_ref)
    }
}

impl Clocks {
    /// Each clock, and the most that a start has cost.
    pub(crate) fn parts(&self) -> ([u64; MAX_RATES], u32) {
        (std::array::from_fn(|i| self.at(i)), self.largest())
    }

    /// Of its parts.
    pub(crate) fn from_parts(all: [u64; MAX_RATES], largest: u32) -> Clocks {
        let mut clocks = Clocks::default();
        all.into_iter().enumerate().for_each(|(i, tat)| clocks.set(i, tat));
        if largest > 0 {
            clocks.far().largest = largest;
        }
        clocks
    }

    /// What is left of a server's budget that counts cost.
    pub(crate) fn budget(&self) -> CostBudget {
        self.far.as_ref().map_or(CostBudget::default(), |far| far.budget)
    }

    /// The same, from now on.
    pub(crate) fn set_budget(&mut self, budget: CostBudget) {
        if self.far.is_some() || budget != CostBudget::default() {
            self.far().budget = budget;
        }
    }

    /// What is left of a server's budget that counts requests.
    pub(crate) fn requests(&self) -> RequestBudget {
        self.far.as_ref().map_or(RequestBudget::UNKNOWN, |far| far.requests)
    }

    /// The same, from now on.
    pub(crate) fn set_requests(&mut self, requests: RequestBudget) {
        if self.far.is_some() || requests != RequestBudget::UNKNOWN {
            self.far().requests = requests;
        }
    }

    /// A request starts.
    pub(crate) fn take_request(&mut self) {
        if let Some(far) = &mut self.far
            && far.requests.left != RequestBudget::UNKNOWN.left
        {
            far.requests.left = far.requests.left.saturating_sub(1);
        }
    }

    fn at(&self, i: usize) -> u64 {
        match self.near.get(i) {
            Some(tat) => *tat,
            None => self.far.as_ref().map_or(0, |far| far.clocks[i - NEAR]),
        }
    }

    fn set(&mut self, i: usize, to: u64) {
        match self.near.get_mut(i) {
            Some(tat) => *tat = to,
            None if to == 0 && self.far.is_none() => {}
            None => self.far().clocks[i - NEAR] = to,
        }
    }

    fn largest(&self) -> u32 {
        self.far.as_ref().map_or(0, |far| far.largest)
    }

    fn far(&mut self) -> &mut Far {
        self.far.get_or_insert_with(|| {
            let requests = RequestBudget::UNKNOWN;
            Box::new(Far {
                clocks: [0; MAX_RATES - NEAR],
                largest: 0,
                budget: CostBudget::default(),
                requests,
            })
        })
    }
}

/// By what they say: a part that says nothing is as good as none.
impl PartialEq for Clocks {
    fn eq(&self, other: &Clocks) -> bool {
        self.parts() == other.parts()
            && self.budget() == other.budget()
            && self.requests() == other.requests()
    }
}

fn nanos(d: Duration) -> u64 {
    u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)
}

/// So many clocks are at hand in every gate.
const NEAR: usize = 2;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn c1_the_slowest_rate_has_its_way() {
        for (list, starts, least_ms) in [
            ("10/s", 0, 0),
            ("10/s", 1, 0),
            ("10/s", 11, 1000),
            ("10/s burst 3", 3, 0),
            ("10/s burst 3", 11, 1000),
            ("10/s, 1000/h", 11, 36_000),
            ("10/s, 60/min burst 41", 41, 4000),
            ("60/min burst 41, 10/s", 50, 27_000),
        ] {
            let list: RateList = list.parse().unwrap();
            assert_eq!(
                Rates::from(list).least_time(starts, starts, 1),
                Duration::from_millis(least_ms),
                "{starts} by {list}"
            );
        }
        assert_eq!(
            Rates::default().least_time(u64::MAX, u64::MAX, 1),
            Duration::ZERO,
            "nothing holds nothing up"
        );
    }

    /// Counts, windows in milliseconds and bursts.
    fn rates() -> impl Strategy<Value = Vec<(u32, u64, u32)>> {
        prop::collection::vec((1u32..40, 50u64..20_000, 1u32..40), 1..=MAX_RATES)
    }

    /// The same rate twice is one.
    fn list_of(rates: Vec<(u32, u64, u32)>) -> RateList {
        let mut all: Vec<Rate> = Vec::new();
        for (n, ms, b) in rates {
            let rate = Rate::new(n, Duration::from_millis(ms), b.min(n)).unwrap();
            if !all.contains(&rate) {
                all.push(rate);
            }
        }
        RateList::new(&all).unwrap()
    }

    proptest! {
        #[test]
        fn c1_no_window_has_more_than_its_starts(
            rates in rates(),
            gaps in prop::collection::vec(0u64..400_000, 1..300),
        ) {
            let list = list_of(rates);
            let (ready, mut clocks) = (Rates::from(list), Clocks::default());
            let (mut now, mut starts) = (Timestamp::from_secs(1_700_000_000), Vec::new());
            for gap in gaps {
                now = now.plus(Duration::from_micros(gap)).max(ready.earliest(&clocks, 1));
                ready.take(&mut clocks, now, 1);
                starts.push(now);
            }
            for rate in list.iter() {
                for (i, first) in starts.iter().enumerate() {
                    let within = starts[i..].iter().take_while(|t| t.since(*first) < rate.per()).count();
                    prop_assert!(within <= rate.count() as usize, "{within} in a window of {rate} under {list}");
                }
            }
        }

        #[test]
        fn c1_whoever_starts_at_the_first_chance_takes_the_least_time(
            rates in rates(),
            starts in 1u64..300,
        ) {
            let list = list_of(rates);
            let (ready, mut clocks) = (Rates::from(list), Clocks::default());
            let first = Timestamp::from_secs(1_700_000_000);
            let mut now = first;
            for _ in 0..starts {
                now = now.max(ready.earliest(&clocks, 1));
                ready.take(&mut clocks, now, 1);
            }
            let (took, least) = (now.since(first), ready.least_time(starts, starts, 1));
            // Each start waits for a whole microsecond.
            prop_assert!(least <= took && took <= least + Duration::from_micros(starts), "{list}: {took:?}, not {least:?}");
        }

        #[test]
        fn c1_no_window_has_more_cost_than_its_count(
            rates in rates(),
            requests in (1u32..40, 50u64..20_000),
            starts in prop::collection::vec((0u64..400_000, 1u32..=40), 1..300),
        ) {
            let mut all: Vec<Rate> = list_of(rates).iter().take(MAX_RATES - 1).collect();
            let (n, ms) = requests;
            all.push(Rate::new(n, Duration::from_millis(ms), 1).unwrap().counting(Counts::Requests));
            let list = RateList::new(&all).unwrap();
            let (ready, mut clocks) = (Rates::from(list), Clocks::default());
            let (mut now, mut taken) = (Timestamp::from_secs(1_700_000_000), Vec::new());
            for (gap, cost) in starts {
                let cost = (1..=cost).rev().find(|cost| ready.never(*cost).is_none()).unwrap();
                now = now.plus(Duration::from_micros(gap)).max(ready.earliest(&clocks, cost));
                ready.take(&mut clocks, now, cost);
                taken.push((now, cost));
            }
            for rate in list.iter() {
                let weight = |cost: u32| if rate.counts() == Counts::Requests { 1 } else { cost };
                for (i, (first, _)) in taken.iter().enumerate() {
                    let within = taken[i..].iter().take_while(|(t, _)| t.since(*first) < rate.per());
                    let sum: u32 = within.map(|(_, cost)| weight(*cost)).sum();
                    prop_assert!(sum <= rate.count(), "{sum} in a window of {rate} under {list}");
                }
            }
        }

        #[test]
        fn c1_no_window_has_more_real_cost_than_its_count_up_to_one_correction(
            rates in rates(),
            starts in prop::collection::vec((0u64..400_000, 1u32..=40, 0u32..=60, 0u64..300_000), 1..200),
        ) {
            let list = list_of(rates);
            let (ready, mut clocks) = (Rates::from(list), Clocks::default());
            let (mut now, mut taken) = (Timestamp::from_secs(1_700_000_000), Vec::new());
            for (gap, cost, real, later) in starts {
                let cost = (1..=cost).rev().find(|cost| ready.never(*cost).is_none()).unwrap();
                now = now.plus(Duration::from_micros(gap)).max(ready.earliest(&clocks, cost));
                ready.take(&mut clocks, now, cost);
                taken.push((now, cost, real));
                // One at a time: the answer comes before the next one starts.
                now = now.plus(Duration::from_micros(later));
                ready.correct(&mut clocks, now, cost, real);
            }
            for rate in list.iter() {
                for (i, (first, ..)) in taken.iter().enumerate() {
                    let within = taken[i..].iter().take_while(|(t, ..)| t.since(*first) < rate.per());
                    let within: Vec<_> = within.collect();
                    // What was not known of a start when the next was let pass.
                    let sum: u32 = within.iter().map(|(_, _, real)| *real).sum();
                    let beyond: u32 = within.iter().map(|(_, cost, real)| real.saturating_sub(*cost)).max().unwrap();
                    prop_assert!(sum <= rate.count() + beyond, "{sum} in a window of {rate} under {list}");
                }
            }
        }

        #[test]
        fn c1_a_list_is_written_as_it_is_read(rates in rates()) {
            let list = list_of(rates);
            prop_assert_eq!(list.to_string().parse(), Ok(list));
        }
    }

    fn at(ms: u64) -> Timestamp {
        Timestamp::from_secs(1_700_000_000).plus(Duration::from_millis(ms))
    }

    /// When starts of these costs come at the earliest, in milliseconds from the first on.
    fn schedule(list: &str, costs: &[u32]) -> Vec<u64> {
        let (rates, mut clocks) = (Rates::from(list.parse::<RateList>().unwrap()), Clocks::default());
        let mut now = at(0);
        let mut start = |cost: &u32| {
            now = now.max(rates.earliest(&clocks, *cost));
            rates.take(&mut clocks, now, *cost);
            u64::try_from(now.since(at(0)).as_micros().div_ceil(1000)).unwrap()
        };
        costs.iter().map(&mut start).collect()
    }

    #[test]
    fn c1_each_rate_counts_what_it_says() {
        for (list, costs, expected) in [
            ("10/s requests", &[5, 900, 1][..], &[0, 100, 200][..]),
            ("10/s", &[2, 2, 2], &[0, 223, 445]), // 9 of 10 a window, for two may come at once
            ("10/s burst 2", &[2, 2, 1], &[0, 223, 334]),
            ("1000/s tokens burst 100", &[100, 100, 50, 50], &[0, 111, 167, 222]),
            ("5/s requests, 1000/s tokens", &[1, 1, 500], &[0, 200, 700]),
            ("1/s requests, 10/s requests burst 5", &[1, 1, 1], &[0, 1000, 2000]),
        ] {
            assert_eq!(schedule(list, costs), expected, "{costs:?} by {list}");
        }
    }

    #[test]
    fn c1_what_is_too_large_for_a_window_never_starts() {
        for (list, cost, never) in [
            ("10/s", 10, None),
            ("10/s", 11, Some("10/s")),
            ("10/s requests", u32::MAX, None),
            ("5/s requests, 9000/min tokens, 100000/d tokens", 9001, Some("9000/min")),
            ("9000/min, 8000/h burst 10", 8500, Some("8000/h burst 10")),
        ] {
            let rates = Rates::from(list.parse::<RateList>().unwrap());
            assert_eq!(rates.never(cost).map(|rate| rate.to_string()).as_deref(), never, "{cost} by {list}");
        }
        assert_eq!(Rates::default().never(u32::MAX), None);
    }

    #[test]
    fn c1_real_costs_correct_the_schedule_within_bounds() {
        // Of 1000 a second, in steps of 100: the interval is 1 s / 901 a unit once a start has cost 100.
        let after = |estimated: u32, real: u32, later: u64| {
            let (rates, mut clocks) =
                (Rates::from("1000/s tokens".parse::<RateList>().unwrap()), Clocks::default());
            rates.take(&mut clocks, at(0), estimated);
            rates.correct(&mut clocks, at(later), estimated, real);
            u64::try_from(rates.earliest(&clocks, 1).since(at(0)).as_millis()).unwrap()
        };
        assert_eq!(after(100, 100, 0), 110);
        assert_eq!(after(100, 200, 0), 235, "what is more is paid, and counts as a burst from now on");
        assert_eq!(after(100, 50, 0), 60, "what is less is given back");
        assert_eq!(after(100, 0, 50), 50, "but never makes more than a full burst");
        assert_eq!(after(100, 100, 500), 110, "and a schedule that was kept stays");
        let most = after(100, u32::MAX, 0);
        assert!((1000..1500).contains(&most), "a hostile number delays by a window, not for ever: {most}");
    }

    #[test]
    fn c1_a_rate_of_requests_knows_no_cost() {
        let (rates, mut clocks) = (Rates::from("10/s req".parse::<RateList>().unwrap()), Clocks::default());
        rates.take(&mut clocks, at(0), 7);
        rates.correct(&mut clocks, at(1), 7, 7000);
        assert_eq!(rates.earliest(&clocks, 9), at(100));
        assert_eq!(clocks.parts().1, 0, "and nothing is kept of it");
    }

    #[test]
    fn c1_most_of_a_budget_is_used_whatever_the_costs() {
        let spread = |seed: u32| 500 + (seed.wrapping_mul(2_654_435_761) >> 22); // 500 to 1523
        for (list, least) in [("100000/min tokens", 0.95), ("20000/min tokens", 0.85)] {
            let rates = Rates::from(list.parse::<RateList>().unwrap());
            let (mut clocks, mut now, mut sum) = (Clocks::default(), at(0), 0u64);
            for seed in 0..2000 {
                let cost = spread(seed);
                now = now.max(rates.earliest(&clocks, cost));
                rates.take(&mut clocks, now, cost);
                sum += u64::from(cost);
            }
            let allowed = now.since(at(0)).as_secs_f64() / 60.0
                * f64::from(rates.spacings().next().unwrap().rate.count());
            let share = sum as f64 / allowed;
            assert!((least..1.0).contains(&share), "{share:.3} of {list}");
        }
    }

    #[test]
    fn c1_the_least_time_reckons_with_cost() {
        for (list, starts, cost, largest, least_ms) in [
            ("10/s", 5, 25, 5, 2000),
            ("10/s requests", 5, 25, 5, 400),
            ("10/s requests, 10/s", 5, 25, 5, 2000),
            ("10/s burst 10", 5, 25, 5, 15_000),
            ("10/s", 0, 0, 0, 0),
        ] {
            let rates = Rates::from(list.parse::<RateList>().unwrap());
            let least = rates.least_time(starts, cost, largest);
            assert_eq!(least, Duration::from_millis(least_ms), "{starts} of {cost} by {list}");
        }
    }
}

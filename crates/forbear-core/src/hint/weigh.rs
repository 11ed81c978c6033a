//! Precedence: which of the gathered budgets and instructions counts (H2).

use std::time::Duration;

use super::WaitSource;
use super::evidence::Evidence;
use super::gather::{Family, Gathered, Order};
use super::profile::Verdict;

/// Two waits closer than this are one instruction, written twice.
const SAME_WITHIN: Duration = Duration::from_secs(1);

/// By the share that is left, where both tell their limit, else by what is left.
fn nearer_to_its_end(a: &&Family<'_>, b: &&Family<'_>) -> std::cmp::Ordering {
    match (a.left(), b.left()) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.remaining.unwrap_or(f64::MAX).total_cmp(&b.remaining.unwrap_or(f64::MAX)),
    }
}

impl<'a> Gathered<'a> {
    /// The budget that binds: the exhausted one with the longest reset, else the one nearest to its end. Where any
    /// budget will do, one with something left binds before an exhausted one.
    pub(crate) fn binding(&self, any_left: bool) -> Option<&Family<'a>> {
        let exhausted = || self.families.iter().filter(|f| f.is_exhausted());
        if !any_left || self.all_exhausted() {
            // The first of equals.
            let longest = exhausted().rev_max_by(|f| f.reset.map(|r| r.time));
            if longest.is_some() {
                return longest;
            }
        }
        self.families
            .iter()
            .filter(|f| f.remaining.is_some() && !f.is_exhausted())
            .min_by(nearer_to_its_end)
            .or_else(|| self.families.iter().find(|f| f.limit.is_some()))
            .or_else(|| self.families.first())
    }

    /// Of the budgets that count something else than `binding`, the one nearest to its end.
    pub(crate) fn beside(&self, binding: &Family<'a>) -> Option<&Family<'a>> {
        let others = self.families.iter().filter(|f| f.of_cost() != binding.of_cost());
        others.filter(|f| f.remaining.is_some()).min_by(nearer_to_its_end)
    }

    fn all_exhausted(&self) -> bool {
        let mut told = self.families.iter().filter(|f| f.remaining.is_some()).peekable();
        told.peek().is_some() && told.all(Family::is_exhausted)
    }

    /// Resets that no counter goes with; they hold for every budget of the response that has none of its own.
    fn loose_reset(&self) -> Option<Duration> {
        self.families.iter().filter(|f| f.remaining.is_none()).filter_map(|f| Some(f.reset?.time)).max()
    }

    pub(super) fn reset_of(&self, family: &Family<'a>) -> Option<Duration> {
        family.reset.map(|r| r.time).or_else(|| self.loose_reset())
    }

    /// When the exhausted budgets are refilled.
    pub(crate) fn reset(&self, refuses: bool, any_left: bool) -> Option<Duration> {
        let mut exhausted = self.families.iter().filter(|f| f.is_exhausted()).peekable();
        if exhausted.peek().is_some() {
            let resets = exhausted.filter_map(|f| self.reset_of(f));
            return match any_left {
                true if self.all_exhausted() => resets.min(),
                true => None,
                false => resets.max(),
            };
        }
        // Refused while every budget shows some left: another limit fired.
        let counted = self.families.iter().any(|f| f.remaining.is_some());
        if refuses && !counted { self.loose_reset() } else { None }
    }

    /// A budget has nothing left, and its reset is still to come (or not told).
    pub(crate) fn is_spent(&self, any_left: bool) -> bool {
        if any_left && !self.all_exhausted() {
            return false;
        }
        let open = |f: &Family<'a>| self.reset_of(f).is_none_or(|r| !r.is_zero());
        let mut exhausted = self.families.iter().filter(|f| f.is_exhausted()).peekable();
        exhausted.peek().is_some() && if any_left { exhausted.all(open) } else { exhausted.any(open) }
    }

    /// The instruction that counts: of different ones the longest, of one at two precisions the finer. On a served
    /// response only those that hold there too.
    pub(crate) fn order(&self, refuses: bool) -> Option<&Order<'a>> {
        let valid = || self.orders.iter().filter(|o| refuses || o.hold);
        let longest = valid().rev_max_by(|o| o.wait.time)?;
        // A zero is no finer reading of anything.
        valid()
            .filter(|o| longest.wait.time - o.wait.time < SAME_WITHIN)
            .filter(|o| !o.wait.time.is_zero() || longest.wait.time.is_zero())
            .min_by_key(|o| (o.wait.step, std::cmp::Reverse(o.wait.time)))
    }

    /// What decided, for records and people.
    pub(crate) fn evidence(
        &self,
        status: u16,
        from: Option<WaitSource>,
        order: Option<&Order<'a>>,
        binding: Option<&Family<'a>>,
        verdict: &Verdict,
        limited: bool,
    ) -> Evidence {
        let family = |reason| {
            let (field, raw) = binding.and_then(|f| f.shown).unwrap_or_default();
            Evidence::new(field, raw, reason)
        };
        match (from, order) {
            (Some(WaitSource::Instruction), Some(order)) => {
                return Evidence::new(&order.field, order.raw, "the server says when to come back");
            }
            (Some(WaitSource::Reset), _) => return family("nothing is left until the reset"),
            _ => {}
        }
        if let Some((field, raw)) = &verdict.mark {
            let reason =
                if limited { "the service's own word for a limit" } else { "refused, but not by a limit" };
            return Evidence::new(field, raw, reason);
        }
        if let Some((field, raw)) = self.unreadable {
            return Evidence::new(field, raw, "not readable, so no hint");
        }
        if limited {
            return match binding.filter(|f| f.is_exhausted()) {
                Some(_) => family("nothing is left, and no time is told"),
                None if matches!(status, 503 | 529) => {
                    Evidence::of_reason("the service cannot keep up; no time is told")
                }
                None => Evidence::of_reason("refused; no time is told"),
            };
        }
        if let Some(order) = self.orders.first() {
            let reason = "on this status it is about one request, no hold for the scope";
            return Evidence::new(&order.field, order.raw, reason);
        }
        match binding {
            Some(f) if f.is_exhausted() => family("nothing is left, but its reset is over"),
            Some(_) => family("something is left"),
            None => Evidence::default(),
        }
    }
}

/// `max_by_key`, but the first of equals.
trait RevMax: Iterator + Sized {
    fn rev_max_by<K: Ord>(self, key: impl Fn(&Self::Item) -> K) -> Option<Self::Item> {
        self.fold(None, |best: Option<Self::Item>, item| match &best {
            Some(b) if key(b) >= key(&item) => best,
            _ => Some(item),
        })
    }
}

impl<I: Iterator> RevMax for I {}

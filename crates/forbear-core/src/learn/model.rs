//! What is believed about a limit: the past, and the hypotheses that explain it.

use super::{
    Incident,
    fit::{Bench, Fit, Shape},
    history::{History, Opening, Seen},
    name::{self, Finding, Named},
};

/// The past, and what explains it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Model {
    pub(super) history: History,
    /// Between what was refused and what was let through again: there a window may have begun.
    edges: [(f64, f64); EDGES],
    edges_len: usize,
    /// The limit was another one before.
    from: f64,
    /// The last search had to give up a part of the past.
    pub(super) cut: bool,
    /// Since the limit moved.
    pub(super) incidents: u32,
    /// How often it moved.
    pub(super) moves: u32,
    fits: [Option<Fit>; 5],
    /// The window that is held to be true until something speaks against it.
    pub(super) known: Option<Fit>,
    /// The first incidents.
    pub(super) opening: Opening,
    /// The kind that was found.
    pub(super) named: Option<Named>,
}

/// What an incident has come to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Turn {
    /// The limit has moved.
    pub(super) moved: bool,
    /// An explanation must be looked for.
    pub(super) search: bool,
}

impl Model {
    pub(super) fn new() -> Model {
        Model {
            history: History::new(),
            edges: [(0.0, 0.0); EDGES],
            edges_len: 0,
            from: 0.0,
            cut: false,
            incidents: 0,
            moves: 0,
            fits: [None; 5],
            known: None,
            opening: Opening::new(),
            named: None,
        }
    }

    /// An incident is over: the probe that was sent at `reopened` was let through. `last` is when the incident before it
    /// began.
    pub(super) fn incident(&mut self, it: &Incident, last: f64, round_trip: f64, reopened: f64) -> Turn {
        if self.edges_len == EDGES {
            self.edges.copy_within(1.., 0);
            self.edges_len -= 1;
        }
        self.edges[self.edges_len] = (it.last_refusal - round_trip, reopened);
        self.edges_len += 1;
        let moved = self.has_moved(it, last);
        self.opening.keep(&self.history);
        if moved {
            // What was before says nothing any more.
            (self.from, self.named) = (last, None);
            self.incidents = 0;
            self.moves += 1;
            self.known = None;
        } else if let Some(known) = &mut self.known {
            let refuted = it.pace < known.rate && it.at - last < SOON * known.window;
            if !refuted && it.pace <= known.rate * MORE {
                known.rate += 0.3 * (it.pace - known.rate);
                return Turn { moved: false, search: false };
            }
            self.known = None; // it may allow more than that, or less: look again
            self.incidents = 0;
        }
        self.incidents += 1;
        // A search costs a millisecond. Once there is much past, one incident more changes little.
        Turn { moved, search: self.incidents <= 6 || self.incidents.is_multiple_of(8) }
    }

    /// Takes over what was found on a copy of it.
    pub(super) fn adopt(&mut self, found: Model) {
        (self.fits, self.known) = (found.fits, found.known);
        (self.from, self.cut, self.named) = (found.from, found.cut, found.named);
    }

    /// It was refused at less than what is believed, or bore more.
    fn has_moved(&self, it: &Incident, last: f64) -> bool {
        let believed = self.known.map(|fit| (fit.rate, fit.rate)).or(self.range());
        let Some((low, high)) = believed else { return false };
        // What was there at once says nothing about the rate.
        let number = self.holding().chain(&self.known).map(|fit| fit.number).fold(0.0, f64::max);
        let borne = (it.accepted - number) / (it.at - last).max(1e-3);
        (self.incidents >= 2 || self.known.is_some())
            && (it.pace < low * 0.96 || it.accepted >= 25.0 && borne > high * 1.03)
    }

    /// Looks for what explains the past up to this incident. Takes up to a few milliseconds.
    pub(super) fn search(&mut self, it: &Incident, reopened: f64) {
        let mean = (self.history.count(it.at) / it.at.max(0.1)).max(0.01);
        let (low, high) = (mean * 0.2, (it.pace * 1.3).min(FASTEST).max(mean * 1.5));
        let longest = (reopened - self.history.begins()).max(2.0);
        self.cut = false;
        loop {
            let edges = &self.edges[..self.edges_len];
            let bench = Bench::new(&self.history, self.from, true, edges);
            let known = self.fits[1].map(|fit| fit.window);
            self.fits = [
                bench.bucket(low, high),
                bench.fixed(SHORTEST, longest, known),
                bench.log(SHORTEST, longest),
                bench.counter(SHORTEST, longest),
                // A bucket whose refusals start a time of refusals: probes within it say nothing about the bucket.
                Bench::new(&self.history, self.from, false, edges).bucket(low, high),
            ];
            let mut later = self.history.seen().iter().filter(|s| !s.probe && s.at > self.from);
            let next = later.next();
            if self.range().is_some() || later.count() < 3 {
                break;
            }
            // Nothing explains all of it: without the oldest incident, then.
            self.from = next.map_or(self.from, |seen| seen.at);
            self.cut = true;
        }
        let explained = self.history.seen().iter().filter(|s| !s.probe && s.at >= self.from).count();
        if let Some((low, high)) = self.range()
            && explained >= 3
            && high < low * 1.06
            && !self.holding().any(|fit| fit.shape == Shape::Bucket)
            && self.always_told().is_none()
        {
            let best = self.holding().min_by(|a, b| a.misfit.total_cmp(&b.misfit));
            self.known = best.map(|fit| Fit { rate: (low * high).sqrt(), ..*fit });
        }
        // A limit that moves again and again is no kind for long, and to look for one takes long.
        if self.moves == 0 || self.incidents >= 3 {
            match name::find(&self.history, &self.opening, &self.fits) {
                Some(Finding::Named(named)) => self.named = Some(named),
                Some(Finding::Likeliest(kind)) => self.named = self.named.filter(|named| named.kind == kind),
                None => {}
            }
        }
    }

    /// How many of the last incidents are explained.
    pub(super) fn explained(&self) -> u32 {
        if self.range().is_none() {
            return 0;
        }
        self.history.seen().iter().filter(|s| !s.probe && s.at >= self.from).count() as u32
    }

    /// Keeps a refusal that must be explained.
    pub(super) fn keep(&mut self, seen: Seen) {
        self.history.keep(seen);
    }

    /// A bucket is never shut for long: without that, no window is believed in.
    pub(super) fn was_shut_for_long(&self) -> bool {
        self.history.seen().iter().filter(|s| s.at >= self.from).any(|s| s.probe || s.told >= 2.0)
    }

    /// The hypotheses that explain all of the past.
    pub(super) fn holding(&self) -> impl Iterator<Item = &Fit> {
        let windows = self.was_shut_for_long() && self.always_told().is_none();
        let fits = self.fits.iter().flatten().filter(|fit| fit.misfit <= HOLDS);
        fits.filter(move |fit| windows || fit.shape == Shape::Bucket)
    }

    /// The wait that every incident was told, where it was always the same and not short: that of a penalty. What is left of
    /// a window is never the same.
    pub(super) fn always_told(&self) -> Option<f64> {
        let firsts = self.history.seen().iter().filter(|s| !s.probe && s.at >= self.from);
        let told = firsts.clone().map(|s| f64::from(s.told));
        let (least, most) =
            told.fold((f64::INFINITY, 0.0f64), |(least, most), t| (least.min(t), most.max(t)));
        (firsts.count() >= 2 && least >= 3.0 && most - least <= 1.0).then_some(most)
    }

    /// The rates of all hypotheses that hold.
    pub(super) fn range(&self) -> Option<(f64, f64)> {
        let none = (f64::INFINITY, 0.0f64);
        let range = self.holding().fold(none, |(low, high), fit| (low.min(fit.least), high.max(fit.most)));
        (range.1 > 0.0).then_some(range)
    }

    /// How long it will take until a request gets through, by the window that is known; zero without one.
    pub(super) fn predicted_wait(&self, now: f64) -> f64 {
        self.known.map_or(0.0, |fit| fit.wait(&self.history, now))
    }
}

/// A hypothesis holds that is off by less, in shares of its number.
const HOLDS: f64 = 0.01;
/// Refused at this times the rate that is held to be true, there may be more.
const MORE: f64 = 1.05;
/// And refused at less within so many windows, it is another one.
const SOON: f64 = 6.0;
/// Nobody limits so many a second, unless they were let through.
const FASTEST: f64 = 1e5;
/// Windows that are shorter look like buckets.
const SHORTEST: f64 = 0.4;
const EDGES: usize = 6;

//! Whose limit it is, by evidence: an account's, an endpoint's, an exit's, or for all that is known everyone's (L6).
//!
//! A refusal that does not say whose limit was met falls on the origin. If it is everyone's, who is refused and who is served
//! has nothing to do with the account, and that holds for every kind of limit, also for one that serves a part: labels can be
//! exchanged. So the tests are of exchange, and their odds are multiplied over incidents. There are two.
//!
//! Who is refused *first*, of those that were sent since the last incident? Whose turn it is when a limit that is everyone's is
//! used up is chance; an account whose limit it is, it is again and again. So each incident is a bet on what the earlier ones
//! showed, fair where the limit is everyone's. It works with a single request on the wire, and takes some ten incidents.
//!
//! Who is refused *with it*? While the first refusal is on the way back others are on the wire. If it is the account's limit,
//! those of the same one are refused and the others served. With a handful on the wire two incidents are enough.
//!
//! Once a refusal falls on the account alone, the others go on, and their first answers say whether that is right. Nothing is
//! ever sent into a pause for the sake of knowing more.
//!
//! ```
//! use forbear_core::{evidence::{Evidence, Part, Who}, time::Timestamp};
//! use std::time::Duration;
//!
//! let (one, two) = (Who::labelled([1, 0, 0]), Who::labelled([2, 0, 0]));
//! let (mut evidence, mut now) = (Evidence::default(), Timestamp::from_secs(1_000));
//! while evidence.narrowed().is_none() {
//!     let sent = now;
//!     for (who, served) in [(one, false), (two, true), (one, false), (two, true), (one, false)] {
//!         now = now.plus(Duration::from_millis(20));
//!         if served {
//!             evidence.served(&who, sent, now);
//!         } else {
//!             evidence.refused(&who, sent, None, now.plus(Duration::from_secs(1)), now);
//!         }
//!     }
//!     now = now.plus(Duration::from_secs(1));
//! }
//! assert_eq!(evidence.narrowed(), Some(Part::Account));
//! ```

use crate::{
    policy::BoundScope,
    scope::{Combination, Role},
    time::Timestamp,
};

/// What a limit may count apart at one origin, from the widest on.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Part {
    /// Whoever the credentials belong to.
    Account,
    /// The path pattern.
    Endpoint,
    /// The way out.
    Exit,
}

impl Part {
    /// All, in the order of [`Who::labelled`].
    pub const ALL: [Part; PARTS] = [Part::Account, Part::Endpoint, Part::Exit];

    /// The word for people and records.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Part::Account => "account",
            Part::Endpoint => "endpoint",
            Part::Exit => "exit",
        }
    }

    /// The part with this word.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Part> {
        Part::ALL.into_iter().find(|part| part.as_str() == name)
    }

    /// The scope that counts an origin by it.
    #[must_use]
    pub fn of_origin(self) -> Combination {
        match self {
            Part::Account => Combination::ORIGIN_ACCOUNT,
            Part::Endpoint => Combination::ORIGIN_ENDPOINT,
            Part::Exit => Combination::ORIGIN_EXIT,
        }
    }
}

/// Whose request it is: a label for each part that the request has a scope for.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Who([u32; PARTS]);

impl Who {
    /// By labels for account, endpoint and exit; zero where it has none.
    #[must_use]
    pub const fn labelled(labels: [u32; PARTS]) -> Who {
        Who(labels)
    }

    /// By the scopes of a request. A member of a group has none: what its origins share is nothing that one of them can
    /// tell.
    #[must_use]
    pub fn of(scopes: &[BoundScope]) -> Who {
        let mut who = Who::default();
        if scopes.iter().any(|scope| scope.by.is_some_and(|by| by.group)) {
            return who;
        }
        for (part, label) in Part::ALL.into_iter().zip(&mut who.0) {
            let is = |scope: &&BoundScope| scope.role == Role::Planned && scope.by == Some(part.of_origin());
            *label = scopes.iter().find(is).map_or(0, |scope| hash(scope.key.as_str()));
        }
        who
    }

    /// Whether there is nothing to tell it from others by.
    #[must_use]
    pub fn is_anybody(&self) -> bool {
        *self == Who::default()
    }

    /// Whether it has a label for this part.
    #[must_use]
    pub fn has(&self, part: Part) -> bool {
        self.0[part as usize] != 0
    }
}

/// Whose the limits of an origin are, and why that is believed.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Whose {
    /// Each value of this part has its own.
    pub part: Part,
    /// Requests that were served with another value while one was refused.
    pub served_elsewhere: u32,
    /// Requests that were refused with the same value.
    pub refused_here: u32,
    /// Requests that were refused with another value meanwhile.
    pub refused_elsewhere: u32,
    /// Since when it is believed.
    pub since: Timestamp,
}

/// The evidence of one origin. It takes some 1.2 KiB, however much it has seen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Evidence {
    tallies: [Tally; PARTS],
    incident: Option<Incident>,
    /// Whom first refusals met, of each part.
    firsts: [Firsts; PARTS],
    recent: Recent,
    /// Requests that were alike but for their exit have been seen, so that the exit does not stand for the account.
    exits_vary: bool,
}

/// What speaks for one part, from all incidents that are over.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// The logarithm of the odds.
    pub score: f32,
    /// Refusals fall on this part.
    pub narrow: bool,
    /// How often that turned out to be wrong.
    pub widened: u8,
    /// Counted as in [`Whose`].
    pub served_elsewhere: u32,
    /// See there.
    pub refused_here: u32,
    /// See there.
    pub refused_elsewhere: u32,
    /// When `narrow` changed last.
    pub since: Timestamp,
}

#[derive(Clone, Debug, PartialEq)]
struct Incident {
    /// Of its first refusal.
    who: Who,
    sent: Timestamp,
    closed: Timestamp,
    until: Timestamp,
    /// What it fell on; none for the origin.
    on: Option<Part>,
    /// Of each part, for requests that differ otherwise too, and for those that do not: so that an endpoint that is used by
    /// one account most does not stand for it.
    tables: [[Table; 2]; PARTS],
    /// Whose first answers after the refusal are in, and how many spoke for the part.
    tried: [u32; TRIED],
    agreed: u8,
}

/// Who was served since the last incident, the latest of them.
#[derive(Clone, Debug, PartialEq)]
struct Recent {
    who: [Who; RECENT],
    seen: usize,
}

/// How often the first refusal of an incident met a value, and how often it would have by chance: of the values that it met
/// most, and of all others together.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Firsts {
    values: [First; TRIED],
    others: First,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct First {
    value: u32,
    met: f32,
    expected: f32,
}

/// Answers to requests that were on the wire together.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
struct Table {
    served_here: u16,
    refused_here: u16,
    served_there: u16,
    refused_there: u16,
}

impl Evidence {
    /// What the last run knew.
    #[must_use]
    pub fn restore(tallies: [Tally; PARTS]) -> Evidence {
        let sound = |tally: Tally| {
            let score = if tally.score.is_finite() { tally.score.clamp(-SCORE_MAX, SCORE_MAX) } else { 0.0 };
            Tally { score, ..tally }
        };
        Evidence { tallies: tallies.map(sound), ..Evidence::default() }
    }

    /// What the next run shall know, in the order of [`Part::ALL`].
    #[must_use]
    pub fn tallies(&self) -> [Tally; PARTS] {
        let mut tallies = self.tallies;
        for (tally, part) in tallies.iter_mut().zip(Part::ALL) {
            tally.score = self.score(part);
        }
        tallies
    }

    /// A request that was `sent` was served: its limit, whatever that is, had room.
    pub fn served(&mut self, who: &Who, sent: Timestamp, now: Timestamp) {
        self.answered(who, sent, true, now);
    }

    /// A request that was `sent` was refused, by a limit that did not say whose it is. The refusal fell `on` a part, or on
    /// the origin, and what it fell on stays shut `until` then.
    pub fn refused(
        &mut self,
        who: &Who,
        sent: Timestamp,
        on: Option<Part>,
        until: Timestamp,
        now: Timestamp,
    ) {
        self.answered(who, sent, false, now);
        match &mut self.incident {
            Some(incident) if sent <= incident.closed => incident.until = incident.until.max(until),
            _ => self.begin(*who, sent, on, until, now),
        }
    }

    /// The part that a refusal falls on, where evidence narrows the origin.
    #[must_use]
    pub fn narrowed(&self) -> Option<Part> {
        Part::ALL.into_iter().find(|part| self.tallies[*part as usize].narrow)
    }

    /// What is believed, if anything. That a limit is everyone's is not among it: two accounts that are used alike meet limits
    /// of their own at the same time.
    #[must_use]
    pub fn whose(&self) -> Option<Whose> {
        let part = self.narrowed()?;
        let Tally { served_elsewhere, refused_here, refused_elsewhere, since, .. } =
            self.tallies[part as usize];
        Some(Whose { part, served_elsewhere, refused_here, refused_elsewhere, since })
    }

    fn answered(&mut self, who: &Who, sent: Timestamp, served: bool, now: Timestamp) {
        if served && self.incident.as_ref().is_none_or(|incident| sent > incident.closed) {
            self.recent.add(*who);
        }
        let Some(incident) = &mut self.incident else { return };
        if sent < incident.sent || sent >= incident.until && sent > incident.closed {
            return; // it may have met the server before, or it is a probe: the pause was over
        }
        let after = sent > incident.closed;
        let same = |part: Part| incident.who.0[part as usize] == who.0[part as usize];
        let [account, endpoint, exit] = Part::ALL.map(same);
        self.exits_vary |= account && endpoint && !exit;
        let known = exit || self.exits_vary;
        let parts = [
            (Part::Account, account, endpoint, known),
            (Part::Endpoint, endpoint, account, known),
            (Part::Exit, exit, account && endpoint, true),
        ];
        for (part, here, others_alike, known) in parts {
            if !incident.who.has(part) || !known {
                continue;
            }
            let there = !here;
            let tally = &mut self.tallies[part as usize];
            let counter = match (there, served) {
                (true, true) => &mut tally.served_elsewhere,
                (true, false) => &mut tally.refused_elsewhere,
                (false, false) => &mut tally.refused_here,
                (false, true) => &mut 0,
            };
            *counter = counter.saturating_add(1);
            if !after {
                incident.tables[part as usize][usize::from(others_alike)].count(there, served);
            } else if there
                && others_alike
                && incident.on == Some(part)
                && incident.is_first(who.0[part as usize])
            {
                tally.first_answer(served, &mut incident.agreed);
            }
        }
        self.judge(now);
    }

    fn begin(&mut self, who: Who, sent: Timestamp, on: Option<Part>, until: Timestamp, now: Timestamp) {
        self.settle();
        for part in Part::ALL.into_iter().filter(|part| who.has(*part)) {
            let tally = &mut self.tallies[part as usize];
            tally.refused_here = tally.refused_here.saturating_add(1);
            let alike = self.recent.alike(part, &who, self.exits_vary);
            tally.score += self.firsts[part as usize].bet(who.0[part as usize], alike);
        }
        self.recent = Recent::default();
        self.judge(now);
        let tables = [[Table::default(); 2]; PARTS];
        self.incident =
            Some(Incident { who, sent, closed: now, until, on, tables, tried: [0; TRIED], agreed: 0 });
    }

    /// The incident is over: what it showed is added up.
    fn settle(&mut self) {
        for part in Part::ALL {
            self.tallies[part as usize].score = self.score(part);
        }
        self.incident = None;
    }

    fn score(&self, part: Part) -> f32 {
        let tally = &self.tallies[part as usize];
        let tables = self.incident.iter().flat_map(|incident| &incident.tables[part as usize]);
        let gain = tables.map(Table::log_odds).sum::<f32>().clamp(-GAIN_MAX, GAIN_MAX);
        (tally.score + gain).clamp(-SCORE_MAX, tally.narrow_at(part) + SPARE)
    }

    fn judge(&mut self, now: Timestamp) {
        for part in Part::ALL {
            let score = self.score(part);
            let tally = &mut self.tallies[part as usize];
            let (narrow_at, was) = (tally.narrow_at(part), tally.narrow);
            if score >= narrow_at && !was {
                (tally.narrow, tally.since) = (true, now);
            } else if was && score < narrow_at - DOUBT {
                // It is everyone's, or was. The next finding must be better than this one was.
                (tally.narrow, tally.since, tally.score) = (false, now, 0.0);
                tally.widened = tally.widened.saturating_add(1);
                if let Some(incident) = &mut self.incident {
                    incident.tables[part as usize] = [Table::default(); 2];
                }
            }
        }
    }
}

impl Default for Recent {
    fn default() -> Recent {
        Recent { who: [Who::default(); RECENT], seen: 0 }
    }
}

impl Recent {
    fn add(&mut self, who: Who) {
        self.who[self.seen % RECENT] = who;
        self.seen += 1;
    }

    /// The values of a part that those had who were like `who` in all else.
    fn alike(&self, part: Part, who: &Who, exits_vary: bool) -> impl Iterator<Item = u32> + Clone {
        let is_alike = move |other: &&Who| {
            Part::ALL.into_iter().all(|other_part| {
                let same = other.0[other_part as usize] == who.0[other_part as usize];
                // The exit is drawn for each request, so among many no two are alike in it.
                same || other_part == part || (other_part == Part::Exit && exits_vary)
            })
        };
        self.who[..self.seen.min(RECENT)].iter().filter(is_alike).map(move |other| other.0[part as usize])
    }
}

impl Firsts {
    /// The first refusal met `value`, and since the last incident others that were like it in all else, of these values, were
    /// served. How much that speaks for the part, as a logarithm of odds.
    fn bet(&mut self, value: u32, alike: impl Iterator<Item = u32> + Clone) -> f32 {
        let count = alike.clone().count() as f32 + 1.0;
        let share = |of: u32| {
            let others = alike.clone().filter(|other| *other == of).count() as f32;
            (others + if of == value { 1.0 } else { 0.0 }) / count
        };
        if count < 2.0 || share(value) == 1.0 {
            return 0.0; // it refused a probe, or nobody else was there
        }
        // If labels can be exchanged each of these requests was refused first with the same odds, so what is staked is spread
        // by what each value's were before, and comes to one in all.
        let staked: f32 = alike.clone().chain([value]).map(|of| self.odds(of)).sum::<f32>() / count;
        let gain = (HEDGE + (1.0 - HEDGE) * self.odds(value) / staked).ln();
        let mut elsewhere = 1.0;
        for first in self.values.iter_mut().filter(|first| first.met > 0.0) {
            first.expected += share(first.value);
            elsewhere -= share(first.value);
        }
        self.others.expected += elsewhere;
        self.of(value, share(value)).met += 1.0;
        gain
    }

    /// How much more often than by chance a value was met, so far.
    fn odds(&self, value: u32) -> f32 {
        let known = self.values.iter().find(|first| first.value == value && first.met > 0.0);
        let First { met, expected, .. } = known.unwrap_or(&self.others);
        (met + PRIOR) / (expected + PRIOR)
    }

    /// The place of a value, which it takes from the one that was met least if it has none.
    fn of(&mut self, value: u32, expected: f32) -> &mut First {
        let known = self.values.iter().position(|first| first.value == value && first.met > 0.0);
        let place = known.unwrap_or_else(|| {
            let met = |place: &usize| self.values[*place].met;
            let place = (0..TRIED).min_by(|a, b| met(a).total_cmp(&met(b))).unwrap_or(0);
            let First { met, expected: by_chance, .. } = self.values[place];
            self.others.met += met;
            self.others.expected += by_chance - expected;
            self.values[place] = First { value, met: 0.0, expected };
            place
        });
        &mut self.values[place]
    }
}

impl Incident {
    /// Whether it is the first answer of this value since the incident began.
    fn is_first(&mut self, value: u32) -> bool {
        let place = self.tried.iter_mut().find(|tried| **tried == 0 || **tried == value);
        place.is_some_and(|tried| std::mem::replace(tried, value) == 0)
    }
}

impl Tally {
    fn narrow_at(&self, part: Part) -> f32 {
        // A finding that names the exit lets items go elsewhere (S5), so it takes more.
        let exit = if part == Part::Exit { SPARE } else { 0.0 };
        NARROW + exit + f32::from(self.widened.min(4)) * SPARE
    }

    /// The first answer of another value while one is shut.
    fn first_answer(&mut self, served: bool, agreed: &mut u8) {
        if !served {
            self.score -= CONTRADICTED;
        } else if *agreed < TRIED as u8 {
            *agreed += 1;
            self.score += CONFIRMED;
        }
    }
}

impl Table {
    fn count(&mut self, there: bool, served: bool) {
        let cell = match (there, served) {
            (false, true) => &mut self.served_here,
            (false, false) => &mut self.refused_here,
            (true, true) => &mut self.served_there,
            (true, false) => &mut self.refused_there,
        };
        *cell = (*cell + 1).min(CELL_MAX);
    }

    /// How much more likely it is that a refusal has so much more to do with the part (`ODDS`) than nothing, given how many
    /// were refused in all. Fisher's exact test as a ratio: what share is refused does not matter.
    fn log_odds(&self) -> f32 {
        let [a, b, c, d] =
            [self.refused_here, self.served_here, self.refused_there, self.served_there].map(f64::from);
        let (here, there, refused) = (a + b, c + d, a + c);
        let mut k = (refused - there).max(0.0);
        let (mut term, mut tilt, mut plain, mut tilted, mut seen) = (1.0f64, 1.0f64, 0.0, 0.0, 1.0);
        while k <= here.min(refused) {
            plain += term;
            tilted += term * tilt;
            if k == a {
                seen = tilt;
            }
            term *= (here - k) * (refused - k) / ((k + 1.0) * (there - refused + k + 1.0));
            tilt *= ODDS;
            k += 1.0;
        }
        (seen * plain / tilted).ln() as f32
    }
}

/// FNV-1a, folded; never zero.
fn hash(text: &str) -> u32 {
    let hash = text
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    ((hash >> 32) as u32 ^ hash as u32).max(1)
}

/// Account, endpoint, exit.
pub const PARTS: usize = 3;
/// What a finding takes, as odds to 1, the first time. By Ville's inequality a limit that is everyone's is taken for another's in
/// one origin of so many at most, however long it is watched, for each part.
pub const NARROW_ODDS: f32 = 80.0;
/// The logarithm of that.
const NARROW: f32 = 4.38;
/// What a finding may gain beyond that, so that it does not take long to give it up; and by how much more the next one
/// needs.
const SPARE: f32 = 1.5;
/// A finding that has lost so much is given up: by two that were refused elsewhere, not by an answer or two of the incident that
/// it comes from, when a window began anew meanwhile.
const DOUBT: f32 = 2.5;
const SCORE_MAX: f32 = 16.0;
/// One incident alone proves little: requests that leave in turn can meet a server's own rhythm.
const GAIN_MAX: f32 = 4.0;
/// By how much likelier a refusal is with the value whose limit it is, as odds.
const ODDS: f64 = 20.0;
/// The first answer elsewhere: nine in ten are served where the limit is not theirs, and half where it is.
const CONFIRMED: f32 = 0.6;
const CONTRADICTED: f32 = 3.0;
/// Other values whose first answers count, in one incident.
const TRIED: usize = 4;
const CELL_MAX: u16 = 200;
/// So many of those that were served last are whom the first refusal of an incident is compared with.
const RECENT: usize = 48;
/// First refusals count as if so many incidents had been as by chance, and a bet leaves out this share of the stake.
const PRIOR: f32 = 0.3;
const HEDGE: f32 = 0.1;

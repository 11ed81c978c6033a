//! What a fleet of members has promised, by the true time, which none of them knows.

use std::{collections::VecDeque, time::Duration};

use super::plan::Plan;

/// The start of every run, and times since.
type At = Duration;

/// Watches one fleet.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Longer than the news of a pause may take, on a store that is well.
    news: Duration,
    told: Vec<Told>,
    probes: Vec<Probe>,
    /// The last moment at which the store was not well for all.
    rough_until: At,
    on_wire: Vec<u32>,
    cap: u32,
    rate: Option<(usize, Duration)>,
    starts: VecDeque<At>,
    pub(crate) probes_sent: u32,
    /// Each start, by which member; and each refusal.
    pub(crate) log: Vec<(At, usize)>,
    pub(crate) refusals: Vec<At>,
    pub(crate) probes_at: Vec<At>,
    pub(crate) took_over: Vec<(usize, Duration)>,
    pub(crate) broken: Vec<String>,
}

#[derive(Clone, Copy, Debug)]
struct Told {
    by: usize,
    heard: At,
    until: At,
}

#[derive(Clone, Copy, Debug)]
struct Probe {
    member: usize,
    sent: At,
    renewed: At,
    killed: bool,
}

/// A probe's lease.
pub(crate) const LEASE: Duration = Duration::from_secs(15);

impl Watch {
    pub(crate) fn new(plan: &Plan) -> Watch {
        let rate = plan.rate.map(|list| list.iter().next().map(|rate| (rate.count() as usize, rate.per())));
        Watch {
            // There with the report, which may find others before it three times, and on to the members; each way may take
            // twice the delay. And the grain of the timers.
            news: plan.delay * 16 + Duration::from_millis(10),
            told: Vec::new(),
            probes: Vec::new(),
            rough_until: Duration::ZERO,
            on_wire: vec![0; plan.members.len()],
            cap: plan.cap,
            rate: rate.flatten(),
            starts: VecDeque::new(),
            probes_sent: 0,
            log: Vec::new(),
            refusals: Vec::new(),
            probes_at: Vec::new(),
            took_over: Vec::new(),
            broken: Vec::new(),
        }
    }

    /// The store is, or was just now, not well: until a moment after this, members may not have the same news.
    pub(crate) fn rough(&mut self, until: At) {
        self.rough_until = self.rough_until.max(until + CALM);
    }

    fn fails(&mut self, now: At, what: String) {
        if self.broken.len() < 5 {
            self.broken.push(format!("after {now:?}: {what}"));
        }
    }

    pub(crate) fn sends(&mut self, member: usize, probe: bool, now: At) {
        let told = self.told.iter().find(|told| {
            // What it was told itself it knows, whatever becomes of the store, once its report has had its time.
            let own = told.by == member;
            now < told.until && now > told.heard + self.news && (own || told.heard > self.rough_until)
        });
        if let Some(told) = told.copied() {
            let early = told.until - now;
            self.fails(now, format!("P1: member {member} sent {early:?} too early: {told:?}"));
        }
        if probe {
            let other = self.probes.iter().find(|other| {
                let leased = now + self.news < other.renewed + LEASE;
                (!other.killed || leased) && other.sent > self.rough_until
            });
            if let Some(other) = other.copied() {
                self.fails(now, format!("B1: member {member} probes beside {other:?}"));
            }
            self.probes.retain(|other| !other.killed);
            self.probes.push(Probe { member, sent: now, renewed: now, killed: false });
            self.probes_sent += 1;
            self.probes_at.push(now);
        }
        self.log.push((now, member));
        self.on_wire[member] += 1;
        let all: u32 = self.on_wire.iter().sum();
        if all > self.cap && now > self.rough_until {
            let cap = self.cap;
            self.fails(now, format!("C2: {all} on the wire, where {cap} may be"));
        }
        if let Some((most, window)) = self.rate {
            while self.starts.front().is_some_and(|at| now - *at >= window) {
                self.starts.pop_front();
            }
            self.starts.push_back(now);
            // One more than it may where a process is late for a slot; the price is told in the code map.
            if self.starts.len() > most + 1 && now > self.rough_until {
                let count = self.starts.len();
                self.fails(now, format!("C1: {count} starts in {window:?}, where {most} may be"));
            }
        }
    }

    pub(crate) fn renewed(&mut self, member: usize, now: At) {
        self.probes.iter_mut().filter(|probe| probe.member == member).for_each(|probe| probe.renewed = now);
    }

    /// The answer is there, and about to be reported.
    pub(crate) fn answered(&mut self, member: usize, probe: bool, told: Option<Duration>, now: At) {
        self.on_wire[member] -= 1;
        if probe {
            self.probes.retain(|probe| probe.member != member || probe.killed);
        }
        if let Some(told) = told {
            self.told.retain(|told| now < told.until);
            self.told.push(Told { by: member, heard: now, until: now + told });
        }
    }

    /// Nothing more is heard of this member.
    pub(crate) fn killed(&mut self, member: usize, now: At) {
        self.on_wire[member] = 0;
        self.probes.iter_mut().filter(|probe| probe.member == member).for_each(|probe| probe.killed = true);
        // What it was told a moment ago it may have told nobody.
        self.told.retain(|told| told.by != member || now > told.heard + self.news);
        self.told.iter_mut().filter(|told| told.by == member).for_each(|told| told.by = usize::MAX);
    }
}

/// After trouble: reconnecting takes up to a second and a half, the store's patience one, and what was on the wire comes back.
const CALM: Duration = Duration::from_secs(4);

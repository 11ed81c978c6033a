//! The simulation itself: events in virtual time, from one seed.

use std::{cmp::Reverse, collections::BinaryHeap, time::Duration};

use forbear_core::time::Timestamp;
use forbear_zoo::{Facts, Origin, Ruling, SplitMix64, Verdict};

use crate::{
    client::{Client, Go, Reply},
    report::Report,
    scenario::{Scenario, Work},
    trace::{Recorder, Trace},
    watch::{Violation, Watch},
};

/// The Unix time at which every run begins.
pub(crate) const EPOCH: Timestamp = Timestamp::from_secs(1_700_000_000);

/// What happens at a moment. Ends of the way are events; what a client does follows from them at once.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
enum Event {
    /// A request reaches the origin.
    Arrives(u32),
    /// The origin is done with it.
    Departs(u32),
    /// Its answer reaches the client.
    Answered(u32),
    /// A worker with a clock of its own wakes.
    Wakes(u32),
    /// Somebody else sends a request.
    Other,
    /// Another page is there to be fetched.
    Page,
    /// The client's process dies.
    Crash,
}

/// A request on the wire.
struct Flight<T> {
    worker: u32,
    ticket: T,
    sent: Timestamp,
    node: u32,
    ruling: Option<Ruling>,
    reply: Option<Reply>,
    /// The process that sent it is dead.
    orphan: bool,
}

struct World<'a, C: Client> {
    scenario: &'a Scenario,
    client: &'a mut C,
    nodes: Vec<Origin>,
    chance: SplitMix64,
    now: Timestamp,
    events: BinaryHeap<Reverse<(Timestamp, u64, Event)>>,
    numbered: u64,
    flights: Vec<Option<Flight<C::Ticket>>>,
    free: Vec<u32>,
    on_wire: u32,
    /// Workers with nothing on the wire, of a fleet that waits in one line.
    idle: Vec<u32>,
    /// When the one line asks again.
    line_at: Timestamp,
    /// Pages that wait to be sent.
    pending: u32,
    pages_in: u32,
    report: Report,
    watch: Watch,
    recorder: Recorder<'a>,
}

/// Runs `scenario` with `client` between its fleet and its origin.
///
/// # Errors
/// The client broke a promise of its contract, or did not get on.
pub fn run<C: Client>(scenario: &Scenario, client: &mut C) -> Result<Report, Violation> {
    play(scenario, client, Recorder::new(None)).kept()
}

/// The same, and keeps in `trace` what it looked like over time, also of a run that ends with a broken promise.
///
/// # Errors
/// As [`run`].
pub fn run_traced<C: Client>(
    scenario: &Scenario,
    client: &mut C,
    trace: &mut Trace,
) -> Result<Report, Violation> {
    play(scenario, client, Recorder::new(Some(trace))).kept()
}

/// A run, whatever came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Played {
    /// Its numbers, up to where it went.
    pub report: Report,
    /// The promise that the client broke, if it did.
    pub broken: Option<Violation>,
}

impl Played {
    fn kept(self) -> Result<Report, Violation> {
        match self.broken {
            Some(broken) => Err(broken),
            None => Ok(self.report),
        }
    }
}

/// As [`run_traced`], for a reader who wants the numbers in any case. That the run was over before the work was breaks no
/// promise here.
pub fn observe<C: Client>(scenario: &Scenario, client: &mut C, trace: Option<&mut Trace>) -> Played {
    let mut played = play(scenario, client, Recorder::new(trace));
    played.broken = played.broken.filter(|broken| !broken.is_about_progress());
    played
}

fn play<C: Client>(scenario: &Scenario, client: &mut C, recorder: Recorder<'_>) -> Played {
    let mut world = World::new(scenario, client, recorder);
    world.start();
    let gone = world.go();
    // A run that goes on to its end may be silent there: its gate is shut.
    let early = gone.is_err() || world.is_done();
    let took = if early { world.now.since(EPOCH) } else { scenario.run_for };
    world.recorder.end(took, scenario);
    world.end(gone.err())
}

impl<'a, C: Client> World<'a, C> {
    fn new(scenario: &'a Scenario, client: &'a mut C, recorder: Recorder<'a>) -> World<'a, C> {
        let epoch = EPOCH.since(Timestamp::ZERO);
        World {
            nodes: (0..scenario.nodes.max(1)).map(|_| scenario.spec.build(epoch)).collect(),
            chance: SplitMix64::new(scenario.seed),
            now: EPOCH,
            events: BinaryHeap::new(),
            numbered: 0,
            flights: Vec::new(),
            free: Vec::new(),
            on_wire: 0,
            idle: Vec::new(),
            line_at: Timestamp::MAX,
            pending: 0,
            pages_in: 0,
            report: Report::new(scenario.run_for),
            watch: Watch::new(C::FORBEARS, EPOCH),
            recorder,
            scenario,
            client,
        }
    }

    fn at(&mut self, at: Timestamp, event: Event) {
        self.numbered += 1;
        self.events.push(Reverse((at, self.numbered, event)));
    }

    fn start(&mut self) {
        if let Work::Pages(pages) = self.scenario.work {
            (self.pending, self.pages_in) = (pages, pages);
        }
        if let Work::Stream(_) = self.scenario.work {
            self.at(EPOCH, Event::Page);
        }
        if self.scenario.others > 0.0 {
            self.at(EPOCH, Event::Other);
        }
        for crash in &self.scenario.crashes {
            self.at(EPOCH.plus(*crash), Event::Crash);
        }
        if C::SHARED {
            self.idle = (0..self.scenario.workers).rev().collect();
            self.line_at = EPOCH;
        } else {
            (0..self.scenario.workers).for_each(|worker| self.at(EPOCH, Event::Wakes(worker)));
        }
    }

    fn go(&mut self) -> Result<(), Violation> {
        let end = EPOCH.plus(self.scenario.run_for);
        loop {
            let next = self.events.peek().map_or(Timestamp::MAX, |Reverse((at, ..))| *at);
            let at = next.min(self.line_at);
            if at > end || self.is_done() {
                return Ok(());
            }
            self.now = at;
            if self.line_at <= next {
                self.line()?;
            } else if let Some(Reverse((_, _, event))) = self.events.pop() {
                self.happens(event)?;
            }
            let since = self.now.since(EPOCH);
            self.recorder.looks(since, self.client.phase(self.now), || self.client.pace());
        }
    }

    fn is_done(&self) -> bool {
        matches!(self.scenario.work, Work::Pages(pages) if self.report.done >= u64::from(pages))
    }

    /// Every worker of the one line that may send does.
    fn line(&mut self) -> Result<(), Violation> {
        self.line_at = Timestamp::MAX;
        while let Some(worker) = self.idle.last().copied() {
            if !self.has_work() {
                break;
            }
            match self.client.ask(worker, self.now) {
                Go::Send(ticket) => {
                    self.idle.pop();
                    self.send(worker, ticket)?;
                }
                Go::At(at) => {
                    self.line_at = at.max(self.now.plus(Duration::from_micros(1)));
                    break;
                }
                Go::Full => break,
            }
        }
        Ok(())
    }

    fn has_work(&self) -> bool {
        self.scenario.work == Work::Endless || self.pending > 0
    }

    fn send(&mut self, worker: u32, ticket: C::Ticket) -> Result<(), Violation> {
        self.watch.sends(self.now)?;
        self.report.sent(self.now.since(EPOCH));
        self.recorder.sent(self.now.since(EPOCH));
        self.pending = self.pending.saturating_sub(1);
        self.on_wire += 1;
        let node = if self.nodes.len() > 1 { self.chance.next_u64() as usize % self.nodes.len() } else { 0 };
        let flight = Flight {
            worker,
            ticket,
            sent: self.now,
            node: node as u32,
            ruling: None,
            reply: None,
            orphan: false,
        };
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                self.flights.push(None);
                self.flights.len() as u32 - 1
            }
        };
        self.flights[id as usize] = Some(flight);
        self.at(self.now.plus(self.scenario.latency.round_trip / 2), Event::Arrives(id));
        Ok(())
    }

    fn happens(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Arrives(id) => self.arrives(id),
            Event::Departs(id) => self.departs(id),
            Event::Answered(id) => return self.answered(id),
            Event::Wakes(worker) => return self.wakes(worker),
            Event::Other => {
                let since = self.now.since(EPOCH);
                let node = self.chance.next_u64() as usize % self.nodes.len();
                // Nobody waits for it, so nothing is held.
                let _ = self.nodes[node].rule(since, &Facts::get("/"));
                let gap = -(1.0 - self.chance.next_f64()).ln() / self.scenario.others;
                self.at(self.now.plus(Duration::from_secs_f64(gap)), Event::Other);
            }
            Event::Page => {
                self.pending += 1;
                self.pages_in += 1;
                if let Work::Stream(rate) = self.scenario.work {
                    self.at(self.now.plus(Duration::from_secs_f64(1.0 / rate)), Event::Page);
                }
                return if C::SHARED { self.line() } else { Ok(()) };
            }
            Event::Crash => self.crash(),
        }
        Ok(())
    }

    fn arrives(&mut self, id: u32) {
        let since = self.now.since(EPOCH);
        let Some(flight) = self.flights[id as usize].as_mut() else { return };
        let origin = &mut self.nodes[flight.node as usize];
        let ruling = origin.rule(since, &Facts::get("/"));
        let refused = ruling.verdict == Verdict::Refused;
        let served = ruling.verdict == Verdict::Served;
        self.report.arrived(since, served, refused);
        let sent = flight.sent.since(EPOCH);
        self.report.judged(sent, since, refused, ruling.status, self.on_wire.saturating_sub(1));
        self.recorder.arrived(since, served, refused);
        // What breaks on the way has no status of its own.
        let broken = !served && !refused && ruling.status < 400;
        let status = if broken { 502 } else { ruling.status };
        let mut reply = Reply { status, refused, told: None, headers: Vec::new() };
        if refused {
            let answer = origin.words(since, &ruling);
            reply.told = answer.told;
            reply.headers = answer.headers;
        }
        let mut left = self.now;
        if !refused {
            left = left.plus(self.scenario.latency.sample(&mut self.chance) + ruling.latency);
        }
        flight.reply = Some(reply);
        if self.scenario.spec.counts_what_is_on_the_wire() && !refused {
            flight.ruling = Some(ruling);
            self.at(left, Event::Departs(id));
        } else {
            self.at(left.plus(self.scenario.latency.round_trip / 2), Event::Answered(id));
        }
    }

    fn departs(&mut self, id: u32) {
        let Some(flight) = self.flights[id as usize].as_mut() else { return };
        if let Some(ruling) = flight.ruling.take() {
            self.nodes[flight.node as usize].left(self.now.since(EPOCH), &ruling);
        }
        self.at(self.now.plus(self.scenario.latency.round_trip / 2), Event::Answered(id));
    }

    fn answered(&mut self, id: u32) -> Result<(), Violation> {
        let Some(flight) = self.flights[id as usize].take() else { return Ok(()) };
        self.free.push(id);
        if flight.orphan {
            return Ok(()); // nobody is left to hear it
        }
        self.on_wire -= 1;
        let Some(reply) = flight.reply else { return Ok(()) };
        let roll = self.chance.next_f64();
        let again = self.client.answered(flight.worker, flight.ticket, &reply, self.now, roll);
        self.watch.answered(flight.sent, &reply, self.now);
        self.report.answered(self.now.since(EPOCH), reply.refused, reply.status);
        if reply.refused {
            self.pending += 1;
            self.report.heard(self.now.since(EPOCH), self.on_wire);
        }
        if C::SHARED {
            self.idle.push(flight.worker);
            self.line()
        } else {
            self.at(again.max(self.now), Event::Wakes(flight.worker));
            Ok(())
        }
    }

    fn wakes(&mut self, worker: u32) -> Result<(), Violation> {
        if !self.has_work() {
            if let Work::Stream(_) = self.scenario.work {
                self.at(self.now.plus(IDLE), Event::Wakes(worker));
            }
            return Ok(()); // of a job its part is done; no page comes back for a worker that never had one
        }
        match self.client.ask(worker, self.now) {
            Go::Send(ticket) => self.send(worker, ticket)?,
            Go::At(at) => self.at(at.max(self.now.plus(Duration::from_micros(1))), Event::Wakes(worker)),
            Go::Full => self.at(self.now.plus(FULL), Event::Wakes(worker)),
        }
        Ok(())
    }

    fn crash(&mut self) {
        for flight in self.flights.iter_mut().flatten().filter(|flight| !flight.orphan) {
            flight.orphan = true;
            self.on_wire -= 1;
            self.pending += 1;
            self.idle.push(flight.worker);
        }
        self.watch.crashed();
        self.client.crash(self.now);
        self.line_at = self.now;
    }

    fn end(mut self, broken: Option<Violation>) -> Played {
        let took = self.now.since(EPOCH);
        let broken = broken.or_else(|| self.check(took).err());
        self.report.end(self.scenario, took, self.client.pace());
        (self.report.paused, self.report.on_wire) = (self.recorder.shut, self.on_wire);
        Played { report: self.report, broken }
    }

    fn check(&self, took: Duration) -> Result<(), Violation> {
        if let Work::Pages(_) | Work::Stream(_) = self.scenario.work {
            // J5: every page is done, waits, or is on the wire.
            let accounted = self.report.done + u64::from(self.pending) + u64::from(self.on_wire);
            self.watch.nothing_lost(u64::from(self.pages_in), accounted, self.now)?;
        }
        self.watch.ends(&self.scenario.work, self.is_done(), self.report.last_served, took)
    }
}

/// A worker that goes by its own clock looks again so often for a place on the wire.
const FULL: Duration = Duration::from_millis(5);
/// And so often for another page.
const IDLE: Duration = Duration::from_millis(100);

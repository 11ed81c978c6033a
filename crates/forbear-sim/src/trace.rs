//! What a run looked like over time, in bins whose number is bounded: what pictures are drawn from.

use std::time::Duration;

use crate::scenario::Scenario;

/// What the gate of a scope is doing (the words of the contract, section 2).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Phase {
    /// Requests start as fast as rates and places on the wire allow.
    Open,
    /// Requests start one by one, at a pace that grows.
    Ramping,
    /// One request tests whether the pause is over.
    Probing,
    /// Nothing starts.
    Paused,
    /// Nothing starts for long, after many refusals in a row.
    Tripped,
}

impl Phase {
    /// All of them, the freest first.
    pub const ALL: [Phase; 5] = [Phase::Open, Phase::Ramping, Phase::Probing, Phase::Paused, Phase::Tripped];

    /// Its word.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Open => "open",
            Phase::Ramping => "ramping",
            Phase::Probing => "probing",
            Phase::Paused => "paused",
            Phase::Tripped => "tripped",
        }
    }

    /// The phase with this word.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Phase> {
        Phase::ALL.into_iter().find(|phase| phase.as_str() == name)
    }

    /// Whether the scope is closed in it: a probe is all that may start.
    #[must_use]
    pub fn is_shut(self) -> bool {
        !matches!(self, Phase::Open | Phase::Ramping)
    }
}

/// What happened in one bin of time.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Bin {
    /// Requests that started.
    pub sent: u32,
    /// Requests that reached the limiter and were let through.
    pub served: u32,
    /// Requests that a limit turned away.
    pub refused: u32,
    /// Requests that were neither.
    pub faults: u32,
    /// The most that started within a tenth of a second.
    pub peak: u32,
    /// Starts a second that the client held to be allowed, as it last thought.
    pub pace: Option<f64>,
    /// What the limiter lets through in this time, without a burst that it starts with; none where nobody knows.
    pub allowed: Option<f64>,
    /// Seconds in each phase, in the order of [`Phase::ALL`]; all zero for a client without a gate.
    pub phases: [f64; 5],
}

impl Bin {
    /// Two bins that follow each other, as one.
    fn and(self, next: Bin) -> Bin {
        let mut phases = self.phases;
        phases.iter_mut().zip(next.phases).for_each(|(sum, more)| *sum += more);
        Bin {
            sent: self.sent + next.sent,
            served: self.served + next.served,
            refused: self.refused + next.refused,
            faults: self.faults + next.faults,
            peak: self.peak.max(next.peak),
            pace: next.pace.or(self.pace),
            allowed: self.allowed.zip(next.allowed).map(|(a, b)| a + b),
            phases,
        }
    }

    /// The phase that took most of it.
    #[must_use]
    pub fn phase(&self) -> Option<Phase> {
        let (at, most) = self.phases.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1))?;
        (*most > 0.0).then_some(Phase::ALL[at])
    }
}

/// A run over time. At most [`Trace::BINS_MAX`] bins: as the run goes on they grow, from 10 ms, always by two.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    width: Duration,
    bins: Vec<Bin>,
    took: Duration,
    tenth: (u64, u32),
    phase: Option<(Phase, Duration)>,
}

impl Trace {
    /// More bins than a picture has room for, so that it may cut out a part.
    pub const BINS_MAX: usize = 2048;

    /// Of a run that has not begun.
    #[must_use]
    pub fn new() -> Trace {
        Trace {
            width: Duration::from_millis(10),
            bins: Vec::new(),
            took: Duration::ZERO,
            tenth: (0, 0),
            phase: None,
        }
    }

    /// How long each bin is.
    #[must_use]
    pub fn width(&self) -> Duration {
        self.width
    }

    /// The bins, from the start of the run.
    #[must_use]
    pub fn bins(&self) -> &[Bin] {
        &self.bins
    }

    /// How long the run took.
    #[must_use]
    pub fn took(&self) -> Duration {
        self.took
    }

    /// The first `span` of it, in at most `count` bins, and how long each of these is.
    #[must_use]
    pub fn coarse(&self, span: Duration, count: usize) -> (Duration, Vec<Bin>) {
        let within = (span.as_nanos().div_ceil(self.width.as_nanos()) as usize).min(self.bins.len());
        let wanted = span.as_nanos().div_ceil(self.width.as_nanos()) as usize;
        let each = wanted.div_ceil(count.max(1)).max(1);
        let joined =
            self.bins[..within].chunks(each).filter_map(|bins| bins.iter().copied().reduce(Bin::and));
        (self.width * each as u32, joined.collect())
    }

    /// The bin of a moment.
    fn at(&mut self, since: Duration) -> &mut Bin {
        let mut index = self.index(since);
        while index >= Trace::BINS_MAX {
            self.bins = self.bins.chunks(2).filter_map(|two| two.iter().copied().reduce(Bin::and)).collect();
            self.width *= 2;
            index = self.index(since);
        }
        if index >= self.bins.len() {
            self.bins.resize(index + 1, Bin::default());
        }
        &mut self.bins[index]
    }

    fn index(&self, since: Duration) -> usize {
        (since.as_nanos() / self.width.as_nanos()) as usize
    }

    /// A request starts.
    pub fn sent(&mut self, since: Duration) {
        let tenth = since.as_millis() as u64 / 100;
        self.tenth = if tenth == self.tenth.0 { (tenth, self.tenth.1 + 1) } else { (tenth, 1) };
        let most = self.tenth.1;
        let bin = self.at(since);
        bin.sent += 1;
        bin.peak = bin.peak.max(most);
    }

    /// A request reaches the limiter.
    pub fn arrived(&mut self, since: Duration, served: bool, refused: bool) {
        let bin = self.at(since);
        match (served, refused) {
            (_, true) => bin.refused += 1,
            (true, _) => bin.served += 1,
            _ => bin.faults += 1,
        }
    }

    /// What the client holds to be allowed.
    pub fn paces(&mut self, since: Duration, pace: Option<f64>) {
        if let Some(pace) = pace {
            self.at(since).pace = Some(pace);
        }
    }

    /// From here on the gate is in this phase.
    pub fn enters(&mut self, since: Duration, phase: Option<Phase>) {
        if let Some((before, from)) = self.phase.take() {
            self.spend(before, from, since);
        }
        self.phase = phase.map(|phase| (phase, since));
    }

    fn spend(&mut self, phase: Phase, mut from: Duration, to: Duration) {
        // Once for all, so that no bin grows while we walk.
        let _ = self.at(to);
        while from < to {
            let edge = self.width * (self.index(from) as u32 + 1);
            let until = edge.min(to);
            self.at(from).phases[phase as usize] += (until - from).as_secs_f64();
            from = until;
        }
    }

    /// The run is over, after `took`. Where `scenario` is known, so is what its limiter allowed.
    pub fn end(&mut self, took: Duration, scenario: Option<&Scenario>) {
        self.enters(took, None);
        let _ = self.at(took);
        self.took = took;
        let width = self.width;
        let Some(truth) = scenario.map(|scenario| &scenario.truth).filter(|truth| truth.rate.is_finite())
        else {
            return;
        };
        for (index, bin) in self.bins.iter_mut().enumerate() {
            let from = width * index as u32;
            bin.allowed = Some(truth.allowed(from, from + width));
        }
    }
}

impl Default for Trace {
    fn default() -> Trace {
        Trace::new()
    }
}

/// Follows the gate of a run, and fills a trace where one is wanted.
#[derive(Debug)]
pub(crate) struct Recorder<'t> {
    phase: Option<Phase>,
    since: Duration,
    /// Time in which nothing but a probe could start.
    pub(crate) shut: Option<Duration>,
    trace: Option<&'t mut Trace>,
}

impl<'t> Recorder<'t> {
    pub(crate) fn new(trace: Option<&'t mut Trace>) -> Recorder<'t> {
        Recorder { phase: None, since: Duration::ZERO, shut: None, trace }
    }

    pub(crate) fn sent(&mut self, since: Duration) {
        if let Some(trace) = self.trace.as_deref_mut() {
            trace.sent(since);
        }
    }

    pub(crate) fn arrived(&mut self, since: Duration, served: bool, refused: bool) {
        if let Some(trace) = self.trace.as_deref_mut() {
            trace.arrived(since, served, refused);
        }
    }

    /// After an event: what the client's gate is doing, and what it thinks.
    pub(crate) fn looks(
        &mut self,
        since: Duration,
        phase: Option<Phase>,
        pace: impl FnOnce() -> Option<f64>,
    ) {
        if phase != self.phase {
            let shut = self.phase.is_some_and(Phase::is_shut).then(|| since - self.since);
            if phase.is_some() || shut.is_some() {
                *self.shut.get_or_insert_default() += shut.unwrap_or_default();
            }
            (self.phase, self.since) = (phase, since);
            if let Some(trace) = self.trace.as_deref_mut() {
                trace.enters(since, phase);
            }
        }
        if let Some(trace) = self.trace.as_deref_mut() {
            trace.paces(since, pace());
        }
    }

    pub(crate) fn end(&mut self, took: Duration, scenario: &Scenario) {
        self.looks(took, None, || None);
        if let Some(trace) = self.trace.as_deref_mut() {
            trace.end(took, Some(scenario));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn c4_bins_are_bounded_and_keep_every_count() {
        let mut trace = Trace::new();
        for second in 0..100_000u32 {
            trace.sent(Duration::from_secs(u64::from(second)));
            trace.arrived(Duration::from_secs(u64::from(second)), second % 3 > 0, second % 3 == 0);
        }
        trace.end(Duration::from_secs(100_000), None);
        assert!(trace.bins().len() <= Trace::BINS_MAX, "{}", trace.bins().len());
        assert!(trace.width() * Trace::BINS_MAX as u32 / 2 <= Duration::from_secs(100_000));
        let all = trace.bins().iter().copied().reduce(Bin::and).unwrap();
        assert_eq!((all.sent, all.served, all.refused, all.faults), (100_000, 66_666, 33_334, 0));
        let (width, coarse) = trace.coarse(Duration::from_secs(50_000), 100);
        assert!(coarse.len() <= 100 && width * coarse.len() as u32 >= Duration::from_secs(50_000));
        let half: u32 = coarse.iter().map(|bin| bin.sent).sum();
        assert!((50_000..51_500).contains(&half), "{half}");
    }

    #[test]
    fn the_time_in_each_phase_is_that_of_the_run() {
        let mut trace = Trace::new();
        for (at, phase) in [(0, Phase::Open), (15, Phase::Paused), (42, Phase::Probing), (60, Phase::Ramping)]
        {
            trace.enters(at * MS, Some(phase));
        }
        trace.end(100 * MS, None);
        let all = trace.bins().iter().copied().reduce(Bin::and).unwrap();
        let wanted = [0.015, 0.040, 0.018, 0.027, 0.0];
        assert!(all.phases.iter().zip(wanted).all(|(is, wanted)| (is - wanted).abs() < 1e-9), "{all:?}");
        assert_eq!(trace.bins()[0].phase(), Some(Phase::Open));
        assert_eq!(trace.bins()[2].phase(), Some(Phase::Paused));
        assert_eq!(trace.bins()[9].phase(), Some(Phase::Ramping));
    }

    #[test]
    fn a_recorder_knows_how_long_the_gate_was_shut() {
        let mut recorder = Recorder::new(None);
        for (at, phase) in [
            (0, None),
            (5, Some(Phase::Open)),
            (10, Some(Phase::Paused)),
            (40, Some(Phase::Probing)),
            (45, Some(Phase::Open)),
        ] {
            recorder.looks(at * MS, phase, || None);
        }
        assert_eq!(recorder.shut, Some(35 * MS));
        let mut none = Recorder::new(None);
        none.looks(5 * MS, None, || None);
        assert_eq!(none.shut, None, "a client without a gate is never paused");
    }

    #[test]
    fn every_phase_has_a_word() {
        assert!(Phase::ALL.iter().enumerate().all(|(at, phase)| *phase as usize == at));
        assert!(Phase::ALL.iter().all(|phase| Phase::by_name(phase.as_str()) == Some(*phase)));
    }
}

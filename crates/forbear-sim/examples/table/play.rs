//! The runs.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use forbear_core::{gate::Gate, learn::Belief, policy::ScopePolicy};
use forbear_sim::{
    Gated, Report, Scenario, Violation,
    habits::{Aimd, Alone, Cubic, Oracle, Retry},
    run,
    sets::{self, Kind},
};

pub(crate) const CLIENTS: [&str; 6] = ["gate", "every-2s", "jitter", "aimd", "cubic", "oracle"];

/// Where instances come from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Set {
    A,
    Held,
    /// A further draw, by its number.
    Further(u32),
    Wide,
}

impl Set {
    pub(crate) fn kinds(self) -> &'static [Kind] {
        if self == Set::Wide { &sets::WIDE_KINDS } else { &Kind::ALL }
    }

    /// Those that can tell a wait, if it is `told`.
    pub(crate) fn kinds_of(self, told: bool) -> Vec<Kind> {
        self.kinds().iter().copied().filter(|kind| !told || kind.tells()).collect()
    }

    /// All of it, played.
    pub(crate) fn rows(self, client: &str, told: bool) -> Vec<Row> {
        play(client, self, &self.kinds_of(told), told, None)
    }

    fn each(self) -> u32 {
        if self == Set::Wide { sets::WIDE_EACH } else { sets::EACH }
    }

    fn words(self) -> String {
        match self {
            Set::A => String::new(),
            Set::Held => "held ".to_owned(),
            Set::Further(draw) => format!("further {draw} "),
            Set::Wide => "wide ".to_owned(),
        }
    }

    fn scenario(self, kind: Kind, index: u32, told: bool) -> Scenario {
        match self {
            Set::A => sets::set_a(kind, index, told),
            Set::Held => sets::held_out(kind, index, told),
            Set::Further(draw) => sets::further(draw, kind, index, told),
            Set::Wide => sets::set_b(kind, index, told),
        }
    }
}

/// One run, and what the learner said in the end.
pub(crate) struct Row {
    pub(crate) kind: Kind,
    pub(crate) index: u32,
    pub(crate) scenario: Scenario,
    pub(crate) result: Result<Report, Violation>,
    pub(crate) belief: Option<Belief>,
}

/// Plays every instance.
pub(crate) fn play(client: &str, set: Set, kinds: &[Kind], told: bool, only: Option<u32>) -> Vec<Row> {
    let cases: Vec<(Kind, u32)> = kinds
        .iter()
        .flat_map(|kind| (0..set.each()).map(|index| (*kind, index)))
        .filter(|(_, index)| only.is_none_or(|only| only == *index))
        .collect();
    let mut rows = spread(&cases, |(kind, index)| {
        let scenario = set.scenario(*kind, *index, told);
        let (result, belief) = one(client, &scenario);
        if let Err(violation) = &result {
            eprintln!("{kind} {index}: {violation}");
            let hint = if told { "told" } else { "silent" };
            eprintln!("  replay: table -- {}{hint} {client} {kind} {index}", set.words());
        }
        Row { kind: *kind, index: *index, scenario, result, belief }
    });
    rows.sort_by_key(|row| (row.kind as u32, row.index));
    rows
}

/// On as many threads as the machine has.
pub(crate) fn spread<T: Sync, R: Send>(cases: &[T], play: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                loop {
                    let at = next.fetch_add(1, Ordering::Relaxed);
                    let Some(case) = cases.get(at) else { break };
                    let result = play(case);
                    done.lock().unwrap_or_else(|broken| broken.into_inner()).push((at, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|broken| broken.into_inner());
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Plays one; the fleet of a habit is as large as people run it.
pub(crate) fn one(client: &str, scenario: &Scenario) -> (Result<Report, Violation>, Option<Belief>) {
    let mut scenario = scenario.clone();
    let result = match client {
        "gate" => {
            let mut gated = Gated::new(ScopePolicy::default(), scenario.workers);
            let result = run(&scenario, &mut gated);
            return (result, gated.gates().first().and_then(Gate::belief));
        }
        "every-2s" => {
            scenario.workers = scenario.workers.min(50);
            run(&scenario, &mut Alone::new(Retry::Every(Duration::from_secs(2)), scenario.workers))
        }
        "jitter" => {
            scenario.workers = scenario.workers.min(50);
            let retry = Retry::FullJitter { base: Duration::from_secs(1), cap: Duration::from_secs(60) };
            run(&scenario, &mut Alone::new(retry, scenario.workers))
        }
        "aimd" => {
            scenario.workers = scenario.workers.min(100);
            run(&scenario, &mut Aimd::new())
        }
        "cubic" => {
            scenario.workers = scenario.workers.min(100);
            run(&scenario, &mut Cubic::new())
        }
        _ => run(&scenario, &mut Oracle::new(scenario.truth.clone())),
    };
    (result, None)
}

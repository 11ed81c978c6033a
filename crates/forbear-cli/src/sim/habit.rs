//! What others do, by name, to compare a policy with.

use std::{fmt, str::FromStr, time::Duration};

use forbear_sim::{
    Played, Scenario, Trace,
    habits::{Aimd, Alone, Cubic, Oracle, Retry},
    observe,
};

/// A client that is no policy.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Habit {
    /// Each worker tries again after two seconds.
    EveryTwoSeconds,
    /// Each worker for itself: the told time, then full jitter from one to sixty seconds.
    Jitter,
    /// One start rate for all: more each second, 0.7 of it after a refusal.
    Aimd,
    /// The adaptive mode of the AWS SDKs.
    Cubic,
    /// Knows the limit.
    Oracle,
}

const NAMES: [(&str, Habit); 5] = [
    ("every-2s", Habit::EveryTwoSeconds),
    ("jitter", Habit::Jitter),
    ("aimd", Habit::Aimd),
    ("cubic", Habit::Cubic),
    ("oracle", Habit::Oracle),
];

impl FromStr for Habit {
    type Err = String;

    fn from_str(text: &str) -> Result<Habit, String> {
        let names = || NAMES.map(|(name, _)| name).join(", ");
        let found = NAMES.iter().find(|(name, _)| *name == text);
        found
            .map(|(_, habit)| *habit)
            .ok_or_else(|| format!("there is no habit `{text}`; there are {}", names()))
    }
}

impl fmt::Display for Habit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(_, habit)| habit == self).map_or("", |(name, _)| name))
    }
}

impl Habit {
    /// Plays the scenario with it.
    pub(super) fn play(self, scenario: &Scenario, trace: Option<&mut Trace>) -> Played {
        let second = Duration::from_secs(1);
        match self {
            Habit::EveryTwoSeconds => {
                observe(scenario, &mut Alone::new(Retry::Every(2 * second), scenario.workers), trace)
            }
            Habit::Jitter => {
                let retry = Retry::FullJitter { base: second, cap: 60 * second };
                observe(scenario, &mut Alone::new(retry, scenario.workers), trace)
            }
            Habit::Aimd => observe(scenario, &mut Aimd::new(), trace),
            Habit::Cubic => observe(scenario, &mut Cubic::new(), trace),
            Habit::Oracle => observe(scenario, &mut Oracle::new(scenario.truth.clone()), trace),
        }
    }
}

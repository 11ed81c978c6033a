//! Exits against a simple model: whatever is asked, told and undone, in whatever order, some things are always so.
//!
//! The model knows only who is out, who holds what, and until when a pair was put off. It does not know which exit is the
//! better one: that is for the unit tests.

use std::{
    collections::{BTreeMap, HashSet},
    time::Duration,
};

use forbear_core::{
    exit::{Ask, Choice, ExitId, ExitPolicy, Exits, Pick, Rotate, Sticky, Traits, Usable},
    hint::Kind,
    outcome::{ExitFault, Outcome, Refusal},
    time::Timestamp,
};
use proptest::prelude::*;

const ORIGINS: [&str; 3] = ["https://a:443", "http://b:80", "http://c:80"];

#[derive(Clone, Debug)]
enum Step {
    Choose { origin: usize, keep: Option<u32>, not: Option<u32>, account: Option<u64> },
    Judge { which: usize, outcome: usize, roll: f64 },
    PutOff { which: usize, ms: u64 },
    Full { which: usize },
    TurnDown { which: usize },
    Undo { which: usize },
    Recall { which: usize, everywhere: bool },
    Pass { ms: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let which = 0..64usize;
    prop_oneof![
        8 => (0..ORIGINS.len(), option(12), option(12), option(3)).prop_map(|(origin, keep, not, account)| {
            Step::Choose { origin, keep, not, account: account.map(u64::from) }
        }),
        6 => (which.clone(), 0..OUTCOMES, 0.0..1.0).prop_map(|(which, outcome, roll)| Step::Judge { which, outcome, roll }),
        2 => (which.clone(), 1..20_000u64).prop_map(|(which, ms)| Step::PutOff { which, ms }),
        2 => which.clone().prop_map(|which| Step::Full { which }),
        1 => which.clone().prop_map(|which| Step::TurnDown { which }),
        1 => which.clone().prop_map(|which| Step::Undo { which }),
        1 => (which, any::<bool>()).prop_map(|(which, everywhere)| Step::Recall { which, everywhere }),
        2 => (1..5_000u64).prop_map(|ms| Step::Pass { ms }),
    ]
}

fn option(below: u32) -> impl Strategy<Value = Option<u32>> {
    prop_oneof![3 => Just(None), 1 => (0..below).prop_map(Some)]
}

/// Of the outcomes below, the last one puts an exit out, and is drawn as seldom as the others.
const OUTCOMES: usize = 12;

fn outcome(n: usize) -> Outcome {
    let exit = |fault: ExitFault| Outcome::Exit { fault, processed: fault.processed() };
    match n {
        0..=2 => Outcome::Success,
        3 => Outcome::Refused(Refusal {
            wait: None,
            from: None,
            named: None,
            kind: Kind::RateLimit,
            may_retry: true,
        }),
        4 => Outcome::Blocked { challenge: true },
        5 => Outcome::Overloaded,
        6 => Outcome::NO_ANSWER,
        7 => Outcome::NotTaken,
        8 => exit(ExitFault::Broken),
        9 => exit(ExitFault::NoWay),
        10 => exit(ExitFault::Silent),
        _ => exit(ExitFault::Rejected),
    }
}

/// What a run of steps holds against the machine.
struct Model {
    exits: Exits,
    policy: ExitPolicy,
    count: u32,
    now: Timestamp,
    /// Each with the number of recalls before it.
    held: Vec<(Pick, u64)>,
    recalls: u64,
    out: HashSet<ExitId>,
    /// Until when a pair was put off; a recall or the time ends it.
    off: BTreeMap<(ExitId, String), Timestamp>,
    /// Pairs that were full since they were chosen last.
    full: HashSet<(ExitId, String)>,
    /// Who has had each session.
    sessions: BTreeMap<u64, (ExitId, String)>,
    /// Sessions of pairs that were left: nobody gets one of these again.
    ended: HashSet<u64>,
    /// The session that each pair was chosen with last.
    latest: BTreeMap<(ExitId, String), u64>,
    /// Exits with a smaller number are gateways.
    gateways: u32,
    /// Origins that were told to ask again when a request comes back, and have not been called since.
    waiting: HashSet<String>,
}

impl Model {
    fn new(policy: ExitPolicy, count: u32, gateways: u32, seed: u64) -> Model {
        let traits = (0..count).map(|n| Traits { gateway: n < gateways, ..Traits::default() });
        Model {
            exits: Exits::new(policy.clone(), traits, seed),
            policy,
            count,
            now: Timestamp::from_secs(1_795_957_200),
            held: Vec::new(),
            recalls: 0,
            out: HashSet::new(),
            off: BTreeMap::new(),
            full: HashSet::new(),
            sessions: BTreeMap::new(),
            ended: HashSet::new(),
            latest: BTreeMap::new(),
            gateways,
            waiting: HashSet::new(),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Choose { origin, keep, not, account } => {
                let id = |n: u32| ExitId(n % self.count);
                let ask = Ask { keep: keep.map(id), not: not.map(id), account };
                self.choose(ORIGINS[origin], ask);
            }
            Step::Judge { which, outcome: n, roll } => {
                let Some((pick, _)) = self.take(which) else { return };
                self.judge(&pick, &outcome(n), roll);
            }
            Step::PutOff { which, ms } => {
                let Some((pick, recalls)) = self.take(which) else { return };
                let until = self.now.plus(Duration::from_millis(ms));
                let freed = self.exits.put_off(&pick, until);
                self.called(&freed);
                // Of a gateway one address must wait, and this one may have been left since.
                let left = match self.policy.sticky {
                    Sticky::Off => self.latest.get(&pair(&pick)) != Some(&pick.session),
                    Sticky::Session | Sticky::Account => self.ended.contains(&pick.session),
                };
                let left = left && pick.exit.0 < self.gateways;
                // What was recalled since is asked again; what is full stays where it is.
                if recalls == self.recalls && !left && !self.full.contains(&pair(&pick)) {
                    let off = self.off.entry(pair(&pick)).or_insert(until);
                    *off = until.max(*off);
                }
            }
            Step::Full { which } => {
                let Some((pick, _)) = self.take(which) else { return };
                let freed = self.exits.full(&pick);
                self.called(&freed);
                self.full.insert(pair(&pick));
            }
            Step::TurnDown { which } => {
                let Some((pick, _)) = self.take(which) else { return };
                let freed = self.exits.turn_down(&pick);
                self.called(&freed);
            }
            Step::Undo { which } => {
                let Some((pick, _)) = self.take(which) else { return };
                let freed = self.exits.undo(&pick);
                self.called(&freed);
            }
            Step::Recall { which, everywhere } => {
                let Some((pick, _)) = self.held.get(which % self.held.len().max(1)) else { return };
                self.recalls += 1;
                if everywhere {
                    self.exits.recall_everywhere(pick.exit);
                    self.off.retain(|(exit, _), _| *exit != pick.exit);
                } else {
                    self.exits.recall(pick);
                    self.off.remove(&pair(pick));
                }
            }
            Step::Pass { ms } => self.now = self.now.plus(Duration::from_millis(ms)),
        }
    }

    fn choose(&mut self, origin: &str, ask: Ask) {
        let now = self.now;
        self.off.retain(|_, until| *until > now);
        match self.exits.choose(origin, ask, now) {
            Choice::Use(pick) => {
                assert!(!self.out.contains(&pick.exit), "an exit that is out was chosen");
                let pair = pair(&pick);
                self.full.remove(&pair);
                assert!(!self.off.contains_key(&pair), "a pair that was put off was chosen");
                assert_eq!(pick.origin(), origin);
                assert!(!self.ended.contains(&pick.session), "a session came back");
                self.latest.insert(pair.clone(), pick.session);
                let owner = self.sessions.entry(pick.session).or_insert_with(|| pair.clone());
                assert_eq!(*owner, pair, "two pairs have one session");
                if self.policy.sticky == Sticky::Off {
                    self.ended.insert(pick.session);
                }
                self.held.push((pick, self.recalls));
            }
            Choice::Wait { until } => assert!(until >= now, "a wait that is over"),
            Choice::Busy { .. } => {
                assert!(!self.held.is_empty(), "told to wait for a request, and none is out");
                self.waiting.insert(origin.to_owned());
            }
            Choice::None => assert_eq!(self.out.len(), self.count as usize, "none, and some are not out"),
        }
    }

    fn judge(&mut self, pick: &Pick, outcome: &Outcome, roll: f64) {
        let by_exit = matches!(outcome, Outcome::Exit { .. });
        let judged = self.exits.judge(pick, outcome, 10, self.now, roll);
        self.called(&judged.freed);
        if matches!(outcome, Outcome::Exit { fault: ExitFault::Rejected, .. }) {
            self.out.insert(pick.exit);
        }
        if judged.outcome != *outcome {
            self.off.retain(|(_, origin), _| origin != pick.origin()); // believed: the origin's, and no pair is to blame
        }
        if judged.left {
            self.ended.insert(pick.session);
        }
        assert!(by_exit || judged.outcome == *outcome, "what the origin did stays the origin's");
    }

    fn called(&mut self, freed: &[std::sync::Arc<str>]) {
        for origin in freed {
            self.waiting.remove(&**origin);
        }
    }

    fn take(&mut self, which: usize) -> Option<(Pick, u64)> {
        (!self.held.is_empty()).then(|| self.held.swap_remove(which % self.held.len()))
    }

    /// What must be so after each step.
    fn check(&self) {
        assert!(
            self.held.len() >= usize::from(!self.waiting.is_empty()),
            "{:?} wait for nobody",
            self.waiting
        );
        let (usable, all) = (self.exits.usable_count(), self.count as usize);
        assert!(usable + self.out.len() <= all);
        match self.exits.usable() {
            Usable::Yes => assert!(usable > 0 || self.out.len() < all),
            Usable::Failing { since, next } => {
                assert!(usable == 0 && self.out.len() < all);
                assert!(since <= self.now && next != Timestamp::MAX);
            }
            Usable::Out => assert_eq!(self.out.len(), all),
        }
        for n in 0..self.count {
            assert_eq!(self.exits.state(ExitId(n)) == "out", self.out.contains(&ExitId(n)));
        }
    }

    /// All that is held comes back, and time passes: then each exit that is not out can be had at each origin.
    fn end(mut self) {
        while let Some((pick, _)) = self.take(0) {
            self.judge(&pick, &Outcome::Success, 0.5);
            self.check();
        }
        assert!(self.waiting.is_empty(), "{:?} were never called", self.waiting);
        self.now = self.now.plus(Duration::from_secs(1_000));
        for origin in ORIGINS {
            let mut seen = HashSet::new();
            for _ in 0..200 {
                let before = self.held.len();
                self.choose(origin, Ask::default());
                if self.held.len() == before {
                    break; // all are held
                }
                let (pick, _) = self.held.pop().unwrap_or_else(|| unreachable!("it was just put there"));
                seen.insert(pick.exit);
                self.judge(&pick, &Outcome::Success, 0.5);
            }
            assert_eq!(seen.len() + self.out.len(), self.count as usize, "an exit was lost at {origin}");
        }
        let total: u64 = (0..self.count).map(|n| self.exits.tally(ExitId(n)).requests).sum();
        let done: u64 = (0..self.count).map(|n| self.exits.tally(ExitId(n)).done).sum();
        assert!(done <= total);
    }
}

fn pair(pick: &Pick) -> (ExitId, String) {
    (pick.exit, pick.origin().to_owned())
}

fn policy() -> impl Strategy<Value = ExitPolicy> {
    let rotate = prop_oneof![Just(Rotate::Retries), Just(Rotate::Never)];
    let sticky = prop_oneof![Just(Sticky::Off), Just(Sticky::Session), Just(Sticky::Account)];
    (rotate, sticky).prop_map(|(rotate, sticky)| ExitPolicy { rotate, sticky, ..ExitPolicy::default() })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    /// E1, E2, E4, E5: no exit is lost or held for ever, nobody waits for nothing, and sessions never come back.
    #[test]
    fn e2_exits_stand_the_model(
        policy in policy(),
        count in 1..12u32,
        gateways in 0..3u32,
        seed in any::<u64>(),
        steps in prop::collection::vec(step(), 0..300),
    ) {
        let mut model = Model::new(policy, count, gateways, seed);
        for step in &steps {
            model.step(step);
            model.check();
        }
        model.end();
    }
}

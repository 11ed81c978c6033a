//! The policies `proxy-queue` and `exit-state`, and what exits are for, in virtual time: the machines of the engine against
//! origins and exits that are functions. What needs a wire is shown again on real ones in the command's tests.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use forbear_core::{
    attempt::{self, Ask, Decision, Finding, Grant},
    backoff::{Backoff, Jitter},
    exit::{self, Choice, ExitId, ExitPolicy, Exits, Pick, Traits},
    gate::{Cause, Gate},
    hint::Kind,
    multiplier::RetryMultiplier,
    outcome::{ExitFault, Outcome, Processed, Refusal},
    pace::Rates,
    policy::{BoundScope, ItemPolicy, ScopePolicy},
    scope::{Combination, Parts, Role, ScopePlan},
    time::Timestamp,
    verdict::{History, Verdict, verdict},
};

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// A seeded source of chance; the seed of a failing test stands in its name.
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[derive(Clone, Debug)]
struct Item {
    site: usize,
    failures: u32,
    refusals: u32,
    tries: u32,
    blocked: u32,
    not: Option<ExitId>,
}

/// A request on the wire.
struct Flight {
    item: Item,
    pick: Pick,
    grant: Grant,
    scopes: Vec<BoundScope>,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug)]
struct Sent {
    at: Timestamp,
    exit: ExitId,
    site: usize,
    outcome: Outcome,
}

type World<'a> = dyn FnMut(Timestamp, ExitId, usize, usize) -> (Outcome, Duration) + 'a;

/// A fleet in virtual time. `answer` is told the time, the exit, the site and how many are on the wire.
struct Fleet {
    exits: Exits,
    plan: Vec<Combination>,
    scope: Arc<ScopePolicy>,
    /// For what the plan counts at the origin.
    rates: Rates,
    item: ItemPolicy,
    workers: usize,
    steered: bool,
    dice: Dice,
    multiplier: RetryMultiplier,
    shares: Vec<(Timestamp, f64)>,
    gates: HashMap<String, Gate>,
    log: Vec<Sent>,
    done: usize,
    failed: usize,
    parked: usize,
}

impl Fleet {
    fn new(exits: usize, policy: ExitPolicy, plan: &[&str], scope: ScopePolicy, item: ItemPolicy) -> Fleet {
        Fleet {
            exits: Exits::new(policy, vec![Traits::default(); exits], 1),
            plan: plan.iter().map(|word| word.parse().unwrap()).collect(),
            rates: scope.rates,
            scope: Arc::new(ScopePolicy { rates: Rates::default(), ..scope }),
            item,
            workers: 16,
            steered: true,
            dice: Dice(0x9e37_79b9_7f4a_7c15),
            multiplier: RetryMultiplier::default(),
            shares: Vec::new(),
            gates: HashMap::new(),
            log: Vec::new(),
            done: 0,
            failed: 0,
            parked: 0,
        }
    }

    fn scopes(&self, site: usize, exit: ExitId) -> Vec<BoundScope> {
        let (origin, name) = (format!("http://site{site}:80"), format!("http://exit{}:1", exit.0));
        let parts = Parts { origin: &origin, exit: Some(&name), ..Parts::default() };
        let scopes = ScopePlan::new(self.plan.clone()).scopes(&parts);
        let own = scopes.iter().position(|scope| scope.role == Role::Planned);
        let bound = scopes.into_iter().enumerate().map(|(i, scope)| {
            let mut policy = (*self.scope).clone();
            if Some(i) == own {
                policy.rates = self.rates;
            } else {
                policy.concurrency_start = policy.concurrency_max;
                policy.pace_start = f32::INFINITY;
            }
            policy.learn &= scope.role != Role::Exit;
            BoundScope { key: scope.key, by: scope.by, role: scope.role, policy: Arc::new(policy) }
        });
        bound.collect()
    }

    /// Runs `update` on the gates of the scopes together.
    fn with<R>(&mut self, scopes: &[BoundScope], update: impl FnOnce(&mut [Gate]) -> R) -> R {
        let taken = |gates: &mut HashMap<String, Gate>, scope: &BoundScope| {
            gates.remove(scope.key.as_str()).unwrap_or_else(|| Gate::new(&scope.policy))
        };
        let mut gates: Vec<Gate> = scopes.iter().map(|scope| taken(&mut self.gates, scope)).collect();
        let result = update(&mut gates);
        self.gates.extend(scopes.iter().map(|scope| scope.key.to_string()).zip(gates));
        result
    }

    /// Sends everything, at most for `limit`; `items` are sites. Gives the time that it took.
    fn run(&mut self, items: Vec<usize>, limit: Duration, answer: &mut World<'_>) -> Duration {
        let start = Timestamp::from_secs(1_795_957_200);
        let sites = items.iter().max().map_or(0, |most| most + 1);
        let mut now = start;
        let mut lanes: Vec<VecDeque<Item>> = vec![VecDeque::new(); sites];
        let mut untils = vec![Timestamp::ZERO; sites];
        let mut open = items.len();
        for site in items {
            lanes[site].push_back(Item { site, failures: 0, refusals: 0, tries: 0, blocked: 0, not: None });
        }
        let mut held: BinaryHeap<Reverse<(Timestamp, u64)>> = BinaryHeap::new();
        let mut kept: HashMap<u64, Item> = HashMap::new();
        let mut wire: BinaryHeap<Reverse<(Timestamp, u64)>> = BinaryHeap::new();
        let mut flights: HashMap<u64, Flight> = HashMap::new();
        let mut serial = 0;
        while open > 0 && now.since(start) < limit {
            while let Some(Reverse((_, id))) = held.peek().copied().filter(|Reverse((at, _))| *at <= now) {
                held.pop();
                let item = kept.remove(&id).unwrap();
                lanes[item.site].push_front(item);
            }
            let mut started = true;
            while started {
                started = false;
                for site in 0..sites {
                    let share = if self.steered { self.multiplier.share() } else { 1.0 };
                    let most = ((self.workers as f64 * share) as usize).max(1);
                    if flights.len() >= most || untils[site] > now || lanes[site].is_empty() {
                        continue;
                    }
                    match self.start(&lanes[site][0], now) {
                        Ok((pick, grant, scopes)) => {
                            let mut item = lanes[site].pop_front().unwrap();
                            item.tries += 1;
                            let (outcome, latency) = answer(now, pick.exit, site, flights.len() + 1);
                            self.log.push(Sent { at: now, exit: pick.exit, site, outcome });
                            serial += 1;
                            wire.push(Reverse((now.plus(latency), serial)));
                            flights.insert(serial, Flight { item, pick, grant, scopes, outcome });
                            started = true;
                        }
                        Err(until) => untils[site] = until,
                    }
                }
            }
            let next = wire
                .peek()
                .map(|Reverse((at, _))| *at)
                .into_iter()
                .chain(held.peek().map(|Reverse((at, _))| *at))
                .chain((0..sites).filter(|site| !lanes[*site].is_empty()).map(|site| untils[site]))
                .filter(|at| *at > now)
                .min();
            let Some(next) = next.filter(|at| *at != Timestamp::MAX) else { break };
            now = next;
            while let Some(Reverse((_, id))) = wire.peek().copied().filter(|Reverse((at, _))| *at <= now) {
                wire.pop();
                let flight = flights.remove(&id).unwrap();
                let site = flight.item.site;
                let ended_before = self.done + self.failed + self.parked;
                if let Some((item, after)) = self.end(flight, now) {
                    serial += 1;
                    held.push(Reverse((now.plus(after), serial)));
                    kept.insert(serial, item);
                }
                open -= self.done + self.failed + self.parked - ended_before;
                untils[site] = Timestamp::ZERO; // its gates may have changed
                // And whoever waits for an exit may find it free.
                untils.iter_mut().filter(|at| **at == Timestamp::MAX).for_each(|at| *at = Timestamp::ZERO);
            }
        }
        now.since(start)
    }

    fn start(&mut self, item: &Item, now: Timestamp) -> Result<(Pick, Grant, Vec<BoundScope>), Timestamp> {
        let origin = format!("http://site{}:80", item.site);
        loop {
            let ask = exit::Ask { not: item.not, ..exit::Ask::default() };
            let pick = match self.exits.choose(&origin, ask, now) {
                Choice::Use(pick) => pick,
                Choice::Wait { until } => return Err(until),
                Choice::Busy { .. } | Choice::None => return Err(Timestamp::MAX),
            };
            let scopes = self.scopes(item.site, pick.exit);
            let first = Ask { cost: 1, first: item.tries == 0 };
            match self.with(&scopes, |gates| attempt::acquire(gates, &scopes, first, now)) {
                Decision::Admit(grant) => return Ok((pick, grant, scopes)),
                Decision::Wait { until, scope, cause } if scopes[scope].by.is_some_and(|by| by.exit) => {
                    // The probe of another comes back before its lease ends; then this is asked again.
                    let until = if cause == Cause::Probing { now.plus(50 * MS) } else { until };
                    let _ = self.exits.put_off(&pick, until);
                }
                Decision::Full { scope } if scopes[scope].by.is_some_and(|by| by.exit) => {
                    let _ = self.exits.full(&pick);
                }
                Decision::Wait { until, .. } => {
                    let _ = self.exits.undo(&pick);
                    return Err(until);
                }
                Decision::Full { .. } => {
                    let _ = self.exits.undo(&pick);
                    return Err(Timestamp::MAX);
                }
            }
        }
    }

    /// What becomes of the item: the wait before it is asked for again.
    fn end(&mut self, flight: Flight, now: Timestamp) -> Option<(Item, Duration)> {
        let Flight { mut item, pick, grant, scopes, outcome, .. } = flight;
        let roll = self.dice.roll();
        let judged = self.exits.judge(&pick, &outcome, 1000, now, roll);
        let finding = Finding {
            outcome: &judged.outcome,
            reading: None,
            item: 1,
            roll,
            exit: Some(judged.through),
            narrowed: None,
        };
        let (news, until) = self.with(&scopes, |gates| {
            let news = attempt::report(gates, &scopes, &grant, &finding, now);
            (news, gates[news.scope].pause_at(now).map(|(until, _)| until))
        });
        let way = self.exits.settle(&pick, &judged, &news, &scopes, until, item.blocked).way;
        self.multiplier.sent(now);
        let history = History {
            failures: item.failures,
            refusals: item.refusals,
            tries: item.tries - 1,
            idempotent: true,
            account_stopped: false,
            way,
        };
        item.refusals += u32::from(matches!(judged.outcome, Outcome::Refused(_)));
        item.blocked += u32::from(matches!(judged.outcome, Outcome::Blocked { .. }));
        item.not = Some(pick.exit);
        let after = match verdict(&judged.outcome, &history, &self.item, news.retry_granted, roll) {
            Verdict::Done => {
                self.done += 1;
                None
            }
            Verdict::Retry { after } => {
                item.failures += 1;
                Some(after)
            }
            Verdict::Elsewhere { after } => Some(after),
            Verdict::Hold { told } => Some(told),
            Verdict::Park { wait, .. } => Some(wait), // within the run
            Verdict::ParkForNextRun | Verdict::ParkForCredentials => {
                self.parked += 1;
                None
            }
            Verdict::Fail(_) | Verdict::Unknown => {
                self.failed += 1;
                None
            }
        };
        if after.is_none() {
            self.multiplier.ended();
        }
        self.shares.push((now, self.multiplier.value().unwrap_or(1.0)));
        after.map(|after| (item, after))
    }

    /// The share of one exit, at one site or all, of the requests after the first `skip`.
    fn share_of(&self, exit: u32, site: Option<usize>, skip: usize) -> f64 {
        let at_site = |sent: &&Sent| site.is_none_or(|site| sent.site == site);
        let all: Vec<&Sent> = self.log.iter().skip(skip).filter(at_site).collect();
        let mine = all.iter().filter(|sent| sent.exit == ExitId(exit)).count();
        mine as f64 / all.len().max(1) as f64
    }

    fn refused(&self) -> f64 {
        let refused = self.log.iter().filter(|sent| matches!(sent.outcome, Outcome::Refused(_))).count();
        refused as f64 / self.log.len().max(1) as f64
    }
}

fn refusal(wait: Option<Duration>) -> Outcome {
    Outcome::Refused(Refusal { wait, from: None, named: None, kind: Kind::RateLimit, may_retry: true })
}

fn proxy_queue() -> (ExitPolicy, ScopePolicy, ItemPolicy) {
    let backoff = Backoff::new(S, 60 * S, Jitter::Decorrelated).unwrap();
    let scope = ScopePolicy { backoff, ..ScopePolicy::default() };
    (ExitPolicy::default(), scope, ItemPolicy { backoff, ..ItemPolicy::default() })
}

fn exit_state() -> (ExitPolicy, ScopePolicy, ItemPolicy) {
    let backoff = Backoff::new(S, 60 * S, Jitter::Half).unwrap();
    let scope = ScopePolicy { backoff, ..ScopePolicy::default() };
    let item = ItemPolicy { backoff, blocked_retries: 4, exit_wait: 500 * MS, ..ItemPolicy::default() };
    (ExitPolicy::default(), scope, item)
}

/// A limiter that counts starts in a sliding window, one count for each key.
struct Window(HashMap<u32, VecDeque<Timestamp>>, usize, Duration);

impl Window {
    fn new(limit: usize, window: Duration) -> Window {
        Window(HashMap::new(), limit, window)
    }

    fn allows(&mut self, key: u32, now: Timestamp) -> bool {
        let log = self.0.entry(key).or_default();
        while log.front().is_some_and(|at| now.since(*at) >= self.2) {
            log.pop_front();
        }
        let allowed = log.len() < self.1;
        if allowed {
            log.push_back(now);
        }
        allowed
    }
}

#[test]
fn e1_proxy_queue_of_ten_exits_the_bad_ones_get_next_to_nothing() {
    let (policy, scope, item) = proxy_queue();
    let mut fleet = Fleet::new(10, policy, &["origin+exit"], scope, item);
    let items = (0..3000).map(|n| n % 3).collect();
    fleet.run(items, 3600 * S, &mut |_, exit, site, _| match (exit.0, site) {
        (0, _) => (Outcome::Exit { fault: ExitFault::Broken, processed: Processed::No }, 2 * MS),
        (1, _) => (Outcome::Exit { fault: ExitFault::Rejected, processed: Processed::No }, 2 * MS),
        (2, 1) => (refusal(None), 20 * MS),
        _ => (Outcome::Success, 50 * MS),
    });
    assert_eq!((fleet.done, fleet.failed, fleet.parked), (3000, 0, 0));
    for (exit, site) in [(0, None), (1, None), (2, Some(1))] {
        let share = fleet.share_of(exit, site, 100);
        assert!(share <= 0.02, "exit {exit} at {site:?}: {share}");
    }
    for site in [0, 2] {
        let share = fleet.share_of(2, Some(site), 100);
        assert!(share > 0.08, "the burnt exit works on at site {site}: {share}");
    }
}

#[test]
fn c1_eight_exits_with_five_a_second_each_reach_forty() {
    let (policy, mut scope, item) = proxy_queue();
    scope.rates = "5/s".parse::<forbear_core::pace::RateList>().unwrap().into();
    let mut fleet = Fleet::new(8, policy, &["origin+exit"], scope, item);
    fleet.workers = 64;
    let mut limiter = Window::new(5, S);
    let took = fleet.run(vec![0; 2400], 3600 * S, &mut |now, exit, _, _| {
        if limiter.allows(exit.0, now) { (Outcome::Success, 80 * MS) } else { (refusal(Some(S)), 20 * MS) }
    });
    let pace = 2400.0 / took.as_secs_f64();
    assert_eq!(fleet.done, 2400);
    assert!(pace >= 36.0, "{pace} a second");
    assert!(fleet.refused() <= 0.02, "{}", fleet.refused());
}

#[test]
fn s5_a_limit_for_everyone_is_one_limit_by_however_many_exits() {
    let (policy, mut scope, item) = proxy_queue();
    scope.rates = "5/s".parse::<forbear_core::pace::RateList>().unwrap().into();
    let mut fleet = Fleet::new(8, policy, &["origin"], scope, item);
    let mut limiter = Window::new(5, S);
    let took = fleet.run(vec![0; 600], 3600 * S, &mut |now, _, _, _| {
        if limiter.allows(0, now) { (Outcome::Success, 80 * MS) } else { (refusal(Some(S)), 20 * MS) }
    });
    let pace = 600.0 / took.as_secs_f64();
    assert!((4.5..=5.1).contains(&pace), "{pace} a second");
    assert!(fleet.refused() <= 0.02, "{}", fleet.refused());
}

#[test]
fn s5_with_one_limit_behind_all_exits_rotating_does_not_send_into_the_pause() {
    let (policy, scope, item) = proxy_queue();
    // The plan says that limits are the exits'; this one is not.
    let mut fleet = Fleet::new(8, policy, &["origin+exit"], scope, item);
    let (mut closed_until, mut early, mut served) = (Timestamp::ZERO, 0, 0);
    fleet.run(vec![0; 500], 600 * S, &mut |now, _, _, _| {
        if now < closed_until {
            early += 1;
            return (refusal(Some(closed_until.since(now))), 20 * MS);
        }
        served += 1;
        if served % 100 == 0 {
            closed_until = now.plus(10 * S);
        }
        (Outcome::Success, 80 * MS)
    });
    // Of each of the five pauses: what was on the wire, and the second exit that shows it to be everyone's.
    assert!(early <= 5 * (16 + 2), "{early} requests into pauses");
    let into = fleet.log.iter().filter(|sent| matches!(sent.outcome, Outcome::Refused(_)));
    let late = into.clone().filter(|sent| {
        let first = fleet.log.iter().find(|s| {
            matches!(s.outcome, Outcome::Refused(_)) && s.at < sent.at && sent.at.since(s.at) < 9 * S
        });
        first.is_some_and(|first| sent.at.since(first.at) > 500 * MS && sent.at.since(first.at) < 9 * S)
    });
    assert_eq!(late.count(), 0, "half a second into a pause nobody sends any more");
}

#[test]
fn s5_an_exit_that_is_blocked_or_limits_us_itself_says_nothing_about_the_origins_limit() {
    let limits_us = Outcome::Exit { fault: ExitFault::Limited { wait: None }, processed: Processed::No };
    for outcome in [Outcome::Blocked { challenge: false }, limits_us] {
        let (exits, scope, policy) = proxy_queue();
        let mut fleet = Fleet::new(2, exits, &["origin+exit"], scope, policy);
        let now = Timestamp::from_secs(1_000);
        let item = Item { site: 0, failures: 0, refusals: 0, tries: 1, blocked: 0, not: None };
        let started = [fleet.start(&item, now).unwrap(), fleet.start(&item, now).unwrap()];
        let mut names = Vec::new();
        for ((pick, grant, scopes), outcome) in started.into_iter().zip([outcome, refusal(None)]) {
            names.push(format!("http://site0:80 exit=http://exit{}:1", pick.exit.0));
            fleet.end(Flight { item: item.clone(), pick, grant, scopes, outcome }, now);
        }
        assert!(
            fleet.gates[&names[1]].pause_at(now).is_some(),
            "{outcome:?}: the limit is the second exit's"
        );
        assert!(fleet.gates["http://site0:80"].pause_at(now).is_none(), "{outcome:?}: and not the origin's");
    }
}

#[test]
fn e3_exit_state_a_hot_exit_rests_eighteen_seconds_more_than_a_cold_one() {
    let (policy, scope, _) = exit_state();
    let rest = |refusals: u32, successes: u32| {
        let mut exits = Exits::new(policy.clone(), [Traits::default()], 1);
        let now = Timestamp::from_secs(1_795_957_200);
        let choose = |exits: &mut Exits| match exits.choose("http://a:80", exit::Ask::default(), now) {
            Choice::Use(pick) => pick,
            other => panic!("{other:?}"),
        };
        let mut through = attempt::Through::default();
        for n in 0..=refusals + successes {
            let outcome = match n {
                n if n < successes => Outcome::Success,
                _ => refusal(None),
            };
            let pick = choose(&mut exits);
            through = exits.judge(&pick, &outcome, 0, now, 0.0).through;
        }
        // The pair's gate at its first incident, by the heat of the events before this one.
        let by = Some(Combination::ORIGIN_EXIT);
        let scopes = [BoundScope {
            key: forbear_core::scope::ScopeKey::from_text("pair"),
            by,
            role: Role::Planned,
            policy: Arc::new(scope.clone()),
        }];
        let mut gates = [Gate::new(&scope)];
        let Decision::Admit(grant) = attempt::acquire(&mut gates, &scopes, Ask::default(), now) else {
            panic!()
        };
        let outcome = refusal(None);
        let finding = Finding {
            outcome: &outcome,
            reading: None,
            item: 1,
            roll: 0.0,
            exit: Some(through),
            narrowed: None,
        };
        let _ = attempt::report(&mut gates, &scopes, &grant, &finding, now);
        gates[0].pause_at(now).unwrap().0.since(now)
    };
    let (cold, hot) = (rest(0, 0), rest(6, 4));
    assert_eq!(hot - cold, 18 * S);
    assert!(cold <= 2 * S, "a stray refusal of a cold exit costs little: {cold:?}");
}

#[test]
fn e1_exit_state_a_403_is_never_followed_by_the_same_exit_there_for_five_minutes() {
    let (policy, scope, item) = exit_state();
    let mut fleet = Fleet::new(12, policy, &["origin+exit"], scope, item);
    let mut dice = Dice(42);
    fleet.run((0..4000).map(|n| n % 2).collect(), 7200 * S, &mut |_, _, _, _| {
        let outcome =
            if dice.roll() < 0.02 { Outcome::Blocked { challenge: false } } else { Outcome::Success };
        (outcome, 400 * MS)
    });
    assert_eq!(fleet.done + fleet.failed, 4000);
    let mut blocked = 0;
    let mut left: HashMap<(u32, usize), Timestamp> = HashMap::new();
    for sent in &fleet.log {
        let pair = (sent.exit.0, sent.site);
        // What was on the wire with it had been sent before the answer came.
        if let Some(at) = left.get(&pair).filter(|at| sent.at.since(**at) > 400 * MS) {
            assert!(sent.at.since(*at) >= 300 * S, "{pair:?} again after {:?}", sent.at.since(*at));
        }
        if matches!(sent.outcome, Outcome::Blocked { .. }) {
            left.insert(pair, sent.at);
            blocked += 1;
        }
    }
    assert!(blocked > 20, "{blocked}");
}

#[test]
fn v3_exit_state_the_multiplier_falls_back_after_an_overload() {
    // A provider in front of a hundred sites: a trigger of five minutes makes it fail, and it stays weak until it has
    // had half a minute with no more than forty requests at once. No single site can see that.
    let value_at_the_end = |steered: bool| {
        let (policy, scope, mut item) = exit_state();
        item.max_attempts = 1000;
        let mut fleet = Fleet::new(8, policy, &["origin+exit"], scope, item);
        (fleet.workers, fleet.steered) = (64, steered);
        let (mut dice, mut weak) = (Dice(7), false);
        let start = Timestamp::from_secs(1_795_957_200);
        let mut loaded = start;
        fleet.run((0..400_000).map(|n| n % 100).collect(), 1800 * S, &mut |now, _, _, on_wire| {
            let triggered = (300..600).contains(&now.since(start).as_secs());
            if on_wire > 40 {
                loaded = now;
            }
            weak = triggered || (weak && now.since(loaded) < 30 * S);
            (if weak && dice.roll() < 0.45 { Outcome::Overloaded } else { Outcome::Success }, S)
        });
        let worst = fleet.shares.iter().map(|(_, value)| *value).fold(1.0, f64::max);
        assert!(worst > 1.5, "there was an overload: {worst}");
        fleet.shares.last().unwrap().1
    };
    let (alone, steered) = (value_at_the_end(false), value_at_the_end(true));
    assert!(alone > 1.5, "what each request does for itself keeps it up: {alone}");
    assert!(steered < 1.2, "{steered}");
}

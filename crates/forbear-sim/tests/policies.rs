//! The numbers that each shipped policy must show, where a simulation can show them: the files of `policies/`, as the command
//! reads them, beside what others do. What needs a wire is shown in the command's own tests.

#![allow(clippy::print_stdout, reason = "figures, for whoever asks for them")]

use std::time::Duration;

use forbear::config::{Settings, Sources};
use forbear_core::{exit::ExitPolicy, outcome::Outcome, time::Timestamp};
use forbear_sim::{
    Client, Go, Latency, Reply, Report, Scenario, TrueKind, Truth, Work,
    fleet::{self, Exit, Fleet, Seen, Site, Summary},
    habits::{Alone, Board, Retry},
    run,
};
use forbear_zoo::Tide;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

fn settings(policy: &str) -> Settings {
    let sources = Sources { policy: Some(policy.to_owned()), ..Sources::default() };
    sources.load().unwrap_or_else(|error| panic!("{policy}: {error}")).settings
}

/// A fleet that keeps to a shipped policy.
fn by(policy: &str, sites: Vec<Site>) -> Fleet {
    let settings = settings(policy);
    let host = settings.for_host("site0.test", 443);
    let concurrency = host.concurrency.or(settings.host_concurrency);
    Fleet {
        sites,
        workers: settings.workers.get(),
        timeout: settings.timeout,
        scope: host.scope.clone().unwrap_or_else(|| settings.scope.clone()),
        policy: settings.scope_policy(None, concurrency),
        rates: host.rate,
        item: settings.item_policy(),
        by_exit: ExitPolicy {
            rotate: settings.exits.rotate,
            sticky: settings.exits.sticky,
            min_success: settings.exits.min_success,
            ..ExitPolicy::default()
        },
        ..Fleet::default()
    }
}

fn site(spec: &str, pages: u32, answer: Duration) -> Site {
    let latency = Latency { round_trip: answer / 10, service: answer - answer / 10, spread: 0.0 };
    Site { latency, ..Site::new(spec.parse().unwrap(), pages) }
}

fn play(fleet: &Fleet) -> (Summary, Vec<Seen>) {
    let mut seen = Vec::new();
    let summary = fleet::run_seen(fleet, &mut |request| seen.push(*request));
    seen.sort_by_key(|request| request.sent);
    (summary.unwrap_or_else(|violation| panic!("{violation}")), seen)
}

/// Workers each for themselves, before the same kind of site.
fn before(spec: &str, workers: u32, work: Work, answer: Duration, run_for: Duration) -> Scenario {
    let site = site(spec, 0, answer);
    Scenario {
        spec: site.spec,
        truth: Truth { kind: TrueKind::Bucket, rate: 2.0, number: 2.0, window: None, tide: Tide::default() },
        nodes: 1,
        others: 0.0,
        latency: site.latency,
        workers,
        work,
        run_for,
        crashes: Vec::new(),
        seed: 1,
    }
}

fn is_refused(seen: &Seen) -> bool {
    matches!(seen.outcome, Outcome::Refused(_))
}

/// The most starts within any tenth of a second.
fn fullest(starts: &[Duration]) -> usize {
    let within = |from: Duration| starts.iter().filter(|at| (from..from + 100 * MS).contains(*at)).count();
    starts.iter().map(|at| within(*at)).max().unwrap_or(0)
}

fn share(report: &Report) -> f64 {
    report.whole.refused_share()
}

// ---------------------------------------------------------------- shared-gate

#[test]
fn shared_gate_sends_two_probes_and_nothing_else_into_a_door_that_is_still_closed() {
    // It is shut for 4 s and says 3 s, so the first probe comes too early, by the server's own word.
    let spec = "maintenance:from=2s,for=4s,hint=seconds,lie=0.75";
    let mut fleet = by("shared-gate", vec![site(spec, 8000, 50 * MS)]);
    fleet.workers = 64;
    let (summary, seen) = play(&fleet);
    let heard = seen.iter().filter(|s| is_refused(s)).map(|s| s.back).min().unwrap();
    let opened = seen.iter().find(|s| s.sent > heard && !is_refused(s)).unwrap().sent;
    let between = seen.iter().filter(|s| s.sent > heard && s.sent <= opened).count();
    assert_eq!((summary.done, summary.probes, between), (8000, 2, 2));
}

// ---------------------------------------------------------------- retry-after

/// Allows 2 a second and says 30 s; 60 s to whoever comes early.
const STRICT: &str = "token-bucket:rate=2/s,burst=2,penalty=30s/60s,hint=seconds";

#[test]
fn retry_after_sends_two_requests_and_waits_once_where_doubling_sends_seven_and_sleeps_126_s() {
    // One worker and three pages: two are served at once, and it is the third that is looked at.
    let scenario = before(STRICT, 1, Work::Pages(3), 2 * MS, 600 * S);
    let doubling = run(&scenario, &mut Alone::new(Retry::Doubling { base: 2 * S }, 1)).unwrap();
    assert_eq!(doubling.sent - 2, 7);
    assert!((126.0..126.2).contains(&doubling.took.as_secs_f64()), "{:?}", doubling.took);

    let (summary, seen) = play(&Fleet { workers: 1, ..by("retry-after", vec![site(STRICT, 3, 2 * MS)]) });
    assert_eq!((summary.done, summary.sent - 2), (3, 2));
    let waited = seen.last().unwrap().sent - seen.iter().find(|s| is_refused(s)).unwrap().back;
    assert!(waited >= Duration::from_millis(37_500) && waited < 40 * S, "30 s and a quarter: {waited:?}");
}

#[test]
fn retry_after_sixteen_that_each_retry_every_2_s_are_refused_about_three_quarters() {
    let scenario = before("token-bucket:rate=2/s,burst=4", 16, Work::Endless, 100 * MS, 1200 * S);
    let alone = run(&scenario, &mut Alone::new(Retry::Every(2 * S), 16)).unwrap();
    assert!((0.70..0.82).contains(&share(&alone)), "{}", share(&alone));
    let offered = alone.whole.refused as f64 / 1200.0;
    assert!((7.0..8.5).contains(&offered), "{offered} retries a second");
}

#[test]
fn retry_after_cap_and_board_alone_trip_it_again_and_again_and_a_pace_on_top_does_not() {
    let scenario = before(STRICT, 8, Work::Endless, 300 * MS, 1800 * S);
    let board = run(&scenario, &mut Board::new(8, 2)).unwrap();
    println!("cap and board alone: {:.1} % refused, {} pages", 100.0 * share(&board), board.done);
    assert!(share(&board) > 0.2 && board.done < 600, "{} of 3600 pages, {}", board.done, share(&board));

    for (pace, pages, slower_max) in [(Some("2/s"), 1200, 1.05), (None, 3600, 1.5)] {
        let mut fleet = by("retry-after", vec![site(STRICT, pages, 300 * MS)]);
        fleet.rates = pace.map(|pace| pace.parse().unwrap());
        let (summary, seen) = play(&fleet);
        let refused = seen.iter().filter(|s| is_refused(s)).count() as f64 / seen.len() as f64;
        let slower = summary.took.as_secs_f64() / (f64::from(pages) / 2.0);
        println!("{pace:?}: {:.2} % refused, {slower:.3} of the least time", 100.0 * refused);
        assert_eq!(summary.done, pages);
        assert!(
            refused <= 0.02 && slower <= slower_max,
            "{pace:?}: {refused} refused, {slower} of the least time"
        );
    }
}

// ---------------------------------------------------------------- jitter-bucket

/// Fifty workers, all of them refused within a tenth of a second at 5 s; shut for half a second.
const SHUT: &str = "maintenance:from=5s,for=500ms";

/// Notes when each worker first comes back from a refusal.
struct Spy {
    inner: Alone,
    refused: Vec<bool>,
    back: Vec<Option<Timestamp>>,
}

impl Client for Spy {
    type Ticket = ();
    const SHARED: bool = false;
    const FORBEARS: bool = false;

    fn ask(&mut self, worker: u32, now: Timestamp) -> Go<()> {
        let (asked, worker) = (self.inner.ask(worker, now), worker as usize);
        if self.refused[worker] && matches!(asked, Go::Send(())) {
            self.back[worker].get_or_insert(now);
        }
        asked
    }

    fn answered(&mut self, worker: u32, (): (), reply: &Reply, now: Timestamp, roll: f64) -> Timestamp {
        self.refused[worker as usize] |= reply.refused;
        self.inner.answered(worker, (), reply, now, roll)
    }
}

/// When fifty workers, each for itself, come back from a refusal that met them all within a tenth of a second.
fn way_back_alone(retry: Retry) -> Vec<Duration> {
    let scenario = before(SHUT, 50, Work::Endless, 100 * MS, 8 * S);
    let mut spy = Spy { inner: Alone::new(retry, 50), refused: vec![false; 50], back: vec![None; 50] };
    run(&scenario, &mut spy).unwrap();
    let first = Timestamp::from_secs(1_700_000_000);
    spy.back.iter().map(|at| at.expect("each was refused, and came back").since(first)).collect()
}

#[test]
fn jitter_bucket_without_jitter_fifty_come_back_together_and_with_it_few() {
    let together = fullest(&way_back_alone(Retry::Every(S)));
    assert_eq!(together, 50);
    let cap = 30 * S;
    let few = fullest(&way_back_alone(Retry::FullJitter { base: S, cap }));
    println!("without jitter {together} of 50 in one tenth of a second, with full jitter {few}");
    assert!((3..=15).contains(&few), "{few}");
}

#[test]
fn jitter_bucket_through_the_gate_none_comes_back_with_another() {
    // The bucket is opened wide, so that fifty are on the wire; the way back is the gate's alone.
    let mut fleet = by("jitter-bucket", vec![site(SHUT, 6000, 100 * MS)]);
    (fleet.workers, fleet.rates) = (50, None);
    (fleet.policy.concurrency_start, fleet.policy.concurrency_max) = (50, 50);
    let (summary, seen) = play(&fleet);
    let heard = seen.iter().filter(|s| is_refused(s)).map(|s| s.back).min().unwrap();
    let together = seen.iter().filter(|s| is_refused(s) && s.sent < heard).count();
    assert!(together >= 40, "{together} were refused together");
    let back: Vec<Duration> = seen.iter().filter(|s| s.sent > heard).map(|s| s.sent).take(50).collect();
    let closest = back.windows(2).map(|pair| pair[1] - pair[0]).min().unwrap();
    println!("{together} refused together; on the way back the closest two are {closest:?} apart");
    assert!(closest >= 2 * MS, "no two start together: {closest:?}");
    assert_eq!(summary.done, 6000);
}

#[test]
fn jitter_bucket_with_the_bucket_in_front_fewer_than_one_in_a_hundred_is_refused() {
    // Its own numbers, 5/s and a burst of 2, before a server that bears 6/s.
    let mut fleet = by("jitter-bucket", vec![site("token-bucket:rate=6/s,burst=5", 3000, 100 * MS)]);
    fleet.workers = 50;
    let (summary, _) = play(&fleet);
    assert_eq!(summary.done, 3000);
    assert!(summary.refused * 100 < summary.sent, "{summary:?}");
    // A window has 5 at most, burst included, so in the long run it is 4 a second (C1).
    assert!(summary.took < 755 * S, "and the pages come at its pace: {summary:?}");
}

// ---------------------------------------------------------------- proxy-queue

#[test]
fn proxy_queue_of_ten_exits_the_bad_ones_get_next_to_nothing_and_every_item_succeeds() {
    let mut exits = vec![Exit::Good; 10];
    (exits[3], exits[5], exits[8]) = (Exit::Dead, Exit::RejectsUs, Exit::Burnt { site: 1 });
    let sites = vec![site("open", 1000, 50 * MS), site("open", 1000, 50 * MS), site("open", 1000, 50 * MS)];
    let (summary, seen) = play(&Fleet { exits, ..by("proxy-queue", sites) });
    assert_eq!((summary.done, summary.failed, summary.put_off), (3000, 0, 0));
    let share = |exit: u32, site: Option<u32>| {
        let late = seen.iter().skip(100).filter(|s| site.is_none_or(|site| s.site == site));
        let (mine, all) = late
            .fold((0.0, 0.0), |(mine, all), s| (mine + f64::from(u8::from(s.exit == Some(exit))), all + 1.0));
        mine / all
    };
    for (exit, site) in [(3, None), (5, None), (8, Some(1))] {
        assert!(share(exit, site) <= 0.02, "exit {exit} at {site:?}: {}", share(exit, site));
    }
    for site in [0, 2] {
        assert!(
            share(8, Some(site)) > 0.05,
            "the burnt one works on at site {site}: {}",
            share(8, Some(site))
        );
    }
}

// ---------------------------------------------------------------- exit-state

#[test]
fn exit_state_after_a_403_the_same_exit_is_not_seen_there_for_five_minutes() {
    let mut exits = vec![Exit::Good; 4];
    exits[2] = Exit::Unwanted { site: 0 };
    let sites = vec![site("open", 8000, 2 * S), site("open", 8000, 2 * S)];
    let (summary, seen) = play(&Fleet { exits, workers: 16, ..by("exit-state", sites) });
    assert_eq!(summary.done, 16_000);
    let pair: Vec<&Seen> = seen.iter().filter(|s| s.exit == Some(2) && s.site == 0).collect();
    let mut heard = Duration::ZERO;
    let mut times = 0;
    for request in &pair {
        if request.sent > heard {
            assert!(times == 0 || request.sent >= heard + 300 * S, "after {:?}", request.sent - heard);
            (heard, times) = (request.back, times + 1);
        }
    }
    assert!(times >= 3, "it was asked again when its time was over: {times}");
}

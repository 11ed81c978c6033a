//! What a simulated client has promised, and that the simulation would notice.

use std::time::Duration;

use forbear_core::{policy::ScopePolicy, time::Timestamp};
use forbear_sim::{
    Bin, Client, Gated, Go, Reply, Scenario, Trace, Work,
    habits::{Alone, Oracle, Retry},
    run, run_traced,
    sets::{self, Kind},
};

const S: Duration = Duration::from_secs(1);

/// Instance `index` of `kind` for ten minutes, with a hundred workers.
fn short(kind: Kind, index: u32, told: bool) -> Scenario {
    Scenario { run_for: 600 * S, workers: 100, ..sets::set_a(kind, index, told) }
}

fn gate() -> Gated {
    Gated::new(ScopePolicy::default(), 100)
}

#[test]
fn p1_b1_nothing_is_sent_into_a_told_pause_and_one_request_probes() {
    for kind in Kind::ALL {
        for index in [0, 2] {
            for told in [false, true] {
                let scenario = short(kind, index, told);
                let gate = run(&scenario, &mut gate());
                assert!(gate.is_ok(), "{kind} {index} {told}: {}", gate.unwrap_err());
            }
        }
    }
}

#[test]
fn p7_a_told_time_that_is_too_long_to_believe_is_tested_once_and_then_obeyed() {
    let spec = "fixed-window:limit=200/20m,hint=seconds".parse().unwrap();
    let scenario = Scenario { spec, run_for: 1200 * S, ..short(Kind::FixedWindow, 0, true) };
    let report = run(&scenario, &mut gate()).unwrap_or_else(|violation| panic!("{violation}"));
    assert!(report.whole.refused >= 2, "it was told, and one more was refused: {}", report.whole.refused);
}

#[test]
fn p8_j5_a_crash_shortens_no_pause_and_loses_no_page() {
    for index in 0..4 {
        let scenario = Scenario {
            work: Work::Pages(2000),
            run_for: 7200 * S,
            crashes: (1..8).map(|n| n * 7 * S).collect(),
            ..short(Kind::FixedWindow, index, true)
        };
        let report = run(&scenario, &mut gate());
        let report = report.unwrap_or_else(|violation| panic!("{index}: {violation}"));
        assert!(report.done >= 2000, "{index}: {}", report.done);
    }
}

#[test]
fn the_same_seed_is_the_same_run() {
    let scenario = short(Kind::Waves, 1, false);
    let [one, two] = [(); 2].map(|()| run(&scenario, &mut gate()).unwrap());
    assert_eq!(one, two);
    let other = run(&Scenario { seed: 8, ..scenario }, &mut gate()).unwrap();
    assert_ne!(one, other);
}

#[test]
fn the_oracle_gets_all_and_is_refused_nothing() {
    for kind in Kind::ALL {
        let scenario = short(kind, 4, false);
        let report = run(&scenario, &mut Oracle::new(scenario.truth.clone())).unwrap();
        assert!(report.whole.used() > 0.97, "{kind}: {}", report.whole.used());
        assert!(report.whole.refused_share() < 0.01, "{kind}: {}", report.whole.refused_share());
    }
}

#[test]
fn nobody_gets_on_before_a_penalty_that_each_retry_prolongs() {
    let scenario = Scenario { workers: 50, ..short(Kind::Penalty, 1, false) };
    let alone = run(&scenario, &mut Alone::new(Retry::Every(2 * S), 50)).unwrap();
    assert!(alone.whole.refused_share() > 0.9, "{}", alone.whole.refused_share());
    let gate = run(&scenario, &mut gate()).unwrap();
    assert!(gate.whole.refused_share() < 0.01, "{}", gate.whole.refused_share());
    assert!(gate.done > 10 * alone.done, "{} against {}", gate.done, alone.done);
}

/// Says that it forbears, and does not.
struct Liar;

impl Client for Liar {
    type Ticket = ();

    fn ask(&mut self, _: u32, _: Timestamp) -> Go<()> {
        Go::Send(())
    }

    fn answered(&mut self, _: u32, (): (), _: &Reply, now: Timestamp, _: f64) -> Timestamp {
        now
    }
}

#[test]
fn a_broken_promise_is_noticed() {
    let told = run(&short(Kind::TokenBucket, 0, true), &mut Liar).unwrap_err();
    assert!(told.what.starts_with("P1"), "{told}");
    let silent = run(&short(Kind::TokenBucket, 0, false), &mut Liar).unwrap_err();
    assert!(silent.what.starts_with("B1"), "{silent}");
}

#[test]
fn a_trace_holds_every_request_and_changes_nothing() {
    let scenario = short(Kind::FixedWindow, 0, true);
    let plain = run(&scenario, &mut gate()).unwrap();
    let mut trace = Trace::new();
    let traced = run_traced(&scenario, &mut gate(), &mut trace).unwrap();
    assert_eq!(plain, traced);
    let sum = |of: fn(&Bin) -> u32| trace.bins().iter().map(|bin| u64::from(of(bin))).sum::<u64>();
    assert_eq!(sum(|bin| bin.sent), traced.sent);
    assert_eq!((sum(|bin| bin.served), sum(|bin| bin.refused)), (traced.whole.served, traced.whole.refused));
    let time: f64 = trace.bins().iter().flat_map(|bin| bin.phases).sum();
    assert!((time - 600.0).abs() < 0.001, "{time}");
    let shut = trace.bins().iter().flat_map(|bin| &bin.phases[2..]).sum::<f64>();
    assert!(shut > 1.0 && (traced.paused.unwrap().as_secs_f64() - shut).abs() < 0.001, "{shut}");
}

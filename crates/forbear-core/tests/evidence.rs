//! Whose limit it is (L6): the machine alone, on answers that are made up. Whole fleets are in `forbear-sim`.

use std::time::Duration;

use forbear_core::{
    evidence::{Evidence, Part, Who},
    time::Timestamp,
};
use proptest::prelude::*;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

const ONE: Who = Who::labelled([1, 1, 0]);
const TWO: Who = Who::labelled([2, 1, 0]);
const THREE: Who = Who::labelled([3, 1, 0]);
/// As the first, at another endpoint.
const ELSEWHERE: Who = Who::labelled([1, 2, 0]);

/// One incident: the first of these is refused first, and all were on the wire together. Returns when it was over.
fn incident(evidence: &mut Evidence, answers: &[(Who, bool)], at: Timestamp) -> Timestamp {
    let (mut now, until) = (at, at.plus(10 * S));
    for (who, served) in answers {
        now = now.plus(MS);
        match served {
            true => evidence.served(who, at, now),
            false => evidence.refused(who, at, evidence.narrowed(), until, now),
        }
    }
    until
}

fn start() -> Timestamp {
    Timestamp::from_secs(1_700_000_000)
}

/// An account's limit, found.
fn found() -> (Evidence, Timestamp) {
    let (mut evidence, mut now) = (Evidence::default(), start());
    let answers = [(ONE, false), (TWO, true), (ONE, false), (TWO, true), (ONE, false), (TWO, true)];
    for _ in 0..4 {
        now = incident(&mut evidence, &answers, now).plus(60 * S);
    }
    assert_eq!(evidence.narrowed(), Some(Part::Account));
    (evidence, now)
}

#[test]
fn l6_refused_here_and_served_there_narrows() {
    let clear = [(ONE, false), (TWO, true), (ONE, false), (TWO, true), (ONE, false), (TWO, true)];
    let endpoint = [(ONE, false), (ELSEWHERE, true), (ONE, false), (ELSEWHERE, true), (ONE, false)];
    let all = [(ONE, false), (TWO, false), (ONE, false), (TWO, false), (TWO, false), (ONE, false)];
    let mixed = [(ONE, false), (TWO, true), (ONE, true), (TWO, false), (ONE, false), (TWO, true)];
    let alone = [(ONE, false), (TWO, true), (TWO, true), (TWO, true), (TWO, true)];
    let same = [(ONE, false), (ONE, false), (ONE, true), (ONE, true)];
    for (name, answers, expected) in [
        ("an account's", &clear[..], Some(Part::Account)),
        ("an endpoint's", &endpoint, Some(Part::Endpoint)),
        ("all are refused", &all, None),
        ("some are served, whoever asks", &mixed, None),
        ("one refusal chose its account, and says nothing", &alone, None),
        ("nobody else was there", &same, None),
    ] {
        let (mut evidence, mut now) = (Evidence::default(), start());
        now = incident(&mut evidence, answers, now).plus(60 * S);
        assert_eq!(evidence.narrowed(), None, "{name}: one incident is never enough");
        for _ in 0..20 {
            now = incident(&mut evidence, answers, now).plus(60 * S);
        }
        assert_eq!(evidence.narrowed(), expected, "{name}");
        assert_eq!(evidence.whose().map(|whose| whose.part), expected, "{name}");
    }
}

#[test]
fn l6_the_evidence_is_told() {
    let (evidence, _) = found();
    let whose = evidence.whose().unwrap();
    assert_eq!((whose.served_elsewhere, whose.refused_here, whose.refused_elsewhere), (12, 12, 0));
    let back = Evidence::restore(evidence.tallies());
    assert_eq!(back.whose(), Some(whose), "and it is kept");
}

#[test]
fn l6_refused_there_too_widens_at_once_and_does_not_flap() {
    let (mut evidence, mut now) = found();
    // The account is shut, the others go on: the first answers of two of them are refusals.
    let until = now.plus(10 * S);
    evidence.refused(&ONE, now, Some(Part::Account), until, now.plus(MS));
    evidence.refused(&TWO, now.plus(S), Some(Part::Account), until, now.plus(S + MS));
    evidence.refused(&THREE, now.plus(2 * S), Some(Part::Account), until, now.plus(2 * S + MS));
    assert_eq!(evidence.narrowed(), None, "it is everyone's");
    // What was enough the first time is not enough the second time.
    let answers = [(ONE, false), (TWO, true), (ONE, false), (TWO, true)];
    let mut incidents = [0; 2];
    for (n, evidence) in incidents.iter_mut().zip([&mut Evidence::default(), &mut evidence]) {
        while evidence.narrowed().is_none() {
            now = incident(evidence, &answers, now).plus(60 * S);
            *n += 1;
            assert!(*n < 50, "it can be found again");
        }
    }
    assert!(incidents[1] > incidents[0], "{incidents:?}");
}

#[test]
fn l6_others_that_go_on_confirm_it() {
    let (mut evidence, mut now) = found();
    for _ in 0..20 {
        let until = now.plus(10 * S);
        evidence.refused(&ONE, now, Some(Part::Account), until, now.plus(MS));
        evidence.served(&TWO, now.plus(S), now.plus(S + MS));
        evidence.served(&THREE, now.plus(S), now.plus(S + MS));
        // Its own limit, later.
        evidence.refused(&TWO, now.plus(2 * S), Some(Part::Account), until.plus(2 * S), now.plus(2 * S + MS));
        now = now.plus(60 * S);
    }
    assert_eq!(evidence.narrowed(), Some(Part::Account));
    assert!(evidence.whose().unwrap().served_elsewhere > 30);
}

/// SplitMix64, in `[0, 1)`.
fn share(state: &mut u64) -> f64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}

#[test]
fn l6_a_limit_that_is_everyones_is_rarely_taken_for_an_accounts() {
    // Whatever share it serves, and however unequal the accounts are: a thousand origins of a hundred incidents each.
    let (mut dice, mut wrong) = (0x5eed, 0);
    for _ in 0..1000 {
        let (served, mine) = (share(&mut dice), share(&mut dice));
        let (mut evidence, mut now) = (Evidence::default(), start());
        for _ in 0..100 {
            let on_wire = 1 + (share(&mut dice) * 16.0) as usize;
            let mut answers = vec![(if share(&mut dice) < mine { ONE } else { TWO }, false)];
            answers.extend(
                (0..on_wire)
                    .map(|_| (if share(&mut dice) < mine { ONE } else { TWO }, share(&mut dice) < served)),
            );
            now = incident(&mut evidence, &answers, now).plus(60 * S);
            if evidence.narrowed().is_some() {
                wrong += 1;
                break;
            }
        }
    }
    assert!(wrong <= 20, "{wrong} of 1000 origins");
}

proptest! {
    /// Whatever comes, in whatever order: it stays finite, and a part that a request does not have is never found.
    #[test]
    fn l6_nothing_breaks_it(steps in prop::collection::vec((0u32..3, 0u32..3, any::<bool>(), 0u64..5000, 0u64..9000), 1..300)) {
        let (mut evidence, mut now) = (Evidence::default(), start());
        for (account, exit, served, ago, more) in steps {
            now = now.plus(MS * (more % 700) as u32);
            let (who, sent) = (Who::labelled([account, 0, exit]), now.minus(MS * ago as u32));
            match served {
                true => evidence.served(&who, sent, now),
                false => evidence.refused(&who, sent, evidence.narrowed(), now.plus(MS * more as u32), now),
            }
            prop_assert!(evidence.tallies().iter().all(|tally| tally.score.is_finite()));
            prop_assert_ne!(evidence.narrowed(), Some(Part::Endpoint));
            prop_assert_eq!(Evidence::restore(evidence.tallies()).narrowed(), evidence.narrowed());
        }
    }
}

//! Exits: choice, health, blame. The numbers of the policies are shown in `tests/exit_policies.rs`.

use std::time::Duration;

use super::*;
use crate::{
    hint::Kind,
    outcome::{ExitFault, Outcome, Processed, Refusal},
};

const A: &str = "https://a:443";
const B: &str = "https://b:443";
const MS: Duration = Duration::from_millis(1);

fn pool(count: usize) -> Exits {
    Exits::new(ExitPolicy::default(), vec![Traits::default(); count], 1)
}

fn start() -> Timestamp {
    Timestamp::from_secs(1_795_957_200)
}

fn fault(fault: ExitFault) -> Outcome {
    Outcome::Exit { fault, processed: Processed::No }
}

fn refused() -> Outcome {
    Outcome::Refused(Refusal { wait: None, from: None, named: None, kind: Kind::RateLimit, may_retry: true })
}

fn pick(exits: &mut Exits, origin: &str, ask: Ask, now: Timestamp) -> Pick {
    match exits.choose(origin, ask, now) {
        Choice::Use(pick) => pick,
        other => panic!("{other:?}"),
    }
}

fn serve(exits: &mut Exits, origin: &str, now: Timestamp) -> ExitId {
    let pick = pick(exits, origin, Ask::default(), now);
    let _ = exits.judge(&pick, &Outcome::Success, 0, now, 0.5);
    pick.exit
}

#[test]
fn e2_exits_are_used_in_turn() {
    let (mut exits, now) = (pool(4), start());
    let mut used = [0; 4];
    for _ in 0..400 {
        used[serve(&mut exits, A, now).0 as usize] += 1;
    }
    assert!(used.iter().all(|n| (60..=140).contains(n)), "{used:?}");
}

#[test]
fn e2_an_unproven_exit_gets_one_request_at_a_time_and_a_trickle() {
    let (mut exits, now) = (pool(2), start());
    let first = pick(&mut exits, A, Ask::default(), now);
    let second = pick(&mut exits, A, Ask::default(), now);
    assert_ne!(first.exit, second.exit);
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::Busy { or: None });
    let judged = exits.judge(&first, &Outcome::Success, 0, now, 0.0);
    assert_eq!(judged.freed, [A.into()], "who found it busy may ask again");
    // The second one never answers: the first one has everything meanwhile.
    for _ in 0..100 {
        assert_eq!(serve(&mut exits, A, now), first.exit);
    }
    let _ = exits.judge(&second, &fault(ExitFault::Broken), 0, now, 0.0);
    let later = now.plus(Duration::from_secs(2));
    let tries = (0..80).filter(|_| serve(&mut exits, B, later) == second.exit).count();
    assert!(tries > 0, "it is tried again");
}

#[test]
fn e2_who_succeeds_more_and_costs_less_goes_first() {
    let priced = |price| Traits { price_per_request: price, ..Traits::default() };
    let mut exits = Exits::new(ExitPolicy::default(), [priced(3.0), priced(1.0), priced(2.0)], 1);
    let now = start();
    for _ in 0..60 {
        serve(&mut exits, A, now);
    }
    let used = (0..100).filter(|_| serve(&mut exits, A, now) == ExitId(1)).count();
    assert_eq!(used, 100, "the cheapest while it is free");
    // It begins to fail at this origin: its successes get dearer and rarer.
    for _ in 0..60 {
        let pick = pick(&mut exits, A, Ask { keep: Some(ExitId(1)), ..Ask::default() }, now);
        let outcome = Outcome::Fault { processed: Processed::Unknown, passing: true };
        let _ = exits.judge(&pick, &outcome, 0, now, 0.5);
    }
    assert_ne!(serve(&mut exits, A, now), ExitId(1));
    assert_eq!(serve(&mut exits, B, now), ExitId(1), "E1: elsewhere it is as good as ever");
}

#[test]
fn e2_an_item_keeps_or_changes_its_exit() {
    let (mut exits, now) = (pool(5), start());
    for _ in 0..50 {
        serve(&mut exits, A, now);
    }
    for n in 0..5 {
        let keep = Ask { keep: Some(ExitId(n)), ..Ask::default() };
        let kept = pick(&mut exits, A, keep, now);
        assert_eq!(kept.exit, ExitId(n));
        let not = pick(&mut exits, A, Ask { not: Some(ExitId(n)), ..Ask::default() }, now);
        assert_ne!(not.exit, ExitId(n));
        let _ = exits.judge(&kept, &Outcome::Success, 0, now, 0.0);
        let _ = exits.judge(&not, &Outcome::Success, 0, now, 0.0);
    }
}

#[test]
fn e2_an_account_keeps_to_its_exit() {
    let policy = ExitPolicy { sticky: Sticky::Account, ..ExitPolicy::default() };
    let (mut exits, now) = (Exits::new(policy, vec![Traits::default(); 6], 1), start());
    for _ in 0..50 {
        serve(&mut exits, A, now);
    }
    let ask = |account| Ask { account: Some(account), ..Ask::default() };
    let mut homes = Vec::new();
    for account in 0..3 {
        let home = pick(&mut exits, A, ask(account), now);
        for _ in 0..20 {
            let again = pick(&mut exits, A, ask(account), now);
            assert_eq!(again.exit, home.exit, "account {account}");
            let _ = exits.judge(&again, &Outcome::Success, 0, now, 0.0);
            serve(&mut exits, A, now);
        }
        homes.push(home);
    }
    let _ = exits.judge(&homes[0], &fault(ExitFault::Broken), 0, now, 0.0);
    assert_ne!(pick(&mut exits, A, ask(0), now).exit, homes[0].exit, "a broken exit keeps nobody");
}

#[test]
fn e1_a_failing_exit_is_tried_rarely_and_comes_back() {
    let (mut exits, mut now) = (pool(10), start());
    let mut sent = 0;
    for n in 0..20_000u32 {
        now = now.plus(MS);
        let pick = pick(&mut exits, A, Ask::default(), now);
        let dead = pick.exit == ExitId(3);
        sent += usize::from(dead && n > 100);
        let outcome = if dead { fault(ExitFault::Broken) } else { Outcome::Success };
        let _ = exits.judge(&pick, &outcome, 0, now, 0.5);
    }
    assert!((1..=10).contains(&sent), "{sent} of 20000");
    assert_eq!((exits.state(ExitId(3)), exits.usable_count()), ("failing", 9));
    let mut served = 0;
    // It is tried at once when its time has come, and has its full share when its failures are too old to count.
    for _ in 0..60_000u32 {
        now = now.plus(4 * MS);
        served += u32::from(serve(&mut exits, A, now) == ExitId(3));
    }
    assert!(served > 1_000, "{served}");
    assert_eq!((exits.state(ExitId(3)), exits.usable_count()), ("ok", 10));
}

#[test]
fn e1_what_was_in_flight_through_a_dying_exit_is_one_failure() {
    let (mut exits, now) = (pool(1), start());
    serve(&mut exits, A, now);
    let picks: Vec<Pick> = (0..20).map(|_| pick(&mut exits, A, Ask::default(), now)).collect();
    let later = now.plus(MS);
    let mut untils = Vec::new();
    for pick in &picks {
        match exits.judge(pick, &fault(ExitFault::Broken), 0, later, 0.0).change {
            ExitChange::Failed { until } => untils.push(until),
            ExitChange::None => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(untils, [later.plus(Duration::from_secs(1))]);
    let again = untils[0];
    let tried = pick(&mut exits, A, Ask::default(), again);
    let change = exits.judge(&tried, &fault(ExitFault::Broken), 0, again.plus(MS), 0.0).change;
    assert!(matches!(change, ExitChange::StillFails { .. }), "it is no news: {change:?}");
    assert_eq!(exits.state(ExitId(0)), "failing");
}

#[test]
fn e5_an_exit_that_turns_us_away_is_out_and_the_last_one_ends_it() {
    let (mut exits, now) = (pool(2), start());
    assert_eq!(exits.usable(), Usable::Yes);
    for left in [1, 0] {
        let pick = pick(&mut exits, A, Ask::default(), now);
        let judged = exits.judge(&pick, &fault(ExitFault::Rejected), 0, now, 0.0);
        assert_eq!(judged.change, ExitChange::Out);
        assert_eq!(
            (exits.usable(), exits.usable_count()),
            (if left > 0 { Usable::Yes } else { Usable::Out }, left)
        );
    }
    assert_eq!(exits.choose(A, Ask::default(), now.plus(Duration::from_secs(9_000))), Choice::None);
    assert_eq!(exits.choose(B, Ask::default(), now), Choice::None);
}

#[test]
fn e5_nobody_waits_for_an_exit_that_is_out() {
    let (mut exits, now) = (pool(2), start());
    let hour = now.plus(Duration::from_secs(3_600));
    for _ in 0..2 {
        let pick = pick(&mut exits, A, Ask::default(), now);
        let _ = exits.judge(&pick, &refused(), 0, now, 0.0);
        exits.rests(&pick, hour);
    }
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::Wait { until: hour });
    for _ in 0..2 {
        let pick = pick(&mut exits, B, Ask::default(), now);
        let _ = exits.judge(&pick, &fault(ExitFault::Rejected), 0, now, 0.0);
    }
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::None);
}

#[test]
fn e5_exits_that_all_fail_are_waited_for() {
    let (mut exits, now) = (pool(2), start());
    for _ in 0..2 {
        let pick = pick(&mut exits, A, Ask::default(), now);
        let _ = exits.judge(&pick, &fault(ExitFault::Silent), 0, now, 0.0);
    }
    let next = now.plus(Duration::from_secs(1));
    assert_eq!(exits.usable(), Usable::Failing { since: now, next });
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::Wait { until: next });
    serve(&mut exits, A, next);
    assert_eq!(exits.usable(), Usable::Yes);
}

#[test]
fn v1_no_way_is_the_exits_until_three_different_ones_say_so() {
    let (mut exits, now) = (pool(5), start());
    for _ in 0..40 {
        serve(&mut exits, A, now);
    }
    for n in 1..=6u64 {
        let pick = pick(&mut exits, A, Ask::default(), now);
        let judged = exits.judge(&pick, &fault(ExitFault::NoWay), 0, now, 0.0);
        let is_origins = matches!(judged.outcome, Outcome::Fault { passing: true, .. });
        assert_eq!(is_origins, n >= 3, "the {n}th");
        assert_eq!(
            serve(&mut exits, B, now),
            serve_same(&mut exits, B, now),
            "others work by the same exits"
        );
    }
    serve(&mut exits, A, now);
    let pick = pick(&mut exits, A, Ask::default(), now);
    let judged = exits.judge(&pick, &fault(ExitFault::NoWay), 0, now, 0.0);
    assert_eq!(judged.outcome, fault(ExitFault::NoWay), "one success, and the count begins anew");
}

/// All exits stand ready at this origin: one of five, whichever.
fn serve_same(exits: &mut Exits, origin: &str, now: Timestamp) -> ExitId {
    let mut last = ExitId(0);
    for _ in 0..5 {
        last = serve(exits, origin, now);
    }
    last
}

#[test]
fn v1_of_two_exits_both_are_enough() {
    let (mut exits, now) = (pool(2), start());
    let mut blames = Vec::new();
    for _ in 0..3 {
        let pick = pick(&mut exits, A, Ask::default(), now);
        let judged = exits.judge(&pick, &fault(ExitFault::NoWay), 0, now, 0.0);
        blames.push(matches!(judged.outcome, Outcome::Fault { .. }));
    }
    assert_eq!(blames, [false, true, true]);
}

#[test]
fn s5_a_second_exit_refused_meanwhile_shows_that_it_is_not_the_exits() {
    let (mut exits, now) = (pool(3), start());
    let first = pick(&mut exits, A, Ask::default(), now);
    let second = pick(&mut exits, A, Ask::default(), now);
    let third = pick(&mut exits, A, Ask::default(), now);
    assert!(!exits.judge(&first, &refused(), 0, now, 0.0).through.refused_elsewhere);
    exits.rests(&first, now.plus(Duration::from_secs(5)));
    let (soon, late) = (now.plus(Duration::from_secs(4)), now.plus(Duration::from_secs(5)));
    assert!(exits.judge(&second, &refused(), 0, soon, 0.0).through.refused_elsewhere);
    assert!(
        !exits.judge(&third, &refused(), 0, late, 0.0).through.refused_elsewhere,
        "the first rests no more"
    );
}

#[test]
fn e4_a_session_ends_when_its_exit_is_left_and_never_comes_back() {
    let (mut exits, now) = (pool(1), start());
    let mut seen = Vec::new();
    for outcome in
        [Outcome::Success, Outcome::Success, Outcome::Blocked { challenge: false }, Outcome::Success]
    {
        let pick = pick(&mut exits, A, Ask::default(), now);
        seen.push(pick.session);
        let judged = exits.judge(&pick, &outcome, 0, now, 0.0);
        assert_eq!(judged.left, matches!(outcome, Outcome::Blocked { .. }));
    }
    assert_eq!(seen[0], seen[1]);
    assert_eq!(seen[1], seen[2]);
    assert_ne!(seen[2], seen[3]);
    assert_ne!(pick(&mut exits, B, Ask::default(), now).session, seen[3], "another origin, another session");
    let off = ExitPolicy { sticky: Sticky::Off, ..ExitPolicy::default() };
    let mut exits = Exits::new(off, [Traits::default()], 1);
    serve(&mut exits, A, now);
    let (one, two) = (pick(&mut exits, A, Ask::default(), now), pick(&mut exits, A, Ask::default(), now));
    assert_ne!(one.session, two.session, "a fresh one each time");
}

#[test]
fn e4_a_gateway_is_not_judged_as_one_address() {
    let gateway = Traits { gateway: true, ..Traits::default() };
    let (mut exits, now) = (Exits::new(ExitPolicy::default(), [gateway], 1), start());
    for n in 0..50 {
        let pick = pick(&mut exits, A, Ask::default(), now);
        let judged = exits.judge(&pick, &refused(), 0, now, 0.0);
        assert_eq!(judged.through.heat, 0.0);
        assert_eq!(judged.through.refused_elsewhere, n > 0, "two addresses of it are two");
        exits.rests(&pick, now.plus(Duration::from_secs(5)));
    }
}

#[test]
fn e2_a_pair_that_waits_is_passed_over() {
    let (mut exits, now) = (pool(2), start());
    serve(&mut exits, A, now);
    serve(&mut exits, A, now);
    let until = now.plus(Duration::from_millis(200));
    let first = pick(&mut exits, A, Ask::default(), now);
    let _ = exits.put_off(&first, until);
    for _ in 0..5 {
        assert_ne!(serve(&mut exits, A, now), first.exit);
    }
    let second = pick(&mut exits, A, Ask::default(), now);
    let _ = exits.put_off(&second, until.plus(MS));
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::Wait { until });
    assert_eq!(pick(&mut exits, A, Ask::default(), until).exit, first.exit, "the earliest first");
}

#[test]
fn c2_a_full_exit_is_offered_when_a_request_comes_back() {
    let (mut exits, now) = (pool(1), start());
    serve(&mut exits, A, now);
    let held = pick(&mut exits, A, Ask::default(), now);
    let asked = pick(&mut exits, B, Ask::default(), now);
    assert!(exits.full(&asked).is_empty());
    assert_eq!(exits.choose(B, Ask::default(), now), Choice::Busy { or: None });
    let judged = exits.judge(&held, &Outcome::Success, 0, now, 0.0);
    assert_eq!(judged.freed, [B.into()]);
    assert_eq!(pick(&mut exits, B, Ask::default(), now).exit, ExitId(0));
}

#[test]
fn c2_a_full_exit_without_a_request_that_we_know_of_is_asked_again_in_a_moment() {
    let (mut exits, now) = (pool(1), start());
    serve(&mut exits, A, now);
    let asked = pick(&mut exits, A, Ask::default(), now);
    let _ = exits.full(&asked);
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::Wait { until: now.plus(MS) });
}

#[test]
fn b1_a_gates_old_news_puts_off_no_exit_that_was_recalled_since() {
    let (mut exits, now) = (pool(1), start());
    serve(&mut exits, A, now);
    let until = now.plus(Duration::from_secs(15));
    let (probe, asked) = (pick(&mut exits, A, Ask::default(), now), pick(&mut exits, A, Ask::default(), now));
    // The gate says to wait for the probe; before that is heard here, the probe is back.
    let _ = exits.judge(&probe, &Outcome::Success, 0, now, 0.0);
    exits.recall(&probe);
    let _ = exits.put_off(&asked, until);
    let again = pick(&mut exits, A, Ask::default(), now);
    let _ = exits.put_off(&again, until);
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::Wait { until });
}

#[test]
fn e1_a_failing_pair_is_tried_however_busy_its_exit_is_elsewhere() {
    let (mut exits, now) = (pool(5), start());
    for _ in 0..50 {
        serve(&mut exits, B, now);
    }
    let picks: Vec<Pick> = (0..5).map(|_| pick(&mut exits, A, Ask::default(), now)).collect();
    for failed in &picks[..2] {
        let _ = exits.judge(failed, &fault(ExitFault::NoWay), 0, now, 0.0);
    }
    let _elsewhere: Vec<Pick> = (0..20).map(|_| pick(&mut exits, B, Ask::default(), now)).collect();
    let later = now.plus(Duration::from_secs(130)); // its failure is forgotten, its trial is not
    let used: Vec<ExitId> = (0..5).map(|_| pick(&mut exits, A, Ask::default(), later).exit).collect();
    for failed in &picks[..2] {
        assert!(used.contains(&failed.exit), "{used:?}");
        let again = (0..20).any(|_| pick(&mut exits, A, Ask::default(), later).exit == failed.exit);
        assert!(!again, "one at a time until it serves");
    }
}

#[test]
fn e2_who_is_a_little_dearer_is_used_too() {
    let priced = Traits { price_per_request: 1.0, ..Traits::default() };
    let (mut exits, now) = (Exits::new(ExitPolicy::default(), [priced; 4], 1), start());
    for n in 0..204 {
        // Each of them has served, and all but one had a failure once.
        let keep = Ask { keep: Some(ExitId(n % 4)), ..Ask::default() };
        let pick = pick(&mut exits, A, keep, now);
        let outcome = if n < 4 && n > 0 { Outcome::NotTaken } else { Outcome::Success };
        let _ = exits.judge(&pick, &outcome, 0, now, 0.5);
    }
    let mut used = [0; 4];
    for _ in 0..400 {
        used[serve(&mut exits, A, now).0 as usize] += 1;
    }
    assert!(used.iter().all(|n| *n >= 60), "{used:?}");
}

#[test]
fn e2_exits_that_fail_too_often_are_set_aside_but_never_more_than_half() {
    let (mut exits, mut now) = (pool(10), start());
    let mut used = [0u32; 10];
    for n in 0..6_000 {
        now = now.plus(MS);
        let pick = pick(&mut exits, A, Ask::default(), now);
        if n > 1_000 {
            used[pick.exit.0 as usize] += 1;
        }
        // The last seven break three bodies of four.
        let bad = pick.exit.0 >= 3 && n % 4 != 0;
        let outcome = if bad {
            Outcome::Fault { processed: Processed::Unknown, passing: true }
        } else {
            Outcome::Success
        };
        let _ = exits.judge(&pick, &outcome, 0, now, 0.5);
    }
    let aside = used.iter().filter(|n| **n < 50).count();
    assert!((3..5).contains(&aside), "{used:?}");
    assert!(used[..3].iter().all(|n| *n > 500), "{used:?}");
}

#[test]
fn c4_ten_thousand_exits_at_many_origins_are_bounded() {
    let (mut exits, mut now) = (pool(10_000), start());
    for n in 0..1_200u32 {
        now = now.plus(MS);
        serve(&mut exits, &format!("https://h{n}:443"), now);
    }
    assert!(exits.sites.len() <= 401, "{}", exits.sites.len());
    assert_eq!(exits.pairs, exits.sites.values().map(|site| site.pairs.len()).sum::<usize>());
}

#[test]
fn c4_pairs_of_exit_and_origin_are_bounded() {
    let (mut exits, mut now) = (pool(10_000), start());
    let mut most = 0;
    for n in 0..260_000u32 {
        now = now.plus(MS);
        serve(&mut exits, &format!("https://h{}:443", n % 20), now);
        most = most.max(exits.pairs);
    }
    assert!((90_000..=100_000).contains(&most), "{most}");
    assert_eq!(exits.pairs, exits.sites.values().map(|site| site.pairs.len()).sum::<usize>());
}

#[test]
fn e2_without_rotation_an_item_waits_for_its_own_exit_unless_that_is_broken() {
    let policy = ExitPolicy { rotate: Rotate::Never, ..ExitPolicy::default() };
    let (mut exits, now) = (Exits::new(policy, vec![Traits::default(); 3], 1), start());
    for _ in 0..10 {
        serve(&mut exits, A, now);
    }
    let own = Ask { keep: Some(ExitId(1)), ..Ask::default() };
    let first = pick(&mut exits, A, own, now);
    assert_eq!(first.exit, ExitId(1));
    let judged = exits.judge(&first, &refused(), 0, now, 0.0);
    assert!(!judged.others);
    let until = now.plus(Duration::from_secs(7));
    exits.rests(&first, until);
    assert_eq!(exits.choose(A, own, now), Choice::Wait { until });
    assert_ne!(serve(&mut exits, A, now), ExitId(1), "whoever has none takes another");
    let again = pick(&mut exits, A, own, until);
    assert_eq!(again.exit, ExitId(1));
    let _ = exits.judge(&again, &fault(ExitFault::Broken), 0, until, 0.0);
    assert_ne!(pick(&mut exits, A, own, until).exit, ExitId(1));
}

#[test]
fn c2_who_finds_an_exit_full_calls_nobody_else_who_did() {
    let (mut exits, now) = (pool(1), start());
    serve(&mut exits, A, now);
    let held = pick(&mut exits, A, Ask::default(), now);
    let one = pick(&mut exits, A, Ask::default(), now);
    assert!(exits.full(&one).is_empty());
    let other = pick(&mut exits, B, Ask::default(), now);
    assert!(exits.full(&other).is_empty(), "A would find it as full, and call B, and so on");
    let third = pick(&mut exits, "https://c:443", Ask::default(), now);
    assert!(exits.turn_down(&third).is_empty(), "nothing has come back");
    for origin in [A, B] {
        assert_eq!(exits.choose(origin, Ask::default(), now), Choice::Busy { or: None });
    }
    let mut called = exits.judge(&held, &Outcome::Success, 0, now, 0.0).freed;
    called.sort_unstable();
    assert_eq!(called, [A.into(), B.into()]);
}

/// Exits that take a request and say nothing hold a place for as long as a request may take.
#[test]
fn e2_among_many_dead_exits_the_few_that_serve_get_nearly_everything() {
    let (mut exits, mut now) = (pool(300), start());
    let dead = |exit: ExitId| !exit.0.is_multiple_of(30);
    let (mut stuck, mut served, mut trials) = (Vec::new(), 0, 0);
    for n in 0..20_000u64 {
        now = now.plus(MS);
        stuck.retain(|(pick, until)| {
            if *until <= now {
                let _ = exits.judge(pick, &fault(ExitFault::Silent), 0, now, 0.5);
            }
            *until > now
        });
        if stuck.len() >= 8 {
            continue; // as many as there may be on the wire
        }
        let Choice::Use(pick) = exits.choose(A, Ask::default(), now) else { continue };
        if dead(pick.exit) {
            trials += usize::from(n > 10_000);
            stuck.push((pick, now.plus(Duration::from_secs(2))));
        } else {
            let _ = exits.judge(&pick, &Outcome::Success, 0, now, 0.5);
            served += usize::from(n > 10_000);
        }
    }
    assert!(served > 9_900 && (1..100).contains(&trials), "{served} served, {trials} tried out");
}

#[test]
fn e2_an_item_that_one_exit_failed_may_try_out_another() {
    let (mut exits, now) = (pool(40), start());
    let first = serve(&mut exits, A, now);
    let other = pick(&mut exits, A, Ask { not: Some(first), ..Ask::default() }, now);
    assert_ne!(other.exit, first);
    let again = pick(&mut exits, A, Ask { not: Some(first), ..Ask::default() }, now);
    assert_eq!(again.exit, first, "one at a time is tried out");
}

#[test]
fn e2_without_rotation_nobody_waits_for_an_exit_that_finds_no_way() {
    let policy = ExitPolicy { rotate: Rotate::Never, ..ExitPolicy::default() };
    let (mut exits, mut now) = (Exits::new(policy, vec![Traits::default(); 3], 1), start());
    for _ in 0..10 {
        serve(&mut exits, A, now);
    }
    let (mut keep, mut asked) = (Some(ExitId(1)), Vec::new());
    loop {
        let next = pick(&mut exits, A, Ask { keep, ..Ask::default() }, now);
        now = now.plus(MS);
        let judged = exits.judge(&next, &fault(ExitFault::NoWay), 0, now, 0.0);
        (keep, asked) = (Some(next.exit), [asked, vec![next.exit]].concat());
        if matches!(judged.outcome, Outcome::Fault { .. }) {
            break; // believed: from here on attempts count, and the item ends
        }
    }
    assert_eq!((asked[0], asked.len()), (ExitId(1), 3), "{asked:?}");
}

#[test]
fn e1_exits_that_drop_one_site_serve_the_others_as_before() {
    let (mut exits, mut now) = (pool(4), start());
    for _ in 0..40 {
        serve(&mut exits, A, now);
    }
    let (mut believed, mut held_up) = (false, 0);
    for _ in 0..10_000 {
        now = now.plus(MS);
        if let Choice::Use(pick) = exits.choose(B, Ask::default(), now) {
            let judged = exits.judge(&pick, &fault(ExitFault::Broken), 0, now, 0.5);
            believed |= matches!(judged.outcome, Outcome::Fault { passing: true, .. });
        }
        match exits.choose(A, Ask::default(), now) {
            Choice::Use(pick) => _ = exits.judge(&pick, &Outcome::Success, 0, now, 0.5),
            _ => held_up += 1,
        }
    }
    assert!(believed, "three exits that others are served by agree: the run does not go on for ever");
    assert_eq!((held_up, exits.usable_count()), (0, 4));
}

#[test]
fn e1_what_was_on_its_way_when_an_exit_broke_says_nothing_about_one_site() {
    let (mut exits, now) = (pool(1), start());
    serve(&mut exits, A, now);
    let (served, one, other) = (
        pick(&mut exits, A, Ask::default(), now),
        pick(&mut exits, B, Ask::default(), now),
        pick(&mut exits, B, Ask::default(), now),
    );
    let later = now.plus(MS);
    let _ = exits.judge(&one, &fault(ExitFault::Broken), 0, later, 0.5);
    let _ = exits.judge(&served, &Outcome::Success, 0, later, 0.5);
    let judged = exits.judge(&other, &fault(ExitFault::Broken), 0, later, 0.5);
    assert_eq!(judged.outcome, fault(ExitFault::Broken));
    assert!(matches!(judged.change, ExitChange::Failed { .. }));
}

#[test]
fn e4_what_an_address_that_was_left_must_wait_for_holds_up_no_other_one_of_its_gateway() {
    let gateway = Traits { gateway: true, ..Traits::default() };
    let (mut exits, now) = (Exits::new(ExitPolicy::default(), [gateway], 1), start());
    serve(&mut exits, A, now);
    let (blocked, late) =
        (pick(&mut exits, A, Ask::default(), now), pick(&mut exits, A, Ask::default(), now));
    assert_eq!(blocked.session, late.session);
    let _ = exits.judge(&blocked, &Outcome::Blocked { challenge: false }, 0, now, 0.0);
    // The other one had been picked before, and its gate has closed meanwhile.
    let _ = exits.put_off(&late, now.plus(Duration::from_secs(340)));
    assert_ne!(pick(&mut exits, A, Ask::default(), now).session, late.session);
    let paced = pick(&mut exits, A, Ask::default(), now);
    let until = now.plus(Duration::from_millis(200));
    let _ = exits.put_off(&paced, until);
    assert_eq!(exits.choose(A, Ask::default(), now), Choice::Wait { until }, "the present one does wait");
}

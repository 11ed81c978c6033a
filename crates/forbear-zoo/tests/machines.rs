//! The rule of each machine, in virtual time.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use forbear_zoo::{Answer, Facts, Fault, Limiter, Origin, Rate, Shares, Spec, Verdict};
use proptest::prelude::*;

/// A Unix time that is no multiple of anything.
const EPOCH: Duration = Duration::new(1_700_000_003, 250_000_000);

fn machine(text: &str) -> Origin {
    text.parse::<Spec>().unwrap().build(EPOCH)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// One request, answered at once.
fn hit(machine: &mut Origin, now: Duration, request: Facts<'_>) -> Answer {
    let answer = machine.arrive(now, &request);
    machine.depart(now, &request, &answer);
    answer
}

fn status(machine: &mut Origin, now: Duration) -> u16 {
    hit(machine, now, Facts::get("/")).status
}

fn header<'a>(answer: &'a Answer, name: &str) -> Option<&'a str> {
    answer.headers.iter().find(|(each, _)| each == name).map(|(_, value)| value.as_str())
}

/// How many requests are let through when one comes every `gap`, from `from` until `until`.
fn served(machine: &mut Origin, from: Duration, until: Duration, gap: Duration) -> u64 {
    let mut count = 0;
    let mut now = from;
    while now < until {
        count += u64::from(status(machine, now) == 200);
        now += gap;
    }
    count
}

/// Kinds with one quota and no chance in them.
const QUOTAS: [&str; 10] = [
    "token-bucket:rate=20/s,burst=10",
    "token-bucket:rate=3/7s,burst=2,rejected=count",
    "gcra:rate=20/s,burst=10",
    "gcra:rate=20/s,burst=3,rejected=count",
    "fixed-window:limit=20/1s",
    "fixed-window:limit=5/700ms,phase=first-request",
    "sliding-log:limit=20/1s",
    "sliding-log:limit=5/700ms,rejected=count",
    "sliding-counter:limit=20/1s",
    "sliding-counter:limit=5/700ms,rejected=count",
];

/// Times of arrival: bursts, and gaps of up to a second and a half.
fn arrivals() -> impl Strategy<Value = Vec<Duration>> {
    let gap = prop_oneof![3 => Just(0), 3 => 0..40_000_u64, 1 => 0..1_500_000_u64];
    prop::collection::vec(gap, 1..120).prop_map(|gaps| {
        let mut now = Duration::ZERO;
        let at = |gap: u64| {
            now += Duration::from_micros(gap);
            now
        };
        gaps.into_iter().map(at).collect()
    })
}

proptest! {
    #[test]
    fn a_told_wait_is_long_enough_and_no_longer(at in arrivals(), which in 0..QUOTAS.len() + 2) {
        let punishing = ["token-bucket:rate=20/s,burst=10,penalty=300ms", "sliding-log:limit=5/1s,penalty=3s"];
        let text = QUOTAS.iter().chain(&punishing).nth(which).unwrap();
        let replay = || {
            let mut machine = machine(text);
            let mut last = None;
            for now in &at {
                last = Some((*now, hit(&mut machine, *now, Facts::get("/"))));
            }
            (machine, last.unwrap())
        };
        let (mut on_time, (now, answer)) = replay();
        let Some(wait) = answer.wait else { return Ok(()) };
        prop_assert_eq!(answer.status, 429);
        prop_assert_eq!(status(&mut on_time, now + wait), 200, "{} after {:?}", text, wait);
        // Waits are rounded up to the nanosecond at several places.
        if let Some(early) = wait.checked_sub(Duration::from_nanos(20)) {
            prop_assert_eq!(status(&mut replay().0, now + early), 429, "{} before {:?}", text, wait);
        }
    }

    #[test]
    fn remaining_is_what_is_then_served(at in arrivals(), which in 0..QUOTAS.len()) {
        let mut machine = machine(&format!("{},hint=reset-delta", QUOTAS[which]));
        let mut last = None;
        for now in &at {
            last = Some((*now, hit(&mut machine, *now, Facts::get("/"))));
        }
        let (now, answer) = last.unwrap();
        let number = |name| header(&answer, name).unwrap().parse::<u64>().unwrap();
        let (limit, remaining) = (number("x-ratelimit-limit"), number("x-ratelimit-remaining"));
        prop_assert!(remaining <= limit);
        for _ in 0..remaining {
            prop_assert_eq!(status(&mut machine, now), 200);
        }
        prop_assert_eq!(status(&mut machine, now), 429);
    }

    #[test]
    fn all_of_the_limit_is_there_after_the_reset(at in arrivals(), which in 0..QUOTAS.len()) {
        let mut machine = machine(&format!("{},hint=draft-3", QUOTAS[which]));
        let mut last = None;
        for now in &at {
            last = Some((*now, hit(&mut machine, *now, Facts::get("/"))));
        }
        let (now, answer) = last.unwrap();
        let limit: u64 = header(&answer, "ratelimit-limit").unwrap().split(',').next().unwrap().parse().unwrap();
        let reset: u64 = header(&answer, "ratelimit-reset").unwrap().parse().unwrap();
        for _ in 0..limit {
            prop_assert_eq!(status(&mut machine, now + Duration::from_secs(reset)), 200, "{}", QUOTAS[which]);
        }
    }

    #[test]
    fn no_window_of_a_sliding_log_serves_more_than_its_limit(at in arrivals(), counted: bool) {
        let rejected = if counted { ",rejected=count" } else { "" };
        let mut machine = machine(&format!("sliding-log:limit=7/300ms{rejected}"));
        let served: Vec<Duration> = at.into_iter().filter(|now| status(&mut machine, *now) == 200).collect();
        for stretch in served.windows(8) {
            prop_assert!(stretch[7] - stretch[0] >= ms(300));
        }
    }

    #[test]
    fn no_window_of_a_cost_log_serves_more_than_its_limit(at in arrivals(), costs in prop::collection::vec(1u32..9, 40)) {
        let mut machine = machine("cost-log:limit=12/300ms");
        let mut served: Vec<(Duration, u32)> = Vec::new();
        for (now, cost) in at.into_iter().zip(costs.into_iter().cycle()) {
            let path = format!("/?a=b&cost={cost}");
            let answer = machine.arrive(now, &Facts::get(&path));
            let within = served.iter().filter(|(then, _)| now - *then < ms(300));
            let sum = cost + within.map(|(_, cost)| cost).sum::<u32>();
            prop_assert_eq!(answer.status == 200, sum <= 12, "{} at {:?}", sum, now);
            if answer.status == 200 {
                served.push((now, cost));
            }
        }
    }

    #[test]
    fn a_bucket_never_gives_more_than_burst_and_flow(at in arrivals()) {
        let mut machine = machine("token-bucket:rate=20/s,burst=10");
        let served: Vec<Duration> = at.into_iter().filter(|now| status(&mut machine, *now) == 200).collect();
        for first in 0..served.len() {
            for last in first..served.len() {
                let flow = (served[last] - served[first]).as_nanos() * 20 / 1_000_000_000;
                prop_assert!((last - first + 1) as u128 <= 10 + flow);
            }
        }
    }

    #[test]
    fn gcra_and_the_token_bucket_are_one_limit(at in arrivals(), burst in 1..15_u32, counted: bool) {
        let rejected = if counted { ",rejected=count" } else { "" };
        let mut bucket = machine(&format!("token-bucket:rate=20/s,burst={burst},hint=draft-7{rejected}"));
        let mut gcra = machine(&format!("gcra:rate=20/s,burst={burst},hint=draft-7{rejected}"));
        for now in at {
            let (one, other) = (hit(&mut bucket, now, Facts::get("/")), hit(&mut gcra, now, Facts::get("/")));
            prop_assert_eq!((one.status, one.wait), (other.status, other.wait));
            prop_assert_eq!(one.headers, other.headers);
        }
    }

    #[test]
    fn no_machine_panics_and_every_refusal_is_accounted_for(at in arrivals(), which in 0..64_usize) {
        let examples: Vec<_> = Spec::all_examples().collect();
        let (example, spec) = &examples[which % examples.len()];
        let mut machine = spec.build(EPOCH);
        for (n, now) in at.into_iter().enumerate() {
            let path = ["/", "/shut/1", "/a/b?c"][n % 3];
            let answer = hit(&mut machine, now, Facts::get(path).account("Bearer a"));
            let refused = answer.verdict == Verdict::Refused;
            prop_assert_eq!(refused, answer.refused_by.is_some(), "{}", example.name);
            prop_assert!(answer.refused_by.is_none_or(|by| answer.scopes.contains(&by)));
            prop_assert_eq!(answer.verdict == Verdict::Served, answer.status == 200
                && !matches!(answer.verdict, Verdict::Fault(_)));
            // A wait that is told and no lie is never shorter than the truth.
            if let (Some(told), Some(wait), false) = (answer.told, answer.wait, example.name.starts_with("lying")) {
                prop_assert!(told >= wait, "{}: {:?} for {:?}", example.name, told, wait);
                prop_assert!(told <= wait + Duration::from_secs(2), "{}: {:?} for {:?}", example.name, told, wait);
            }
        }
    }
}

#[test]
fn an_overdriven_bucket_gives_exactly_burst_and_flow() {
    for (text, seconds, expected) in [
        ("token-bucket:rate=5/s,burst=10", 60, 10 + 5 * 60 - 1), // the last token falls due at the end itself
        ("token-bucket:rate=50/s,burst=1", 10, 1 + 50 * 10 - 1),
        ("gcra:rate=5/s,burst=10", 60, 10 + 5 * 60 - 1),
        ("token-bucket:rate=7/3s,burst=4", 30, 4 + 70 - 1),
    ] {
        let count = served(&mut machine(text), Duration::ZERO, Duration::from_secs(seconds), ms(1));
        assert_eq!(count, expected, "{text}");
    }
}

#[test]
fn a_bucket_that_counts_the_rejected_gives_nothing_to_who_keeps_knocking() {
    let mut machine = machine("token-bucket:rate=5/s,burst=10,rejected=count");
    assert_eq!(served(&mut machine, Duration::ZERO, Duration::from_secs(60), ms(10)), 10);
    // Its debt has a floor: two bursts' worth of time heal it whatever was sent.
    assert_eq!(status(&mut machine, Duration::from_secs(60) + ms(2_200)), 200);
}

#[test]
fn a_fixed_window_turns_over_at_multiples_of_the_clock() {
    let mut machine = machine("fixed-window:limit=20/10s");
    // EPOCH is 3.25 s after such a multiple.
    let edge = ms(6_750);
    assert_eq!(served(&mut machine, Duration::ZERO, edge, ms(50)), 20);
    assert_eq!(status(&mut machine, edge - Duration::from_nanos(1)), 429);
    assert_eq!(served(&mut machine, edge, edge + ms(10_000), ms(50)), 20);
    // All of it at once, at both sides of an edge: the burst that fixed windows are known for.
    let edge = edge + ms(20_000);
    let near = served(&mut machine, edge - ms(100), edge + ms(100), ms(1));
    assert_eq!(near, 40);
}

#[test]
fn a_window_from_the_first_request_begins_with_it() {
    let mut machine = machine("fixed-window:limit=2/10s,phase=first-request");
    for (at, expected) in
        [(3_000, 200), (12_000, 200), (12_999, 429), (13_000, 200), (22_999, 200), (23_000, 200)]
    {
        assert_eq!(status(&mut machine, ms(at)), expected, "{at}");
    }
}

#[test]
fn a_sliding_counter_is_soft_and_right_in_the_long_run() {
    let mut machine = machine("sliding-counter:limit=100/10s");
    let count = served(&mut machine, Duration::ZERO, Duration::from_secs(1000), ms(20));
    assert!((9_000..=10_200).contains(&count), "{count}");
}

#[test]
fn a_penalty_grows_with_every_knock_and_ends_with_silence() {
    let mut machine = machine("token-bucket:rate=10/s,burst=1,penalty=2s,hint=ms");
    assert_eq!(status(&mut machine, ms(0)), 200);
    assert_eq!(status(&mut machine, ms(10)), 429);
    // The bucket has long been full again: only the box keeps it shut, and each knock starts it anew.
    for at in [1_000, 2_500, 4_400] {
        let answer = hit(&mut machine, ms(at), Facts::get("/"));
        assert_eq!((answer.status, header(&answer, "retry-after-ms")), (429, Some("2000")), "{at}");
    }
    assert_eq!(status(&mut machine, ms(6_400)), 200);
}

#[test]
fn a_penalty_may_be_longer_for_whoever_comes_early() {
    let mut machine = machine("token-bucket:rate=10/s,burst=1,penalty=30s/60s,hint=seconds");
    assert_eq!(status(&mut machine, ms(0)), 200);
    for (at, told) in [(10, "30"), (29_000, "60"), (31_000, "60")] {
        let answer = hit(&mut machine, ms(at), Facts::get("/"));
        assert_eq!((answer.status, header(&answer, "retry-after")), (429, Some(told)), "{at}");
    }
    assert_eq!(status(&mut machine, ms(90_999)), 429);
    assert_eq!(status(&mut machine, ms(150_999)), 200);
}

#[test]
fn three_refusals_bring_a_ban_that_does_not_say_how_long() {
    let mut machine = machine("token-bucket:rate=1/s,burst=1,ban=3/10s/60s,hint=seconds,hint=draft-7");
    assert_eq!(status(&mut machine, ms(0)), 200);
    for at in [1, 2, 3] {
        assert_eq!(status(&mut machine, ms(at)), 429);
    }
    let banned = hit(&mut machine, ms(30_000), Facts::get("/"));
    assert_eq!((banned.status, banned.told, header(&banned, "retry-after")), (403, None, None));
    assert_eq!(header(&banned, "ratelimit"), None);
    assert_eq!(banned.wait, Some(ms(30_003)), "counted from the third refusal, not from the knocks inside");
    assert_eq!(status(&mut machine, ms(60_002)), 403);
    assert_eq!(status(&mut machine, ms(60_003)), 200);
}

#[test]
fn a_ban_wipes_the_slate() {
    let mut machine = machine("fixed-window:limit=1/1h,phase=first-request,ban=3/100s/5s");
    let seen = [0, 1, 2, 3, 4, 5_002, 5_003, 5_004, 5_005, 5_006].map(|at| status(&mut machine, ms(at)));
    assert_eq!(seen, [200, 429, 429, 429, 403, 403, 429, 429, 429, 403]);
}

#[test]
fn refusals_far_apart_bring_no_ban() {
    let mut machine = machine("token-bucket:rate=1/s,burst=1,ban=3/10s/60s");
    for second in 0..20 {
        assert_eq!(status(&mut machine, ms(second * 6_000)), 200);
        assert_eq!(status(&mut machine, ms(second * 6_000 + 1)), 429, "{second}");
    }
}

#[test]
fn a_cap_on_requests_in_flight_cares_for_nothing_else() {
    let mut machine = machine("concurrency:max=2,wait=3s,hint=seconds");
    let request = Facts::get("/");
    let first = machine.arrive(ms(0), &request);
    let second = machine.arrive(ms(0), &request);
    let third = machine.arrive(ms(0), &request);
    assert_eq!([first.status, second.status, third.status], [200, 200, 429]);
    assert_eq!(header(&third, "retry-after"), Some("3"));
    machine.depart(ms(1), &request, &third);
    assert_eq!(machine.arrive(ms(1), &request).status, 429, "a refused request holds no slot");
    machine.depart(ms(2), &request, &first);
    assert_eq!(machine.arrive(ms(2), &request).status, 200);
    for at in 3..1_000 {
        machine.depart(ms(at), &request, &second);
        assert_eq!(machine.arrive(ms(at), &request).status, 200);
    }
}

#[test]
fn both_windows_hold_at_once_and_a_refusal_counts_in_neither() {
    let mut machine = machine(
        "fixed-window:limit=2/1s,phase=first-request + fixed-window:limit=5/10s,phase=first-request,hint=structured",
    );
    let mut seen = Vec::new();
    for at in [0, 10, 20, 1_000, 1_010, 1_020, 2_000, 2_010, 9_999, 10_000] {
        seen.push(status(&mut machine, ms(at)));
    }
    assert_eq!(seen, [200, 200, 429, 200, 200, 429, 200, 429, 429, 200]);
    let answer = hit(&mut machine, ms(10_500), Facts::get("/"));
    assert_ne!(
        answer.scopes[0], answer.scopes[1],
        "two rules are two counters, also where they count the same"
    );
    assert_eq!(header(&answer, "ratelimit"), Some("\"limit-1\";r=0;t=1, \"limit-2\";r=3;t=10"));
    assert_eq!(header(&answer, "ratelimit-policy"), Some("\"limit-1\";q=2;w=1, \"limit-2\";q=5;w=10"));
}

#[test]
fn scopes_count_apart() {
    let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
    let get = Facts::get;
    for (scope, one, same, apart) in [
        ("scope=endpoint", get("/a/1"), get("/a/2?x"), get("/b/1")),
        ("scope=endpoint,match=/a/*,match=/b/*/c", get("/a/1"), get("/a/2/3"), get("/b/1/c")),
        ("scope=path", get("/a/1?x=1"), get("/a/1?x=2"), get("/a/2")),
        (
            "scope=account",
            get("/a").account("Bearer a"),
            get("/b").account("Bearer a"),
            get("/a").account("Bearer b"),
        ),
        ("scope=account", get("/a").account("Bearer a"), get("/b").account("Bearer a"), get("/a")),
        ("scope=client", get("/a"), get("/b"), get("/a").client(other)),
        (
            "scope=account,scope=client",
            get("/a").account("x"),
            get("/b").account("x"),
            get("/a").account("x").client(other),
        ),
        ("match=/a*", get("/a"), get("/ab"), get("/b")),
    ] {
        let mut machine = machine(&format!("fixed-window:limit=1/1h,{scope}"));
        assert_eq!(hit(&mut machine, ms(0), one).status, 200, "{scope}");
        assert_eq!(hit(&mut machine, ms(1), same).status, 429, "{scope}");
        assert_eq!(hit(&mut machine, ms(2), apart).status, 200, "{scope}");
    }
}

#[test]
fn only_a_few_urls_are_shut_for_a_day() {
    let mut machine = machine("sentence:match=/shut/*,hint=seconds");
    let first = hit(&mut machine, ms(500), Facts::get("/shut/1"));
    assert_eq!((first.status, header(&first, "retry-after")), (429, Some("86400")));
    assert_eq!(hit(&mut machine, ms(600), Facts::get("/free")).status, 200);
    let later = hit(&mut machine, ms(10_500), Facts::get("/shut/1"));
    assert_eq!(header(&later, "retry-after"), Some("86390"), "it runs from the first request");
    let second = hit(&mut machine, ms(10_500), Facts::get("/shut/2"));
    assert_eq!(header(&second, "retry-after"), Some("86400"));
    assert_eq!(hit(&mut machine, ms(500) + Duration::from_secs(86_400), Facts::get("/shut/1")).status, 200);
}

#[test]
fn maintenance_comes_and_goes() {
    let mut machine = machine("maintenance:from=1s,for=500ms,every=10s,hint=seconds");
    for (at, expected) in
        [(0, 200), (999, 200), (1_000, 503), (1_499, 503), (1_500, 200), (11_200, 503), (11_500, 200)]
    {
        assert_eq!(status(&mut machine, ms(at)), expected, "{at}");
    }
}

#[test]
fn a_brownout_grows_with_load_and_recovers() {
    let mut machine = machine("brownout:capacity=100/s,base=20ms,patience=500ms,seed=3");
    let calm = hit(&mut machine, ms(0), Facts::get("/"));
    assert_eq!((calm.status, calm.latency), (200, ms(20)));
    // Twice the capacity for five seconds.
    let answers: Vec<Answer> =
        (0..1_000).map(|n| hit(&mut machine, ms(1_000 + n * 5), Facts::get("/"))).collect();
    assert!(answers[60].latency > answers[10].latency && answers[10].latency > ms(20));
    let failed = |answers: &[Answer]| answers.iter().filter(|answer| answer.status >= 500).count();
    assert_eq!(failed(&answers[..90]), 0, "a short queue only slows");
    assert!(failed(&answers[800..]) > 60, "{}", failed(&answers[800..]));
    assert!(answers.iter().all(|answer| header(answer, "retry-after").is_none()));
    let after = hit(&mut machine, ms(6_000 + 2_500), Facts::get("/"));
    assert_eq!((after.status, after.latency), (200, ms(20)));
}

#[test]
fn faults_follow_the_seed() {
    let shares =
        Shares { reset: 0.02, bad_gateway: 0.05, truncated: 0.03, stalled: 0.01, ..Shares::default() };
    let run = |seed: u64| -> Vec<Verdict> {
        let mut machine = Spec::flaky(shares).seed(seed).build(EPOCH);
        (0..10_000).map(|n| hit(&mut machine, ms(n), Facts::get("/")).verdict).collect()
    };
    let verdicts = run(1);
    assert_eq!(verdicts, run(1));
    assert_ne!(verdicts, run(2));
    for (fault, share) in [
        (Fault::Reset, 0.02),
        (Fault::ErrorPage, 0.05),
        (Fault::Truncated, 0.03),
        (Fault::Stall(Duration::from_secs(30)), 0.01),
    ] {
        let seen = verdicts.iter().filter(|verdict| **verdict == Verdict::Fault(fault)).count() as f64;
        assert!((seen / 10_000.0 - share).abs() < 0.007, "{fault:?}: {seen}");
    }
}

#[test]
fn a_refusal_in_every_form() {
    // 3.25 s into a window of ten: 6.75 s are left.
    for (hint, expected, told) in [
        ("seconds", &[("retry-after", "7")][..], ms(7_000)),
        ("ms", &[("retry-after-ms", "6750")], ms(6_750)),
        ("http-date", &[("retry-after", "Tue, 14 Nov 2023 22:13:30 GMT")], ms(6_750)),
        ("reset-epoch", &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "1700000010")], ms(6_750)),
        ("reset-delta", &[("x-ratelimit-limit", "1"), ("x-ratelimit-reset", "7")], ms(7_000)),
        (
            "draft-3",
            &[("ratelimit-limit", "1, 1;w=10"), ("ratelimit-remaining", "0"), ("ratelimit-reset", "7")],
            ms(7_000),
        ),
        (
            "draft-7",
            &[("ratelimit", "limit=1, remaining=0, reset=7"), ("ratelimit-policy", "1;w=10")],
            ms(7_000),
        ),
        (
            "structured",
            &[("ratelimit", "\"default\";r=0;t=7"), ("ratelimit-policy", "\"default\";q=1;w=10")],
            ms(7_000),
        ),
        // An instruction beats the reset of a budget.
        ("ms,hint=draft-7", &[("retry-after-ms", "6750"), ("ratelimit-policy", "1;w=10")], ms(6_750)),
    ] {
        let mut machine = machine(&format!("fixed-window:limit=1/10s,hint={hint}"));
        let _ = hit(&mut machine, ms(0), Facts::get("/"));
        let answer = hit(&mut machine, ms(0), Facts::get("/"));
        assert_eq!(answer.told, Some(told), "{hint}");
        assert_eq!(header(&answer, "date"), Some("Tue, 14 Nov 2023 22:13:23 GMT"));
        for (name, value) in expected {
            assert_eq!(header(&answer, name), Some(*value), "{hint}");
        }
    }
}

#[test]
fn a_moment_is_told_in_whole_seconds_and_never_too_early() {
    for (hint, expected) in [("http-date", "Tue, 14 Nov 2023 22:13:34 GMT"), ("reset-epoch", "1700000014")] {
        let mut machine = machine(&format!("fixed-window:limit=1/10s,phase=first-request,hint={hint}"));
        let _ = hit(&mut machine, ms(0), Facts::get("/"));
        let answer = hit(&mut machine, ms(0), Facts::get("/"));
        let value = header(&answer, "retry-after").or(header(&answer, "x-ratelimit-reset"));
        assert_eq!((value, answer.wait, answer.told), (Some(expected), Some(ms(10_000)), Some(ms(10_750))));
    }
}

#[test]
fn an_empty_budget_is_told_with_the_last_success() {
    let mut machine = machine("fixed-window:limit=2/10s,hint=draft-7");
    let first = hit(&mut machine, ms(0), Facts::get("/"));
    let last = hit(&mut machine, ms(0), Facts::get("/"));
    assert_eq!((first.told, last.status, last.told), (None, 200, Some(ms(7_000))));
}

#[test]
fn a_wrong_clock_is_wrong_in_date_and_hint_alike() {
    for (skew, date, until) in [
        ("1h", "Tue, 14 Nov 2023 23:13:23 GMT", "Tue, 14 Nov 2023 23:13:30 GMT"),
        ("-1h", "Tue, 14 Nov 2023 21:13:23 GMT", "Tue, 14 Nov 2023 21:13:30 GMT"),
    ] {
        let mut machine = machine(&format!("fixed-window:limit=1/10s,hint=http-date,skew={skew}"));
        let _ = hit(&mut machine, ms(0), Facts::get("/"));
        let answer = hit(&mut machine, ms(0), Facts::get("/"));
        assert_eq!((header(&answer, "date"), header(&answer, "retry-after")), (Some(date), Some(until)));
        assert_eq!((answer.wait, answer.told), (Some(ms(6_750)), Some(ms(6_750))));
    }
}

#[test]
fn a_lie_changes_what_is_told_and_not_what_is_true() {
    for (factor, told) in [("0.5", "5"), ("3", "30"), ("0", "0")] {
        let mut machine =
            machine(&format!("fixed-window:limit=1/10s,phase=first-request,hint=seconds,lie={factor}"));
        let _ = hit(&mut machine, ms(0), Facts::get("/"));
        let answer = hit(&mut machine, ms(0), Facts::get("/"));
        assert_eq!((header(&answer, "retry-after"), answer.wait), (Some(told), Some(ms(10_000))));
        assert_eq!(status(&mut machine, ms(9_999)), 429);
        assert_eq!(status(&mut machine, ms(10_000)), 200);
    }
}

#[test]
fn a_builder_and_its_text_are_one_machine() {
    let built = Spec::token_bucket(Rate::per_second(5), 10).penalty(ms(2_000)).status(503);
    assert_eq!(built.to_string(), "token-bucket:rate=5/s,burst=10,penalty=2s,status=503");
    assert_eq!(built.to_string().parse(), Ok(built));
}

//! What must hold for anything that a server may send (H1, H3, K4).

use std::time::Duration;

use forbear_core::{
    hint::{self, Profile, Reading, Response, TOO_LONG, value},
    time::Timestamp,
};
use http::{HeaderMap, HeaderName, HeaderValue};
use proptest::prelude::*;

/// 29 November 2026, 13:00:00 UTC.
const NOW: Timestamp = Timestamp::from_secs(1_795_957_200);

fn map(headers: &[(String, Vec<u8>)]) -> HeaderMap {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_bytes(value))
        {
            map.append(name, value);
        }
    }
    map
}

fn read(
    status: u16,
    headers: &[(String, Vec<u8>)],
    body: Option<&[u8]>,
    profile: Option<&Profile>,
) -> Reading {
    hint::read(&Response { status, headers: &map(headers), body }, profile, NOW)
}

fn retry_after(values: &[&str]) -> Option<Duration> {
    let headers: Vec<_> = values.iter().map(|v| ("retry-after".to_owned(), v.as_bytes().to_vec())).collect();
    read(429, &headers, None, None).wait
}

/// Names that are looked at, and some that nearly are.
fn name() -> impl Strategy<Value = String> {
    prop_oneof![
        prop::sample::select(vec![
            "retry-after",
            "retry-after-ms",
            "x-amz-retry-after",
            "ratelimit",
            "ratelimit-policy",
            "ratelimit-limit",
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "x-ratelimit-reset-after",
            "x-ratelimit",
            "x-ratelimit-limit-tokens",
            "x-ratelimit-remaining-tokens",
            "x-ratelimit-reset-tokens",
            "date",
            "age",
            "content-type",
            "grpc-status",
            "grpc-retry-pushback-ms",
            "x-should-retry",
            "proxy-status",
            "x-app-rate-limit",
            "x-app-rate-limit-count",
            "x-sentry-rate-limits",
            "sforce-limit-info",
            "x-business-use-case-usage",
            "auth0-client-quota-limit",
            "x-shopify-shop-api-call-limit",
        ])
        .prop_map(str::to_owned),
        "[a-z-]{0,8}(ratelimit|rate-limit|retry)[a-z-]{0,16}",
    ]
}

fn header_value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        "[0-9]{1,25}(\\.[0-9]{0,30})?".prop_map(String::into_bytes),
        "([a-z\"]{0,3}[=;,: ]{0,2}[0-9]{0,4}){0,12}".prop_map(String::into_bytes),
        "(Sun|Sunday)?,? ?[0-9]{0,3}[ -](Nov|Feb)[ -][0-9]{1,5} [0-9]{2}:[0-9]{2}:[0-9]{2} ?[A-Za-z+0-9-]{0,6}"
            .prop_map(String::into_bytes),
        "[0-9]{4}-?[0-9]{2}-?[0-9]{2}[T ][0-9:.]{0,14}(Z|[+-][0-9:]{0,5})?".prop_map(String::into_bytes),
        "([0-9.]{1,4}(h|m|s|ms|us|ns)){0,4}".prop_map(String::into_bytes),
    ]
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(any::<u8>(), 0..200),
        "[\\[{]([{}\\[\\],: ]|\"(error|code|retry_after|status|details)\"|[0-9]{1,3}|true|\\\\|\"){0,60}"
            .prop_map(String::into_bytes),
    ]
}

proptest! {
    #[test]
    fn k4_nothing_that_a_server_sends_panics_or_waits_for_ever(
        status in 100..1000_u16,
        headers in prop::collection::vec((name(), header_value()), 0..12),
        body in prop::option::of(body()),
        profile in 0..=Profile::all().len(),
    ) {
        let got = read(status, &headers, body.as_deref(), Profile::all().get(profile));
        prop_assert!(got.wait.is_none_or(|w| w <= TOO_LONG));
        prop_assert!(got.limited || got.wait.is_none(), "a wait without a limit");
        prop_assert_eq!(got.wait.is_some(), got.wait_from.is_some());
        prop_assert!(got.limited || got.scope_hint.is_none());
        prop_assert!(!got.limited || got.kind != hint::Kind::None);
        prop_assert!(got.budget.is_none_or(|b| b.remaining.is_none_or(|r| r >= 0.0)));
        prop_assert!(got.evidence.value().len() <= hint::VALUE_MAX && got.evidence.field().len() <= hint::VALUE_MAX);
    }

    #[test]
    fn h1_whole_seconds_are_that_many(s in 0..100_000_000_u64) {
        prop_assert_eq!(retry_after(&[&s.to_string()]), Some(Duration::from_secs(s)));
    }

    #[test]
    fn h1_digits_and_junk_are_no_hint(s in "[0-9]{1,12}", junk in "[a-gi-lo-rt-z_%#!&]{1,6}") {
        prop_assert_eq!(retry_after(&[&format!("{s}{junk}")]), None);
        prop_assert_eq!(retry_after(&[&format!("{junk}{s}")]), None);
        prop_assert_eq!(retry_after(&[&format!("-{s}")]), None);
    }

    #[test]
    fn h1_words_are_no_hint(words in "[a-zA-Z]{1,12}( [a-zA-Z]{1,12}){0,3}") {
        prop_assert_eq!(retry_after(&[&words]), None);
    }

    #[test]
    fn h2_another_longer_instruction_never_shortens_a_wait(a in header_value(), b in header_value()) {
        let told = |values: &[&Vec<u8>]| {
            let headers: Vec<_> = values.iter().map(|v| ("retry-after".to_owned(), (*v).clone())).collect();
            read(429, &headers, None, None).wait
        };
        prop_assert_eq!(told(&[&a, &b]), told(&[&a]).max(told(&[&b])));
    }

    #[test]
    fn h1_the_wait_grows_with_the_number(a in "[1-9][0-9]{0,7}", b in "[1-9]([0-9]{0,7}|[0-9]{13,400})") {
        // Numbers of ten to thirteen digits may be moments; the others may not, and the longer is the larger.
        let longer_is_larger = a.len() < b.len() || (a.len() == b.len() && a <= b);
        let (smaller, larger) = if longer_is_larger { (a, b) } else { (b, a) };
        prop_assert!(retry_after(&[&smaller]) <= retry_after(&[&larger]));
    }

    #[test]
    fn h3_a_wrong_clock_of_ours_changes_no_date(
        skew in 0..200_000_000_u64, ahead in any::<bool>(), wait in 0..10_000_u64,
    ) {
        let served = Timestamp::from_secs(1_795_957_200);
        let (skew, until) = (Duration::from_secs(skew), served.plus(Duration::from_secs(wait)));
        let now = if ahead { served.plus(skew) } else { served.minus(skew) };
        let date = |at: Timestamp| {
            let text = httpdate::fmt_http_date(std::time::UNIX_EPOCH + Duration::from_micros(at.as_micros()));
            text.into_bytes()
        };
        let headers =
            map(&[("date".to_owned(), date(served)), ("retry-after".to_owned(), date(until))]);
        let got = hint::read(&Response { status: 429, headers: &headers, body: None }, None, now);
        prop_assert_eq!(got.wait, Some(Duration::from_secs(wait)));
    }

    #[test]
    fn h1_the_three_forms_of_a_date_are_one_moment(s in 1_795_957_200..2_500_000_000_u64) {
        let at = std::time::UNIX_EPOCH + Duration::from_secs(s);
        let imf = httpdate::fmt_http_date(at);
        let clock = value::Clock::local(NOW);
        let (day, month, year, time) = (&imf[5..7], &imf[8..11], &imf[12..16], &imf[17..25]);
        let expected = Some(Duration::from_secs(s - 1_795_957_200));
        for text in [
            imf.clone(),
            format!("Sunday, {day}-{month}-{} {time} GMT", &year[2..]),
            format!("Sun {month} {day} {time} {year}"),
            imf.to_lowercase(),
        ] {
            prop_assert_eq!(value::retry_after(text.as_bytes(), &clock), expected, "{}", text);
        }
    }

    #[test]
    fn h4_a_spent_budget_on_a_success_closes_until_its_reset(limit in 1..9999_u32, reset in 1..86_400_u64) {
        let header = |name: &str, value: String| (format!("x-ratelimit-{name}"), value.into_bytes());
        let headers = |left: u32| [
            header("limit", limit.to_string()),
            header("remaining", left.to_string()),
            header("reset", reset.to_string()),
        ];
        let spent = read(200, &headers(0), None, None);
        prop_assert!(spent.limited);
        prop_assert_eq!(spent.wait, Some(Duration::from_secs(reset)));
        prop_assert_eq!(spent.should_retry, None);
        let left = read(200, &headers(1), None, None);
        prop_assert!(!left.limited);
        prop_assert_eq!(left.budget.and_then(|b| b.reset_after), Some(Duration::from_secs(reset)));
    }

    #[test]
    fn h5_no_credential_is_kept(secret in "[A-Za-z0-9]{24,48}", place in 0..5_usize) {
        prop_assume!(secret.bytes().filter(u8::is_ascii_digit).count() >= 3);
        prop_assume!(secret.bytes().filter(u8::is_ascii_alphabetic).count() >= 6);
        let value = match place {
            0 => secret.clone(),
            1 => format!("Bearer {secret}"),
            2 => format!("60;key={secret}"),
            3 => format!("https://user:{secret}@example.com/"),
            _ => format!("{}{secret}", "1 ".repeat(50)),
        };
        let got = read(429, &[("retry-after".to_owned(), value.into_bytes())], None, None);
        prop_assert!(!got.evidence.value().contains(&secret[..8]), "{}", got.evidence.value());
    }
}

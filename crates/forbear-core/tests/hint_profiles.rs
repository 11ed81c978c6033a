//! What single services say in their own words, beyond the recorded cases (H2).

use std::time::Duration;

use forbear_core::{
    hint::{self, Profile, Response, value},
    time::Timestamp,
};
use http::{HeaderMap, HeaderName, HeaderValue};

/// 29 November 2026, 13:00:00 UTC.
const NOW: Timestamp = Timestamp::from_secs(1_795_957_200);

/// `kind scope wait retry`, or `-` where it does not limit; `?` for what is not told.
fn told(service: &str, status: u16, headers: &[(&str, &str)], body: &str) -> String {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(HeaderName::from_bytes(name.as_bytes()).unwrap(), HeaderValue::from_str(value).unwrap());
    }
    let profile = Profile::by_name(service);
    assert!(profile.is_some() || service.is_empty(), "no profile {service}");
    let body = Some(body.as_bytes()).filter(|b| !b.is_empty());
    let got = hint::read(&Response { status, headers: &map, body }, profile, NOW);
    if !got.limited {
        return format!("- {}", got.kind.as_str());
    }
    let wait = got.wait.map_or("?".to_owned(), |w| w.as_secs_f64().to_string());
    let retry = got.should_retry.map_or("?", |r| if r { "yes" } else { "no" });
    format!("{} {} {wait} {retry}", got.kind.as_str(), got.scope_hint.map_or("?", |s| s.as_str()))
}

#[test]
fn h2_services_in_their_own_words() {
    let monthly = r#"{"title":"UsageCapExceeded","period":"Monthly","scope":"Product"}"#;
    let rl = |hourly: &'static str, daily: &'static str| {
        [
            ("x-rl-hourly-remaining", hourly),
            ("x-rl-hourly-reset", "2026-11-29T14:00:00+00:00"),
            ("x-rl-daily-remaining", daily),
            ("x-rl-daily-reset", "2026-11-30T00:00:00+00:00"),
        ]
    };
    for (service, status, headers, body, expected) in [
        (
            "anthropic",
            529,
            &[][..],
            r#"{"type":"error","error":{"type":"overloaded_error"}}"#,
            "overload service ? yes",
        ),
        (
            "openai",
            429,
            &[("retry-after", "20")],
            r#"{"error":{"code":"insufficient_quota"}}"#,
            "quota account 20 yes",
        ),
        ("aws", 503, &[], "<Error><Code>SlowDown</Code></Error>", "rate_limit ? ? yes"),
        ("aws", 400, &[], r#"{"__type":"ThrottlingException"}"#, "rate_limit ? ? yes"),
        ("aws", 400, &[], r#"{"__type":"ValidationException"}"#, "- none"),
        ("aws", 400, &[("x-amzn-errortype", "ThrottlingException:http://x/")], "", "rate_limit ? ? yes"),
        (
            "apigee",
            500,
            &[],
            r#"{"fault":{"detail":{"errorcode":"policies.ratelimit.QuotaViolation"}}}"#,
            "quota ? ? no",
        ),
        (
            "mashery",
            403,
            &[("x-mashery-error-code", "ERR_403_DEVELOPER_OVER_QPS")],
            "",
            "rate_limit app ? yes",
        ),
        ("twitter", 429, &[], monthly, "quota app ? no"),
        ("meta", 200, &[("x-app-usage", r#"{"call_count":100}"#)], "", "rate_limit app ? ?"),
        ("meta", 200, &[("x-app-usage", r#"{"call_count":99}"#)], "", "- none"),
        ("sentry", 200, &[("x-sentry-rate-limits", "60:error:organization")], "", "rate_limit account 60 ?"),
        ("stackexchange", 200, &[], r#"{"items":[],"backoff":10}"#, "rate_limit endpoint 10 ?"),
        ("stackexchange", 200, &[], r#"{"quota_max":300,"quota_remaining":0}"#, "quota ip ? ?"),
        (
            "wikimedia",
            200,
            &[("retry-after", "5")],
            r#"{"error":{"code":"maxlag"}}"#,
            "overload service 5 yes",
        ),
        ("nexusmods", 200, &rl("0", "7"), "", "- none"),
        ("nexusmods", 200, &rl("7", "0"), "", "- none"),
        ("nexusmods", 429, &rl("0", "0"), "", "rate_limit account 3600 yes"),
        (
            "riot",
            200,
            &[("x-app-rate-limit", "20:1"), ("x-app-rate-limit-count", "20:1")],
            "",
            "rate_limit app ? ?",
        ),
        ("marketo", 200, &[], r#"{"success":false,"errors":[{"code":"615"}]}"#, "concurrency account ? yes"),
        ("bigcommerce", 429, &[("x-rate-limit-time-reset-ms", "1500")], "", "rate_limit account 1.5 yes"),
        ("salesforce", 200, &[("sforce-limit-info", "api-usage=5000/5000")], "", "quota account ? ?"),
        ("cloudflare", 403, &[("retry-after", "60")], "<title>Error 1020</title>", "blocked ? 60 yes"),
        ("linkedin", 999, &[], "", "- blocked"),
        ("slack", 200, &[], r#"{"ok":false,"error":"invalid_auth"}"#, "- auth"),
        (
            "github",
            403,
            &[],
            r#"{"message":"API rate limit exceeded for 192.0.2.1."}"#,
            "rate_limit ip ? yes",
        ),
        ("github", 404, &[], "secondary rate limit", "- none"),
        // A success of a service that refuses by status is the caller's own data.
        ("openai", 200, &[], r#"{"error":{"code":"insufficient_quota"}}"#, "- none"),
    ] {
        assert_eq!(told(service, status, headers, body), expected, "{service} {status} {headers:?} {body}");
    }
}

#[test]
fn h2_general_rules_at_their_edges() {
    let spent = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")];
    for (status, headers, body, expected) in [
        // On a served response an instruction is about one resource, so the budget's reset counts.
        (202, &[spent[0], spent[1], ("retry-after", "2")][..], "", "rate_limit ? 60 ?"),
        (202, &[spent[0], ("retry-after", "2")], "", "rate_limit ? 2 ?"),
        (404, &spent, "", "rate_limit ? 60 ?"),
        (403, &spent, "", "rate_limit ? 60 yes"),
        (500, &spent, "", "rate_limit ? 60 yes"),
        (503, &spent, "", "overload service 60 yes"),
        (200, &[spent[0], ("x-ratelimit-reset", "0")], "", "- none"),
        (200, &[("x-ratelimit-remaining", "-1"), spent[1]], "", "- none"),
        (403, &[("retry-after", "30")], "", "rate_limit ? 30 yes"),
        (403, &[("retry-after", "soon")], "", "- none"),
        (418, &[("retry-after", "0")], "", "rate_limit ? 0 yes"),
        (500, &[], r#"{"retry_after":5}"#, "overload ? 5 yes"),
        (429, &[], r#"{"job":{"retry_after":5}}"#, "rate_limit ? ? yes"),
        (429, &[], r#"{"error":{"retry_after_ms":1500}}"#, "rate_limit ? 1.5 yes"),
        (429, &[("retry-after", "1")], r#"{"retry_after":0.4}"#, "rate_limit ? 0.4 yes"),
        (429, &[("retry-after", "0")], r#"{"retry_after":4}"#, "rate_limit ? 4 yes"),
        (429, &[("retry-after", "60"), ("retry-after-ms", "120")], "", "rate_limit ? 60 yes"),
        (429, &[("retry-after", "2"), ("retry-after-ms", "1500")], "", "rate_limit ? 1.5 yes"),
        (429, &[("retry-after", "2"), ("retry-after", "6")], "", "rate_limit ? 6 yes"),
        (400, &[], r#"{"error":{"code":"rate_limit_exceeded"}}"#, "rate_limit ? ? yes"),
        (422, &[], r#"{"error":{"code":"rate_limit_exceeded"}}"#, "- none"),
        (429, &[], r#"{"error":{"code":"too_many_concurrent_requests"}}"#, "concurrency ? ? yes"),
        (
            429,
            &[("ratelimit", "\"c\";r=0"), ("ratelimit-policy", "\"c\";q=5;qu=\"concurrent-requests\"")],
            "",
            "concurrency ? ? yes",
        ),
        (511, &[("retry-after", "5")], "", "- auth"),
        (405, &[("x-amzn-waf-action", "captcha")], "", "- challenge"),
        (529, &[], "", "overload service ? yes"),
    ] {
        assert_eq!(told("", status, headers, body), expected, "{status} {headers:?} {body}");
    }
}

#[test]
fn h3_age_is_added_to_the_date() {
    let mut headers = HeaderMap::new();
    headers.insert("date", HeaderValue::from_static("Sun, 29 Nov 2026 10:00:00 GMT"));
    headers.insert("age", HeaderValue::from_static("100"));
    headers.insert("retry-after", HeaderValue::from_static("Sun, 29 Nov 2026 10:02:00 GMT"));
    let got = hint::read(&Response { status: 429, headers: &headers, body: None }, None, NOW);
    assert_eq!(got.wait, Some(Duration::from_secs(20)));
    assert_eq!(got.wait_from, Some(hint::WaitSource::Instruction));
    assert_eq!(got.evidence.field(), "retry-after");
    assert_eq!(got.evidence.value(), "Sun, 29 Nov 2026 10:02:00 GMT");
}

#[test]
fn h5_the_raw_value_is_kept_where_it_is_no_hint() {
    for (status, value, reason) in [
        (429, "soon", "not readable, so no hint"),
        (301, "60", "on this status it is about one request, no hold for the scope"),
    ] {
        let mut headers = HeaderMap::new();
        headers.insert("retry-after", HeaderValue::from_static(value));
        let got = hint::read(&Response { status, headers: &headers, body: None }, None, NOW);
        assert_eq!((got.wait, got.evidence.value(), got.evidence.reason()), (None, value, reason));
    }
}

#[test]
fn h1_numbers_too_large_are_long_and_not_junk() {
    let clock = value::Clock::local(NOW);
    for digits in [10, 19, 20, 400, 4096] {
        assert_eq!(
            value::retry_after("9".repeat(digits).as_bytes(), &clock),
            Some(hint::TOO_LONG),
            "{digits}"
        );
    }
    // A number that is no header's length any more is not looked at.
    assert_eq!(value::retry_after("9".repeat(4097).as_bytes(), &clock), None);
}

//! Records: the exact line, whatever is in it.

use std::{collections::BTreeSet, time::Duration};

use base64::Engine as _;
use forbear::{
    config::SecretNames,
    exit::{ExitSecrets, ExitUrl},
    input::{Line, parse_line},
    record::{BodyField, ItemId, Outcome, Record, rfc3339, write_listed},
    secrets::{Redactor, SECRET_QUERY},
};
use forbear_core::time::Timestamp;
use forbear_store::queue::{
    Counters, Request, Seq, Until,
    inspect::{Listed, State},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use proptest::prelude::*;
use serde_json::Value;

const PAGE: &str = include_str!("../../../docs/reference/records.md");
const INPUT_PAGE: &str = include_str!("../../../docs/reference/input.md");

fn redactor() -> Redactor {
    Redactor::new(&SecretNames::default())
}

fn line(record: &Record<'_>) -> String {
    let mut out = Vec::new();
    record.write(&redactor(), &mut out);
    String::from_utf8(out).expect("UTF-8")
}

fn parsed(record: &Record<'_>) -> Value {
    serde_json::from_str(&line(record)).expect("JSON")
}

fn bare(outcome: Outcome) -> Record<'static> {
    Record::new(ItemId::Line(1), "http://h/", outcome)
}

/// The names in the first column of a page's tables, in order.
fn documented(page: &str) -> Vec<&str> {
    page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect()
}

fn headers(list: &[(HeaderName, &[u8])]) -> HeaderMap {
    let mut headers = HeaderMap::new();
    for (name, value) in list {
        headers.append(name, HeaderValue::from_bytes(value).expect("a value"));
    }
    headers
}

#[test]
fn k1_what_a_proxy_repeats_of_its_password_is_cut_out() {
    let exit = ExitUrl::parse("http://me:S3cr3t%2Fp%FC@proxy.example:8080").unwrap();
    let secrets = ExitSecrets::of(&exit).unwrap();
    let head = headers(&[
        (header::VIA, b"proxy for me:S3cr3t/p\xfc"),
        (HeaderName::from_static("x-login"), b"S3cr3t%2fp%fc"),
        (HeaderName::from_static("x-seen"), b"bWU6UzNjcjN0L3D8"),
        (header::SERVER, b"nginx"),
    ]);
    let body = b"<p>S3cr3t/p\xfc is suspended</p>";
    let record = Record {
        exit: Some("http://proxy.example:8080"),
        final_url: Some("http://h/?login=S3cr3t/p%FC"),
        headers: Some(&head),
        body: BodyField::Inline(body),
        error: Some("the exit says: S3cr3t%2Fp%FC is wrong"),
        reason: Some("S3cr3t%2Fp%FC"),
        ..bare(Outcome::Done)
    };
    let kept = parsed(&Record { exit_secrets: Some(&secrets), ..record });
    assert_eq!(kept["headers"]["via"], "proxy for me:***");
    assert_eq!((&kept["headers"]["x-login"], &kept["headers"]["x-seen"]), (&"***".into(), &"***".into()));
    assert_eq!((&kept["body"], &kept["reason"]), (&"<p>*** is suspended</p>".into(), &"***".into()));
    assert_eq!(kept["error"], "the exit says: *** is wrong");
    assert_eq!(
        (&kept["final_url"], &kept["headers"]["server"]),
        (&"http://h/?login=***".into(), &"nginx".into())
    );
    assert!(line(&record).contains("S3cr3t"), "without its secrets nobody could know");
}

#[test]
fn j2_the_documented_record_is_what_is_written() {
    let example =
        PAGE.split("```json\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let head = headers(&[
        (header::CONTENT_TYPE, b"application/json"),
        (header::SET_COOKIE, b"sid=1"),
        (header::VARY, b"accept"),
        (header::VARY, b"origin"),
    ]);
    let record = Record {
        status: Some(200),
        attempts: 1,
        limited: 2,
        waited: Duration::from_micros(3_021_900),
        exit: Some("direct"),
        final_url: Some("http://api.example.com/v2/items?page=2&api_key=s3cret"),
        headers: Some(&head),
        bytes: Some(13),
        body: BodyField::Inline(b"{\"items\":[7]}"),
        started_at: Some(Timestamp::from_micros(1_795_957_200_000_999)),
        finished_at: Some(Timestamp::from_micros(1_795_957_203_250_000)),
        ..Record::new(ItemId::Line(7), "http://api.example.com/items?page=2&api_key=s3cret", Outcome::Done)
    };
    assert_eq!(line(&record), example);
}

/// All fields there are, over three records, in the order of the page; and none that the page does not have.
#[test]
fn j2_fields_come_in_the_documented_order() {
    let fields = documented(PAGE);
    assert_eq!(fields.len(), 20);
    let head = HeaderMap::new();
    let at = Some(Timestamp::from_secs(1));
    let mut seen = BTreeSet::new();
    for body in [BodyField::Inline(b"x"), BodyField::Inline(b"\xff"), BodyField::File("b/1")] {
        let record = Record {
            cost: Some(3),
            exit: Some("direct"),
            final_url: Some("http://h/2"),
            headers: Some(&head),
            bytes: Some(1),
            body,
            error: Some("e"),
            reason: Some("r"),
            not_before: at,
            started_at: at,
            finished_at: at,
            ..bare(Outcome::Failed)
        };
        let text = line(&record);
        let places: Vec<_> =
            fields.iter().filter_map(|f| Some((text.find(&format!("\"{f}\":"))?, *f))).collect();
        assert!(places.is_sorted(), "{text}");
        assert_eq!(places.len(), parsed(&record).as_object().expect("an object").len(), "{text}");
        seen.extend(places.into_iter().map(|(_, field)| field));
    }
    assert_eq!(seen, fields.into_iter().collect());
}

#[test]
fn j2_a_bare_record_has_what_every_record_has() {
    assert_eq!(
        line(&bare(Outcome::Unknown)),
        "{\"id\":1,\"url\":\"http://h/\",\"outcome\":\"unknown\",\"status\":null,\"attempts\":0,\"limited\":0,\"waited_s\":0.000}\n"
    );
    let none = Record::new(ItemId::Line(1), None, Outcome::Failed);
    assert_eq!(parsed(&none)["url"], Value::Null);
}

#[test]
fn j2_an_id_comes_out_as_it_went_in() {
    for id in [
        "7",
        "-7",
        "\"7\"",
        "\"007\"",
        "\"a\"",
        "\"\"",
        "\"\\\"q\\\"\"",
        "\"-0\"",
        "\"ü\\n\"",
        "123456789012345678",
    ] {
        let Line::Item(item) = parse_line(format!(r#"{{"url":"http://h/","id":{id}}}"#).as_bytes()) else {
            panic!("{id} is an id");
        };
        let record = Record::new(ItemId::of(Seq(1), item.id.as_deref()), "http://h/", Outcome::Done);
        let given: Value = serde_json::from_str(id).expect("JSON");
        assert_eq!(parsed(&record)["id"], given, "{id}");
        let text = given.as_str().map_or_else(|| given.to_string(), str::to_owned);
        assert_eq!(ItemId::of(Seq(1), item.id.as_deref()).text(), text, "{id}");
    }
    assert_eq!(ItemId::of(Seq(9), None).text(), "9");
}

#[test]
fn j2_a_body_is_text_or_base64() {
    for (body, field, text) in [
        (&b""[..], "body", ""),
        (b"plain", "body", "plain"),
        ("ü\u{2028}\u{0}\"\\\n\u{7f}".as_bytes(), "body", "ü\u{2028}\u{0}\"\\\n\u{7f}"),
        (b"\xff", "body_base64", "/w=="),
        (b"\xff\x00", "body_base64", "/wA="),
        (b"caf\xe9", "body_base64", "Y2Fm6Q=="),
        (b"ab\xc3", "body_base64", "YWLD"),
    ] {
        let record = Record { body: BodyField::Inline(body), ..bare(Outcome::Done) };
        let parsed = parsed(&record);
        assert_eq!(parsed[field], text, "{body:?}");
        assert!(parsed.get(if field == "body" { "body_base64" } else { "body" }).is_none());
        assert_eq!(line(&record).matches('\n').count(), 1, "one line");
    }
}

#[test]
fn k1_a_record_shows_no_secret() {
    let head = headers(&[
        (header::SET_COOKIE, b"sid=s3cret"),
        (header::SET_COOKIE, b"b=s3cret"),
        (HeaderName::from_static("x-auth-token"), b"s3cret"),
        (header::LOCATION, b"/cb?token=s3cret"),
        (header::LINK, b"<http://u:s3cret@h/>; rel=next"),
    ]);
    let record = Record {
        final_url: Some("http://u:s3cret@h/#access_token=s3cret"),
        headers: Some(&head),
        error: Some("cannot reach http://u:s3cret@h/?sig=s3cret"),
        reason: Some("see https://h/?password=s3cret"),
        exit: Some("http://u:s3cret@proxy:1"),
        ..Record::new(ItemId::Line(1), "http://u:s3cret@h/?token=s3cret", Outcome::Failed)
    };
    let text = line(&record);
    assert!(!text.contains("s3cret"), "{text}");
    assert_eq!(parsed(&record)["headers"]["set-cookie"], serde_json::json!(["***", "***"]));
}

#[test]
fn k1_the_page_names_all_built_in_secrets() {
    let section =
        PAGE.split("Secret parameters").nth(1).and_then(|rest| rest.split("\n\n").next()).expect("a section");
    let named: Vec<&str> = section.split('`').skip(1).step_by(2).filter(|name| name.len() > 1).collect();
    assert_eq!(named, SECRET_QUERY);
}

#[test]
fn the_page_on_input_has_all_fields() {
    let Line::Bad(bad) = parse_line(br#"{"other":1}"#) else { panic!("an unknown field") };
    let error = bad.error.to_string();
    let known: Vec<&str> = error.split("known are ").nth(1).expect("a list").split(", ").collect();
    assert_eq!(documented(INPUT_PAGE), known);
    let example =
        INPUT_PAGE.split("```text\n").nth(1).and_then(|rest| rest.split("```").next()).expect("an example");
    let items = example.lines().filter(|line| matches!(parse_line(line.as_bytes()), Line::Item(_))).count();
    assert_eq!(items, 2);
}

#[test]
fn t1_times_are_written_as_rfc_3339() {
    for (us, text) in [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_999, "1970-01-01T00:00:00.001Z"),
        (951_782_400_000_000, "2000-02-29T00:00:00.000Z"),
        (1_709_164_799_999_000, "2024-02-28T23:59:59.999Z"),
        (1_795_957_200_000_000, "2026-11-29T13:00:00.000Z"),
        (4_107_542_400_000_000, "2100-03-01T00:00:00.000Z"),
        (u64::MAX, "9999-12-31T23:59:59.999Z"),
    ] {
        assert_eq!(rfc3339(Timestamp::from_micros(us)), text);
    }
}

#[test]
fn t2_a_due_time_is_rounded_up_and_others_down() {
    let at = Some(Timestamp::from_micros(1_001));
    let record = Record { not_before: at, started_at: at, finished_at: at, ..bare(Outcome::Parked) };
    let parsed = parsed(&record);
    assert_eq!(parsed["not_before"], "1970-01-01T00:00:00.002Z");
    assert_eq!(parsed["started_at"], "1970-01-01T00:00:00.001Z");
    assert_eq!(parsed["finished_at"], "1970-01-01T00:00:00.001Z");
    let exact = Record { not_before: Some(Timestamp::from_micros(1_000)), ..bare(Outcome::Parked) };
    assert_eq!(self::parsed(&exact)["not_before"], "1970-01-01T00:00:00.001Z");
}

#[test]
fn j2_what_waits_is_exported_in_the_same_form() {
    let listed = |state| Listed {
        output: None,
        seq: Seq(4),
        id: Some("a".into()),
        lane: Some("h".into()),
        request: Some(Request::get("http://h/?token=s3cret")),
        state,
        counters: Counters {
            attempts: 1,
            limited: 2,
            waited: Duration::from_millis(1500),
            started_at: Some(Timestamp::from_secs(1)),
            error: Some("reset".into()),
            ..Counters::default()
        },
    };
    let export = |state| {
        let mut out = Vec::new();
        write_listed(&listed(state), &redactor(), &mut out).then(|| String::from_utf8(out).expect("UTF-8"))
    };
    assert_eq!(
        export(State::Parked(Until::Time(Timestamp::from_secs(100)), "told to wait".into())).as_deref(),
        Some(
            "{\"id\":\"a\",\"url\":\"http://h/?token=***\",\"outcome\":\"parked\",\"status\":null,\"attempts\":1,\"limited\":2,\
             \"waited_s\":1.500,\"error\":\"reset\",\"reason\":\"told to wait\",\"not_before\":\"1970-01-01T00:01:40.000Z\",\
             \"started_at\":\"1970-01-01T00:00:01.000Z\"}\n"
        )
    );
    for (state, outcome, reason) in [
        (State::Pending, "pending", None),
        (State::Leased, "leased", None),
        (State::Parked(Until::NextRun, String::new()), "parked", Some("until the next run")),
        (State::Parked(Until::NextRun, "quota".into()), "parked", Some("quota; until the next run")),
        (
            State::Parked(Until::Credentials("me".into()), "401".into()),
            "parked",
            Some("401; until other credentials for me"),
        ),
    ] {
        let record: Value = serde_json::from_str(&export(state).expect("a record")).expect("JSON");
        assert_eq!((record["outcome"].as_str(), record["reason"].as_str()), (Some(outcome), reason));
    }
    let ended = State::Ended(forbear_store::queue::Ending::Done, Some((0, 1)));
    assert_eq!(export(ended), None);
}

proptest! {
    /// Whatever a server sends, a record is one line of JSON that gives it back.
    #[test]
    fn j2_any_answer_makes_one_line_of_json(
        body in prop::collection::vec(any::<u8>(), 0..300),
        values in prop::collection::vec(prop::collection::vec((0x20u8..=0xff).prop_filter("legal", |b| *b != 0x7f), 0..20), 0..6),
        text in "\\PC{0,40}|[\\x00-\\x20]{0,10}",
        us in any::<u64>(),
    ) {
        let names = ["server", "x-a", "x-b"];
        let head: Vec<_> = values.iter().enumerate().map(|(i, v)| (HeaderName::from_static(names[i % 3]), &v[..])).collect();
        let head = headers(&head);
        let record = Record {
            status: Some(200),
            waited: Duration::from_micros(us >> 10),
            headers: Some(&head),
            body: BodyField::Inline(&body),
            bytes: Some(us),
            error: Some(&text),
            not_before: Some(Timestamp::from_micros(us)),
            finished_at: Some(Timestamp::from_micros(us)),
            ..Record::new(ItemId::Stored(&text), text.as_str(), Outcome::Done)
        };
        let written = line(&record);
        prop_assert_eq!(written.find('\n'), Some(written.len() - 1));
        let parsed: Value = serde_json::from_str(&written).unwrap();
        let back = match (&parsed["body"], &parsed["body_base64"]) {
            (Value::String(text), Value::Null) => text.clone().into_bytes(),
            (Value::Null, Value::String(text)) => base64::engine::general_purpose::STANDARD.decode(text).unwrap(),
            other => panic!("{other:?}"),
        };
        prop_assert_eq!(back, body);
        prop_assert_eq!(parsed["headers"].as_object().unwrap().len(), head.keys_len());
        prop_assert_eq!(parsed["bytes"].as_u64(), Some(us));
    }
}

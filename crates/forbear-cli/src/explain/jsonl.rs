//! `forbear explain --jsonl`: one response a line in, one reading a line out.

use std::{
    io::{self, BufRead, Read, Write},
    time::Duration,
};

use forbear_core::hint::{Profile, Reading, Response, TOO_LONG, read};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use serde_json::{Number, Value};

use super::{instant, now};

/// What a line of the answer holds.
#[derive(Serialize)]
struct Answer {
    limited: bool,
    wait_s: Option<Number>,
    limit: Option<Number>,
    remaining: Option<Number>,
    window_s: Option<Number>,
    scope_hint: Option<&'static str>,
    should_retry: Option<bool>,
    kind: &'static str,
    reason: String,
}

/// What a line that cannot be read is answered with. It does not repeat the line, which may hold a secret (K1).
#[derive(Serialize)]
struct Fault {
    error: String,
}

/// Answers every line, in order; an unreadable one with an object that says so.
///
/// # Errors
/// Of the streams; nothing in a line is an error here.
pub(crate) fn answer_all(mut input: impl BufRead, output: &mut impl Write) -> io::Result<()> {
    let mut line = Vec::new();
    for number in 1u64.. {
        line.clear();
        let got = input.by_ref().take(LINE_MAX).read_until(b'\n', &mut line)?;
        if got == 0 {
            break;
        }
        let is_whole = line.ends_with(b"\n") || (got as u64) < LINE_MAX;
        if !is_whole {
            input.skip_until(b'\n')?;
        }
        let answer = match line.trim_ascii() {
            b"" => continue,
            _ if !is_whole => Err(format!("longer than {} MiB", LINE_MAX >> 20)),
            text => answer(text),
        };
        match answer {
            Ok(answer) => serde_json::to_writer(&mut *output, &answer)?,
            Err(why) => {
                serde_json::to_writer(&mut *output, &Fault { error: format!("line {number}: {why}") })?
            }
        }
        output.write_all(b"\n")?;
    }
    output.flush()
}

fn answer(line: &[u8]) -> Result<Answer, String> {
    let value: Value = serde_json::from_slice(line).map_err(|e| match e.classify() {
        serde_json::error::Category::Eof => "the JSON ends too early".to_owned(),
        _ => format!("not JSON, from character {} on", e.column()),
    })?;
    let object = value.as_object().ok_or("not a JSON object")?;
    let status = object.get("status").and_then(Value::as_u64).filter(|n| (100..=999).contains(n));
    let status = status.ok_or("`status` must be a number from 100 to 999")? as u16;
    let headers = match object.get("headers") {
        None | Some(Value::Null) => HeaderMap::new(),
        Some(list) => headers(list)?,
    };
    let body = match object.get("body") {
        None | Some(Value::Null) => None,
        Some(Value::String(text)) => Some(text.as_bytes()),
        Some(_) => return Err("`body` must be a text or null".to_owned()),
    };
    let at = match object.get("now") {
        None | Some(Value::Null) => now(),
        Some(text) => {
            let text = text.as_str().and_then(instant);
            text.ok_or("`now` must be a moment like \"2026-11-29T13:00:00Z\"")?
        }
    };
    let profile = match object.get("service") {
        None | Some(Value::Null) => None,
        // A service without a profile of its own is read by the general rules.
        Some(Value::String(name)) => Profile::by_name(name),
        Some(_) => return Err("`service` must be a text or null".to_owned()),
    };
    Ok(Answer::from(&read(&Response { status, headers: &headers, body }, profile, at)))
}

/// `[["Retry-After", "5"], ...]`; each character of a value is one byte.
fn headers(list: &Value) -> Result<HeaderMap, String> {
    let list = list.as_array().ok_or("`headers` must be a list of [name, value]")?;
    let mut headers = HeaderMap::new();
    for (i, pair) in list.iter().enumerate() {
        let pair = pair.as_array().filter(|p| p.len() == 2).map(|p| (p[0].as_str(), p[1].as_str()));
        let Some((Some(name), Some(value))) = pair else {
            return Err(format!("header {}: expected [name, value]", i + 1));
        };
        let bytes: Option<Vec<u8>> = value.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
        let bytes = bytes.ok_or(format!("header {}: each character of a value is one byte", i + 1))?;
        let name = HeaderName::from_bytes(name.as_bytes());
        // Spaces around a value are no part of it (RFC 9110 section 5.5).
        let value = HeaderValue::from_bytes(bytes.trim_ascii());
        let (Ok(name), Ok(value)) = (name, value) else {
            return Err(format!("header {}: not a legal name or value", i + 1));
        };
        if headers.try_append(name, value).is_err() {
            return Err("too many headers".to_owned());
        }
    }
    Ok(headers)
}

impl From<&Reading> for Answer {
    fn from(reading: &Reading) -> Answer {
        let budget = reading.budget.unwrap_or_default();
        Answer {
            limited: reading.limited,
            wait_s: reading.wait.and_then(seconds),
            limit: budget.limit.and_then(number),
            remaining: budget.remaining.and_then(number),
            window_s: budget.window.and_then(seconds),
            scope_hint: reading.scope_hint.map(|s| s.as_str()),
            should_retry: reading.should_retry,
            kind: reading.kind.as_str(),
            reason: reason(reading),
        }
    }
}

/// The field that decided with its value, and why.
fn reason(reading: &Reading) -> String {
    let evidence = &reading.evidence;
    match (evidence.field(), evidence.reason()) {
        ("", "") => "nothing in it speaks of a limit".to_owned(),
        ("", why) => why.to_owned(),
        (field, why) => format!("{field}: {} ({why})", evidence.value()),
    }
}

/// Whole seconds as an integer, others with decimals; what is too long to hold is 2147483648.
fn seconds(time: Duration) -> Option<Number> {
    let time = time.min(TOO_LONG);
    if time.subsec_nanos() == 0 { Some(time.as_secs().into()) } else { Number::from_f64(time.as_secs_f64()) }
}

fn number(n: f64) -> Option<Number> {
    // Every whole number below is exact; above, an integer would only pretend to be.
    if n.fract() == 0.0 && n.abs() < 9e15 { Some((n as i64).into()) } else { Number::from_f64(n) }
}

/// Longer lines are answered with an error: heads are bounded everywhere, and so is this.
const LINE_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(lines: &[u8]) -> Vec<Value> {
        let mut out = Vec::new();
        answer_all(lines, &mut out).unwrap();
        out.split(|b| *b == b'\n')
            .filter(|l| !l.is_empty())
            .map(|l| serde_json::from_slice(l).unwrap())
            .collect()
    }

    #[test]
    fn waits_are_numbers_of_seconds() {
        for (time, expected) in [
            (Duration::ZERO, "0"),
            (Duration::from_secs(120), "120"),
            (Duration::from_millis(1500), "1.5"),
            (Duration::from_millis(20), "0.02"),
            (TOO_LONG, "2147483648"),
            (Duration::MAX, "2147483648"),
        ] {
            assert_eq!(seconds(time).unwrap().to_string(), expected);
        }
        for (n, expected) in [(0.0, "0"), (60.0, "60"), (0.0167, "0.0167"), (-1.0, "-1")] {
            assert_eq!(number(n).unwrap().to_string(), expected);
        }
    }

    #[test]
    fn k1_a_bad_line_is_answered_in_its_place_and_not_repeated() {
        let long = format!("{{\"status\":429,\"body\":\"{}\"}}\n", "x".repeat(LINE_MAX as usize));
        for (line, part) in [
            ("{s3cret", "not JSON"),
            ("{\"status\": 429", "ends too early"),
            ("[\"s3cret\"]", "not a JSON object"),
            ("{\"headers\":[]}", "`status`"),
            ("{\"status\":\"s3cret\"}", "`status`"),
            ("{\"status\":42}", "`status`"),
            ("{\"status\":429,\"headers\":{\"A\":\"s3cret\"}}", "list of [name, value]"),
            ("{\"status\":429,\"headers\":[[\"A\"]]}", "header 1"),
            ("{\"status\":429,\"headers\":[[\"A\",\"1\"],[\"s3 cret\",\"b\"]]}", "header 2"),
            ("{\"status\":429,\"headers\":[[\"A\",\"s3cret\\u0141\"]]}", "one byte"),
            ("{\"status\":429,\"headers\":[[\"A\",\"s3cret\\n\"]],\"body\":1}", "`body`"),
            ("{\"status\":429,\"headers\":[[\"A\",\"s3\\ncret\"]]}", "not a legal"),
            ("{\"status\":429,\"now\":\"s3cret\"}", "`now`"),
            ("{\"status\":429,\"service\":7}", "`service`"),
            ("\u{1f}\u{fffd}", "not JSON"),
            (long.trim_end(), "longer than 4 MiB"),
        ] {
            let lines = format!("{{\"status\":200}}\n{line}\n\n{{\"status\":429}}");
            let found = answers(lines.as_bytes());
            assert_eq!(found.len(), 3, "{part}");
            let error = found[1]["error"].as_str().unwrap_or_else(|| panic!("{part}: {}", found[1]));
            assert!(error.starts_with("line 2: ") && error.contains(part), "{error}");
            assert!(!error.contains("s3cret"), "{error}");
            assert_eq!(
                (&found[0]["limited"], &found[2]["limited"]),
                (&Value::Bool(false), &Value::Bool(true))
            );
        }
        assert_eq!(answers(b"\xff\xfe\n").len(), 1);
    }

    #[test]
    fn an_answer_has_every_field() {
        let line = br#"{"status":429,"headers":[["Retry-After","120"]],"body":null,"now":"2026-11-29T13:00:00Z","service":"http"}"#;
        let found = answers(line);
        let keys: Vec<_> = found[0].as_object().unwrap().keys().map(String::as_str).collect();
        let expected = [
            "kind",
            "limit",
            "limited",
            "reason",
            "remaining",
            "scope_hint",
            "should_retry",
            "wait_s",
            "window_s",
        ];
        assert_eq!(keys, expected);
        assert_eq!(found[0]["wait_s"], 120);
        assert!(found[0]["reason"].as_str().unwrap().starts_with("retry-after: 120"));
    }
}

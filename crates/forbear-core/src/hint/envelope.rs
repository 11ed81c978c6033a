//! What bodies say, in the fields of an error envelope and in sentences (H2).

use std::borrow::Cow;

use super::body::{self, Found};
use super::gather::{Family, Gathered, Order, dim_key};
use super::profile::{BodyField, Profile, Verdict};
use super::value::{self, Unit, Wait};
use super::{Kind, Response, date};

impl<'a> Gathered<'a> {
    /// Looks into the body where it may matter: on a refusal, on a spent budget, and where the profile asks for it.
    pub(crate) fn read_body(
        &mut self,
        response: &Response<'a>,
        status: u16,
        profile: Option<&Profile>,
    ) -> Verdict {
        let mut verdict = Verdict::default();
        let refuses = matches!(status, 400 | 403 | 418 | 420 | 429 | 500..=599);
        self.families.iter_mut().for_each(Family::count_what_is_left);
        let spent = self.families.iter().any(Family::is_exhausted);
        let general = refuses || spent;
        // A success holds the caller's own data, unless the service is known to refuse with it.
        let looks = general || status >= 400 || profile.is_some_and(|p| p.bodies);
        let response = Response { body: response.body.filter(|_| looks), ..*response };
        let wanted = |key: &[u8]| {
            profile.is_some_and(|p| p.wants(key))
                || (general && (is_code_key(key) || wait_unit(key).is_some()))
        };
        let found = response.body.map_or_else(Vec::new, |text| body::find(text, wanted));
        if let Some(profile) = profile {
            profile.apply(&response, &found, self, &mut verdict);
        }
        if general {
            let envelope = || found.iter().filter(|f| is_envelope(&f.path));
            if verdict.marked.is_none() {
                envelope().for_each(|f| general_code(f, status, &mut verdict));
            }
            if refuses || verdict.marked.is_some() {
                for f in envelope() {
                    if let Some(unit) = wait_unit(f.key)
                        && let Some(wait) = value::wait(f.text, unit, &self.clock())
                    {
                        self.instruct_from_body(f, wait, false);
                    }
                }
            }
        }
        verdict
    }

    pub(crate) fn instruct_from_body(&mut self, found: &Found<'a>, wait: Wait, hold: bool) {
        let field = Cow::Owned(format!("body:{}", found.path));
        self.push_order(Order { wait, hold, field, raw: found.text });
    }

    pub(crate) fn instruct_from_text(&mut self, words: &'static str, (wait, raw): (Wait, &'a [u8])) {
        self.push_order(Order {
            wait,
            hold: false,
            field: Cow::Owned(format!("body: {}", words.trim())),
            raw,
        });
    }

    pub(crate) fn body_part(&mut self, field: &'static BodyField, raw: &'a [u8]) {
        self.part(dim_key(field.dim), field.role, Unit::Seconds, field.path, raw);
    }

    /// A time at the start of a sentence's rest: `20ms.`, `5 seconds`, `2026-11-29 14:00:00 UTC: see docs`.
    pub(crate) fn in_sentence(&self, text: &'a [u8], unit: Unit) -> Option<(Wait, &'a [u8])> {
        let skip = text.iter().take_while(|b| matches!(b, b' ' | b':' | b'"' | b'\'')).count();
        let text = &text[skip..];
        let clock = self.clock();
        if let Some((moment, rest)) = date::iso_prefix(text) {
            let value = value::Value { when: value::When::At(moment.at), step: moment.step };
            let wait = Wait { time: value.wait(&clock), step: value.step, delta: false };
            return Some((wait, &text[..text.len() - rest.len()]));
        }
        let len = text.iter().take_while(|b| b.is_ascii_alphanumeric() || **b == b'.').count();
        let raw = text[..len].strip_suffix(b".").unwrap_or(&text[..len]);
        let next = text[len..].strip_prefix(b" ").unwrap_or_default();
        let next = &next[..next.iter().take_while(|b| b.is_ascii_alphabetic()).count()];
        let unit = match next {
            b"ms" | b"milliseconds" | b"millisecond" => Unit::Millis,
            b"s" | b"sec" | b"secs" | b"second" | b"seconds" => Unit::Seconds,
            b"min" | b"mins" | b"minute" | b"minutes" => Unit::Minutes,
            _ => unit,
        };
        Some((value::wait(raw, unit, &clock)?, raw))
    }
}

/// What a code of an error envelope means for every service.
fn general_code(found: &Found<'_>, status: u16, verdict: &mut Verdict) {
    if !is_code_key(found.key) {
        return;
    }
    let word = plain_word(found.text);
    if is_limit_word(&word) {
        verdict.mark.get_or_insert_with(|| (format!("body:{}", found.path), found.text.to_vec()));
        verdict.marked = verdict.marked.or(Some(Kind::RateLimit));
    } else if word.contains("concurren") && matches!(status, 429 | 503) {
        verdict.kind = verdict.kind.or(Some(Kind::Concurrency));
    }
}

/// Where an error envelope keeps its fields. Anything else in a body may be the caller's own data.
fn is_envelope(path: &str) -> bool {
    const PARTS: [&str; 17] = [
        "error",
        "errors",
        "detail",
        "details",
        "parameters",
        "extensions",
        "meta",
        "metadata",
        "response",
        "fault",
        "reason",
        "data",
        "body",
        "status",
        "ratelimit",
        "rate_limit",
        "limit",
    ];
    let Some((parents, _)) = path.rsplit_once('.') else { return true };
    parents.split('.').all(|p| PARTS.iter().any(|known| p.eq_ignore_ascii_case(known)))
}

fn is_code_key(key: &[u8]) -> bool {
    matches!(
        plain_word(key).as_str(),
        "code" | "type" | "error" | "errorcode" | "errortype" | "errorname" | "reason" | "status" | "name"
    ) || key == b"__type"
}

/// The unit of a body field that says how long to wait; `None` for any other field.
fn wait_unit(key: &[u8]) -> Option<Unit> {
    if key.len() > 24 {
        return None;
    }
    Some(match plain_word(key).as_str() {
        "retryafter" | "retryafterseconds" | "retryaftersecs" | "retryaftersec" | "retrydelay"
        | "retryin" | "retryinseconds" => Unit::Seconds,
        "retryafterms" | "retryaftermillis" | "retryaftermilliseconds" | "retryinms" | "retrydelayms" => {
            Unit::Millis
        }
        _ => return None,
    })
}

/// Letters and digits only, in lower case: `rate_limited`, `RateLimited` and `RATE-LIMITED` are one word.
fn plain_word(raw: &[u8]) -> String {
    raw.iter()
        .take(64)
        .filter(|b| b.is_ascii_alphanumeric())
        .map(|b| char::from(b.to_ascii_lowercase()))
        .collect()
}

/// Codes that can mean nothing but a rate limit, whoever sends them.
fn is_limit_word(word: &str) -> bool {
    matches!(
        word,
        "ratelimit"
            | "ratelimited"
            | "ratelimitexceeded"
            | "ratelimitreached"
            | "ratelimiterror"
            | "toomanyrequests"
            | "toomanyrequestsexception"
            | "throttled"
            | "throttling"
            | "throttlingexception"
            | "requestthrottled"
            | "requestlimitexceeded"
            | "userratelimitexceeded"
            | "resourceexhausted"
    )
}

//! What one request costs of a limit: estimated from the request, and read from the response (C1).

use bytes::Bytes;
use forbear_core::cost;
use forbear_store::queue;
use http::HeaderMap;
use serde_json::Value;

use crate::config::{CostSettings, Pointer};

/// What a request is taken to cost before it is sent: its item's own word, else by the rules. `with_body` says whether its
/// body goes out with it, which it does not after some redirects.
///
/// ```
/// use forbear::{config::CostSettings, cost::estimate};
/// use forbear_store::queue::Request;
/// let request = Request { body: Some(br#"{"max_tokens": 500}"#.to_vec()), ..Request::default() };
/// let mut rules = CostSettings::default();
/// rules.request = Some(vec!["/max_tokens".parse().unwrap()]);
/// assert_eq!(estimate(&rules, &request, true), 500);
/// assert_eq!(estimate(&CostSettings::default(), &request, true), 1);
/// ```
#[must_use]
pub fn estimate(rules: &CostSettings, request: &queue::Request, with_body: bool) -> u32 {
    if let Some(own) = request.cost {
        return own.max(1);
    }
    let body = request.body.as_deref().filter(|_| with_body).unwrap_or_default();
    let default = rules.estimate.map_or(1, std::num::NonZeroU32::get);
    let said = rules.request.as_deref().and_then(|pointers| sum(pointers, body).ok());
    let bytes = rules.per_byte.unwrap_or(0.0) * body.len() as f64;
    // What a request says of itself is no more to be believed than what a server says.
    let said = said.filter(|said| cost::told(*said, 1.0).is_ok()).unwrap_or(f64::from(default));
    cost::told(said + bytes, 1.0).unwrap_or(u32::MAX).max(1)
}

/// Why a response tells no cost although a rule says where.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Untold {
    /// Neither the header nor the place in the body is there.
    #[error("it is not there")]
    Missing,
    /// The body is longer than is looked at.
    #[error("the body is longer than {} KiB, and is not searched", BODY_MAX / 1024)]
    TooLong,
    /// The body is no JSON.
    #[error("the body is not JSON")]
    NotJson,
    /// There is something that is no cost.
    #[error("what is there is {0}")]
    NotACost(#[from] cost::NotACost),
}

/// Reads the real cost of a request from its response, as its body comes.
#[derive(Debug)]
pub(crate) struct Meter<'a> {
    rules: &'a CostSettings,
    by_header: Option<Result<u32, Untold>>,
    body: Vec<u8>,
    too_long: bool,
}

impl<'a> Meter<'a> {
    /// None where no rule says where the cost stands.
    pub(crate) fn new(rules: &'a CostSettings, headers: &HeaderMap) -> Option<Meter<'a>> {
        if rules.header.is_none() && rules.body.is_none() {
            return None;
        }
        let value = rules.header.as_ref().and_then(|name| headers.get(name));
        let by_header = value.map(|value| {
            let number = value.to_str().ok().and_then(|text| text.trim().parse().ok()).unwrap_or(f64::NAN);
            Ok(cost::told(number, factor(rules))?)
        });
        Some(Meter { rules, by_header, body: Vec::new(), too_long: false })
    }

    /// A piece of the body, decoded.
    pub(crate) fn piece(&mut self, bytes: &Bytes) {
        if self.rules.body.is_none() || self.by_header.is_some() || self.too_long {
            return;
        }
        if self.body.len() + bytes.len() > BODY_MAX {
            (self.too_long, self.body) = (true, Vec::new());
        } else {
            self.body.extend_from_slice(bytes);
        }
    }

    /// What the response tells. The header counts where it is there, else the body.
    ///
    /// # Errors
    /// Why it tells nothing.
    pub(crate) fn read(self) -> Result<u32, Untold> {
        if let Some(by_header) = self.by_header {
            return by_header;
        }
        let Some(pointers) = self.rules.body.as_deref() else { return Err(Untold::Missing) };
        if self.too_long {
            return Err(Untold::TooLong);
        }
        let number = sum(pointers, &self.body)?;
        Ok(cost::told(number, factor(self.rules))?)
    }
}

/// The sum of the numbers that stand at these places of a JSON text; at least one must.
fn sum(pointers: &[Pointer], json: &[u8]) -> Result<f64, Untold> {
    let value: Value = serde_json::from_slice(json).map_err(|_| Untold::NotJson)?;
    let mut found = pointers.iter().filter_map(|pointer| value.pointer(pointer.as_str())).peekable();
    if found.peek().is_none() {
        return Err(Untold::Missing);
    }
    let numbers = found.map(|found| match found {
        Value::Number(number) => number.as_f64().unwrap_or(f64::NAN),
        Value::String(text) => text.trim().parse().unwrap_or(f64::NAN),
        _ => f64::NAN,
    });
    // A part that is negative would hide in the sum.
    let mut total = 0.0;
    for number in numbers {
        cost::told(number, 1.0)?;
        total += number;
    }
    Ok(total)
}

fn factor(rules: &CostSettings) -> f64 {
    rules.factor.unwrap_or(1.0)
}

/// So much of a body is kept to be searched for its cost: the answer of a language model, and its bill at the end.
const BODY_MAX: usize = 1024 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(toml: &str) -> CostSettings {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("forbear.toml"), format!("[cost]\n{toml}")).unwrap();
        let sources = crate::config::Sources { beside: Some(dir.path().to_owned()), ..Default::default() };
        sources.load().unwrap().settings.cost
    }

    #[test]
    fn c1_an_estimate_is_the_items_else_the_requests_else_the_default() {
        for (toml, own, body, estimated) in [
            ("", None, "", 1),
            ("estimate = 700", None, "", 700),
            ("estimate = 700", Some(3), "", 3),
            ("request = '/max_tokens'", None, r#"{"max_tokens":500}"#, 500),
            ("request = ['/max_tokens', '/n']", None, r#"{"max_tokens":500,"n":"2"}"#, 502),
            ("request = '/max_tokens'\nestimate = 9", None, r#"{"max":500}"#, 9),
            ("request = '/max_tokens'\nestimate = 9", None, "max_tokens=500", 9),
            ("request = '/max_tokens'\nestimate = 9", None, r#"{"max_tokens":-5}"#, 9),
            ("request = '/max_tokens'\nestimate = 9", None, r#"{"max_tokens":1e300}"#, 9),
            ("per_byte = 0.25\nestimate = 100", None, "12345678", 102),
            ("per_byte = 0.25", None, "", 1),
            ("request = '/a/b~1c/0'\nper_byte = 1", None, r#"{"a":{"b/c":[7]}}"#, 7 + 17),
        ] {
            let body = Some(body.as_bytes().to_vec()).filter(|body| !body.is_empty());
            let request = queue::Request { cost: own, body, ..queue::Request::default() };
            assert_eq!(estimate(&rules(toml), &request, true), estimated, "{toml} {request:?}");
        }
        let sent = queue::Request { body: Some(vec![b'x'; 400]), ..queue::Request::default() };
        assert_eq!(estimate(&rules("per_byte = 1"), &sent, false), 1, "a body that stays here costs nothing");
    }

    fn read(toml: &str, header: Option<&str>, body: &str) -> Result<u32, Untold> {
        let rules = rules(toml);
        let mut headers = HeaderMap::new();
        if let Some(value) = header {
            headers.insert("x-cost", value.parse().unwrap());
        }
        let mut meter = Meter::new(&rules, &headers).unwrap();
        for piece in body.as_bytes().chunks(7) {
            meter.piece(&Bytes::copy_from_slice(piece));
        }
        meter.read()
    }

    #[test]
    fn c1_the_real_cost_is_read_from_header_or_body_and_junk_is_none() {
        let (head, body) = ("header = 'X-Cost'", "body = '/usage/total_tokens'");
        let both = format!("{head}\n{body}");
        let nan = Untold::NotACost(cost::NotACost::NotANumber);
        let negative = Untold::NotACost(cost::NotACost::Negative);
        let too_much = Untold::NotACost(cost::NotACost::TooMuch);
        let usage = r#"{"usage":{"total_tokens":123}}"#;
        for (toml, header, text, expected) in [
            (head, Some("17"), "", Ok(17)),
            (head, Some(" 17.5 "), "", Ok(18)),
            (head, None, usage, Err(Untold::Missing)),
            (head, Some("NaN"), "", Err(nan)),
            (head, Some("many"), "", Err(nan)),
            (head, Some("-1"), "", Err(negative)),
            (head, Some("1e300"), "", Err(too_much)),
            (head, Some("inf"), "", Err(too_much)),
            (body, None, usage, Ok(123)),
            (body, None, r#"{"usage":{"total_tokens":"123"}}"#, Ok(123)),
            (body, None, r#"{"usage":{"total_tokens":null}}"#, Err(nan)),
            (body, None, r#"{"usage":{"total_tokens":[1]}}"#, Err(nan)),
            (body, None, r#"{"usage":{"total_tokens":-3}}"#, Err(negative)),
            (body, None, r#"{"usage":{"total_tokens":1e300}}"#, Err(too_much)),
            (body, None, r#"{"usage":{}}"#, Err(Untold::Missing)),
            (body, None, "<html>", Err(Untold::NotJson)),
            (body, None, "", Err(Untold::NotJson)),
            (both.as_str(), Some("5"), usage, Ok(5)),
            (both.as_str(), Some("junk"), usage, Err(nan)),
            (both.as_str(), None, usage, Ok(123)),
            ("body = ['/in', '/out']\nfactor = 0.5", None, r#"{"in":10,"out":5}"#, Ok(8)),
            ("body = ['/in', '/out']", None, r#"{"in":10,"out":-5}"#, Err(negative)),
        ] {
            assert_eq!(read(toml, header, text), expected, "{toml} {header:?} {text}");
        }
        let long = format!("{{\"usage\":{{\"total_tokens\":1}},\"text\":\"{}\"}}", "x".repeat(BODY_MAX));
        assert_eq!(read(body, None, &long), Err(Untold::TooLong));
        assert!(Meter::new(&CostSettings::default(), &HeaderMap::new()).is_none(), "no rule, no meter");
    }
}

//! A line of JSON, read by hand: the usual derive would say what a wrong value was, and that may be a secret (K1).

use std::fmt;

use base64::Engine as _;
use forbear_core::time::Timestamp;
use forbear_store::queue::Request;
use http::{HeaderName, HeaderValue, Method};
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

use super::{error::LineError, when};
use crate::record::ItemId;

/// The fields of an item, for messages.
pub(super) const FIELDS: &str = "url, id, method, headers, body, body_base64, account, endpoint, cost, priority, not_before, \
     idempotent";
/// Longer ids are no ids.
const ID_BYTES_MAX: usize = 1024;
/// Names of accounts and endpoints stand in every scope's key.
const NAME_BYTES_MAX: usize = 256;
/// More fields than this no server takes.
const HEADERS_MAX: usize = 256;
/// How much of a name that is not known is shown.
const SHOWN_CHARS_MAX: usize = 40;

/// An item, but for its URL, which is still to be looked at.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) id: Option<String>,
    pub(super) request: Request,
    pub(super) not_before: Option<Timestamp>,
}

/// Reads a line. With an error comes its `url`, if that was found.
pub(super) fn parse(line: &[u8]) -> Result<Fields, (LineError, Option<String>)> {
    let object = match serde_json::from_slice::<Json>(line) {
        Ok(Json::Object(object)) => object,
        Ok(_) => return Err((LineError::Json { what: "not an object".into(), column: 1 }, None)),
        Err(error) => {
            // The parser's words, without its place: there is but one line.
            let what = error.to_string();
            let what = what.split(" at line ").next().unwrap_or_default().to_owned();
            return Err((LineError::Json { what, column: error.column() }, None));
        }
    };
    let mut fields = Fields::default();
    let mut seen = Vec::with_capacity(object.len());
    let mut result = Ok(());
    let mut has_url = false;
    for (name, value) in object {
        let Some(name) = known(&name) else {
            result = result.and(Err(LineError::UnknownField(name.chars().take(SHOWN_CHARS_MAX).collect())));
            continue;
        };
        if seen.contains(&name) {
            result = result.and(Err(LineError::TwiceField(name)));
            continue;
        }
        seen.push(name);
        has_url |= name == "url";
        // `null` is the same as not there, whoever writes all columns of a table.
        if !matches!(value, Json::Null) {
            result = result.and(fields.set(name, value));
        }
    }
    if result.is_ok() && fields.request.url.is_empty() {
        result = Err(if has_url { must("url", "a URL") } else { LineError::NoUrl });
    }
    if fields.request.body.is_some() && fields.request.method.is_none() {
        fields.request.method = Some("POST".to_owned());
    }
    match result {
        Ok(()) => Ok(fields),
        Err(error) => {
            let url = std::mem::take(&mut fields.request.url);
            Err((error, Some(url).filter(|url| !url.is_empty())))
        }
    }
}

fn known(name: &str) -> Option<&'static str> {
    FIELDS.split(", ").find(|field| *field == name)
}

fn must(field: &'static str, must: &'static str) -> LineError {
    LineError::Field { field, must }
}

impl Fields {
    fn set(&mut self, field: &'static str, value: Json) -> Result<(), LineError> {
        let request = &mut self.request;
        match (field, value) {
            ("body" | "body_base64", _) if request.body.is_some() => return Err(LineError::TwoBodies),
            ("url", Json::Text(text)) => request.url = text.trim().to_owned(),
            ("url", _) => return Err(must("url", "a string")),
            ("id", Json::Integer(n)) => self.id = Some(n.to_string()),
            ("id", Json::Text(text)) if text.len() <= ID_BYTES_MAX => self.id = Some(ItemId::store(text)),
            ("id", _) => return Err(must("id", "an integer, or a string of at most 1024 bytes")),
            ("method", Json::Text(text)) => request.method = method(&text)?,
            ("method", _) => return Err(must("method", "the name of a method, such as \"POST\"")),
            ("headers", value) => headers(value, &mut request.headers)?,
            ("body", Json::Text(text)) => request.body = Some(text.into_bytes()),
            ("body", _) => return Err(must("body", "a string; write JSON as text, bytes as `body_base64`")),
            ("body_base64", value) => {
                let Json::Text(text) = &value else { return Err(must("body_base64", "a string of Base64")) };
                let body = base64::engine::general_purpose::STANDARD
                    .decode(text)
                    .map_err(|_| must("body_base64", "a string of Base64, padded"))?;
                request.body = Some(body);
            }
            ("account", value) => {
                const MUST: &str =
                    "a name of at most 256 bytes without control characters, and not begin with `~`";
                request.account =
                    Some(name(value).filter(|n| !n.starts_with('~')).ok_or(must("account", MUST))?);
            }
            ("endpoint", value) => {
                const MUST: &str = "a name of at most 256 bytes without control characters";
                request.endpoint = Some(name(value).ok_or(must("endpoint", MUST))?);
            }
            ("cost", Json::Integer(n)) if (1..=i128::from(u32::MAX)).contains(&n) => {
                request.cost = u32::try_from(n).ok();
            }
            ("cost", _) => return Err(must("cost", "a whole number from 1 on")),
            ("priority", Json::Integer(n)) if i32::try_from(n).is_ok() => {
                request.priority = i32::try_from(n).unwrap_or_default();
            }
            ("priority", _) => return Err(must("priority", "a whole number; higher goes first")),
            ("not_before", value) => {
                let at = match &value {
                    Json::Text(text) => when::rfc3339(text.trim()),
                    Json::Integer(n) => when::epoch(*n as f64),
                    Json::Float(seconds) => when::epoch(*seconds),
                    _ => None,
                };
                const MUST: &str = "a time such as \"2026-11-29T13:00:00Z\" with its zone, or seconds since 1970 (not milliseconds)";
                self.not_before = Some(at.ok_or(must("not_before", MUST))?);
            }
            ("idempotent", Json::Bool(yes)) => request.idempotent = Some(yes),
            ("idempotent", _) => return Err(must("idempotent", "true or false")),
            (other, _) => return Err(LineError::UnknownField(other.to_owned())),
        }
        Ok(())
    }
}

/// `None` is GET. The usual methods are known in any case; others are sent as they are written.
fn method(text: &str) -> Result<Option<String>, LineError> {
    const USUAL: [&str; 8] = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"];
    if let Some(usual) = USUAL.iter().find(|usual| usual.eq_ignore_ascii_case(text)) {
        return Ok((*usual != "GET").then(|| (*usual).to_owned()));
    }
    // CONNECT makes a tunnel and has no answer to keep.
    match Method::from_bytes(text.as_bytes()) {
        Ok(method) if method != Method::CONNECT && text.len() <= NAME_BYTES_MAX => Ok(Some(text.to_owned())),
        _ => Err(must("method", "the name of a method, such as \"POST\", and not CONNECT")),
    }
}

fn name(value: Json) -> Option<String> {
    match value {
        Json::Text(text) if (1..=NAME_BYTES_MAX).contains(&text.len()) => {
            (!text.chars().any(char::is_control)).then_some(text)
        }
        _ => None,
    }
}

const HEADERS_MUST: &str = "an object of names with a string or a list of strings each, or a list of pairs";

fn headers(value: Json, out: &mut Vec<(String, String)>) -> Result<(), LineError> {
    let shape = || must("headers", HEADERS_MUST);
    match value {
        Json::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Json::List(values) => {
                        for value in values {
                            header(&name, value, out)?;
                        }
                    }
                    value => header(&name, value, out)?,
                }
            }
        }
        Json::List(pairs) => {
            for pair in pairs {
                let Json::List(pair) = pair else { return Err(shape()) };
                let [name, value] = <[Json; 2]>::try_from(pair).map_err(|_| shape())?;
                let Json::Text(name) = name else { return Err(shape()) };
                header(&name, value, out)?;
            }
        }
        _ => return Err(shape()),
    }
    Ok(())
}

fn header(name: &str, value: Json, out: &mut Vec<(String, String)>) -> Result<(), LineError> {
    let value = match value {
        Json::Text(text) => text.trim_matches([' ', '\t']).to_owned(),
        // People write numbers of pages and versions so, and it can mean only one thing.
        Json::Integer(n) => n.to_string(),
        _ => return Err(must("headers", HEADERS_MUST)),
    };
    if HeaderName::from_bytes(name.as_bytes()).is_err() {
        // Not shown: a whole header line in place of a name holds its value.
        return Err(LineError::Header("names are letters, digits and `-`: one of them is not".into()));
    }
    if HeaderValue::from_bytes(value.as_bytes()).is_err() {
        let shown: String = name.chars().take(SHOWN_CHARS_MAX).collect();
        return Err(LineError::Header(format!(
            "`{shown}` has a control character in its value; take it out"
        )));
    }
    if out.len() == HEADERS_MAX {
        return Err(must("headers", "at most 256 header lines"));
    }
    out.push((name.to_owned(), value));
    Ok(())
}

/// Any JSON, objects in order and with all their names.
enum Json {
    Null,
    Bool(bool),
    Integer(i128),
    Float(f64),
    Text(String),
    List(Vec<Json>),
    Object(Vec<(String, Json)>),
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(AnyJson)
    }
}

struct AnyJson;

impl<'de> Visitor<'de> for AnyJson {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Integer(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Float(value))
    }

    fn visit_str<E>(self, value: &str) -> Result<Json, E> {
        Ok(Json::Text(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Json, E> {
        Ok(Json::Text(value))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut list = Vec::new();
        while let Some(value) = access.next_element()? {
            list.push(value);
        }
        Ok(Json::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut object = Vec::new();
        while let Some(entry) = access.next_entry()? {
            object.push(entry);
        }
        Ok(Json::Object(object))
    }
}

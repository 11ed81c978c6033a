//! What comes out: one line of JSON for each item (`docs/reference/records.md` describes it field by field).

use std::{borrow::Cow, time::Duration};

use base64::Engine as _;
use forbear_core::time::Timestamp;
use forbear_store::queue::{
    Ending, Seq, Until,
    inspect::{Listed, State},
};
use http::HeaderMap;

use crate::{exit::ExitSecrets, secrets::Redactor};

/// Which item a record is about: the input's own id, or the number of its line.
///
/// A number stays a number and a string a string. The queue keeps an id as text
/// ([`NewItem::id`](forbear_store::queue::NewItem::id)); this is where that form is made and read.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ItemId<'a> {
    /// The input gives none: its line, from 1.
    Line(u64),
    /// As the queue keeps it.
    Stored(&'a str),
}

impl<'a> ItemId<'a> {
    /// The id of an item as it comes out of the queue.
    #[must_use]
    pub fn of(seq: Seq, id: Option<&'a str>) -> ItemId<'a> {
        id.map_or(ItemId::Line(seq.0), ItemId::Stored)
    }

    /// How the queue keeps an id that is a string.
    #[must_use]
    pub fn store(text: String) -> String {
        if is_number(&text) || text.starts_with('"') { json(&text) } else { text }
    }

    /// The id as text, for a file's name or a log: a string without its quotes.
    #[must_use]
    pub fn text(&self) -> Cow<'a, str> {
        match *self {
            ItemId::Line(line) => Cow::Owned(line.to_string()),
            ItemId::Stored(text) if text.starts_with('"') => {
                serde_json::from_str(text).map_or(Cow::Borrowed(text), Cow::Owned)
            }
            ItemId::Stored(text) => Cow::Borrowed(text),
        }
    }

    fn write(&self, out: &mut Vec<u8>) {
        match *self {
            ItemId::Line(line) => number(out, line),
            ItemId::Stored(text) if is_number(text) => out.extend_from_slice(text.as_bytes()),
            stored @ ItemId::Stored(_) => string(out, &stored.text()),
        }
    }
}

/// What came of an item, in the words of its record.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Outcome {
    /// It succeeded.
    Done,
    /// It failed for good.
    Failed,
    /// It was sent, and nobody can say whether it was processed.
    Unknown,
    /// It waits for a time or a condition. Only in exports of a job.
    Parked,
    /// It has not begun, or waits for its next try. Only in exports of a job.
    Pending,
    /// A run has it in hand. Only in exports of a job.
    Leased,
}

impl Outcome {
    /// The word in the record.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Outcome::Done => "done",
            Outcome::Failed => "failed",
            Outcome::Unknown => "unknown",
            Outcome::Parked => "parked",
            Outcome::Pending => "pending",
            Outcome::Leased => "leased",
        }
    }
}

impl From<Ending> for Outcome {
    fn from(ending: Ending) -> Outcome {
        match ending {
            Ending::Done => Outcome::Done,
            Ending::Failed => Outcome::Failed,
            Ending::Unknown => Outcome::Unknown,
        }
    }
}

/// The body's place in a record.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum BodyField<'a> {
    /// There is none, or it was not to be kept.
    #[default]
    Absent,
    /// In the record: as text if it is UTF-8, else in Base64.
    Inline(&'a [u8]),
    /// In the file of this name.
    File(&'a str),
}

/// One item's record, to be written as one line.
///
/// Fields that are `None` are left out, but for `url` and `status`, which are `null`. URLs and texts are redacted as they
/// are written; give them as they are.
///
/// ```
/// use forbear::{config::SecretNames, record::*, secrets::Redactor};
/// let record = Record {
///     status: Some(200),
///     attempts: 1,
///     body: BodyField::Inline(b"hello"),
///     bytes: Some(5),
///     ..Record::new(ItemId::Line(7), "http://h/?token=s3cret", Outcome::Done)
/// };
/// let mut line = Vec::new();
/// record.write(&Redactor::new(&SecretNames::default()), &mut line);
/// assert_eq!(
///     String::from_utf8(line).unwrap(),
///     r#"{"id":7,"url":"http://h/?token=***","outcome":"done","status":200,"attempts":1,"limited":0,"waited_s":0.000,"#.to_owned()
///         + r#""bytes":5,"body":"hello"}"# + "\n"
/// );
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// Which item.
    pub id: ItemId<'a>,
    /// The URL as the input has it; `None` only for a line that has none.
    pub url: Option<&'a str>,
    /// What came of it.
    pub outcome: Outcome,
    /// Status of the last answer; `None` if there was none.
    pub status: Option<u16>,
    /// Attempts that count.
    pub attempts: u32,
    /// Refusals, in all runs.
    pub limited: u32,
    /// Time spent waiting for limits. Written in seconds, to the millisecond.
    pub waited: Duration,
    /// What its last request has cost of limits (C1).
    pub cost: Option<u32>,
    /// The way out: `direct`, or the label of an exit, which never holds its credentials.
    pub exit: Option<&'a str>,
    /// The URL that answered last, where redirects led elsewhere.
    pub final_url: Option<&'a str>,
    /// Fields of the last answer's head.
    pub headers: Option<&'a HeaderMap>,
    /// Length of the decoded body.
    pub bytes: Option<u64>,
    /// Where the body is.
    pub body: BodyField<'a>,
    /// What went wrong last, in words.
    pub error: Option<&'a str>,
    /// Why the item ended or waits, in words.
    pub reason: Option<&'a str>,
    /// When a parked item is due. Written rounded up (T2), all other times down.
    pub not_before: Option<Timestamp>,
    /// When its first attempt began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The secrets of the exit that the last answer came through: nothing of the record shows them, an inline body neither.
    pub exit_secrets: Option<&'a ExitSecrets>,
}

impl<'a> Record<'a> {
    /// A record that says nothing else yet.
    #[must_use]
    pub fn new(id: ItemId<'a>, url: impl Into<Option<&'a str>>, outcome: Outcome) -> Record<'a> {
        Record {
            id,
            url: url.into(),
            outcome,
            status: None,
            attempts: 0,
            limited: 0,
            waited: Duration::ZERO,
            cost: None,
            exit: None,
            final_url: None,
            headers: None,
            bytes: None,
            body: BodyField::Absent,
            error: None,
            reason: None,
            not_before: None,
            started_at: None,
            finished_at: None,
            exit_secrets: None,
        }
    }

    /// Appends the record to `out`, newline included.
    pub fn write(&self, redactor: &Redactor, out: &mut Vec<u8>) {
        let secrets = self.exit_secrets;
        let inline = if let BodyField::Inline(body) = self.body { body.len() } else { 0 };
        out.reserve(512 + inline + inline / 3);
        out.extend_from_slice(b"{\"id\":");
        self.id.write(out);
        key(out, "url");
        match self.url {
            Some(url) => string(out, &redactor.url(url)),
            None => out.extend_from_slice(b"null"),
        }
        key(out, "outcome");
        word(out, self.outcome.as_str());
        key(out, "status");
        match self.status {
            Some(status) => number(out, u64::from(status)),
            None => out.extend_from_slice(b"null"),
        }
        key(out, "attempts");
        number(out, u64::from(self.attempts));
        key(out, "limited");
        number(out, u64::from(self.limited));
        key(out, "waited_s");
        seconds(out, self.waited);
        if let Some(cost) = self.cost {
            key(out, "cost");
            number(out, cost.into());
        }
        text(out, "exit", self.exit, redactor, None);
        if let Some(url) = self.final_url {
            key(out, "final_url");
            string(out, &hidden(redactor.url(url), secrets));
        }
        if let Some(headers) = self.headers {
            key(out, "headers");
            write_headers(out, headers, redactor, secrets);
        }
        if let Some(bytes) = self.bytes {
            key(out, "bytes");
            number(out, bytes);
        }
        match self.body {
            BodyField::Absent => {}
            BodyField::Inline(body) => {
                write_body(out, &secrets.map_or(Cow::Borrowed(body), |secrets| secrets.hide_bytes(body)));
            }
            BodyField::File(path) => {
                key(out, "body_file");
                string(out, path);
            }
        }
        text(out, "error", self.error, redactor, secrets);
        text(out, "reason", self.reason, redactor, secrets);
        time(out, "not_before", self.not_before.map(|at| at.plus(Duration::from_micros(999))));
        time(out, "started_at", self.started_at);
        time(out, "finished_at", self.finished_at);
        out.extend_from_slice(b"}\n");
    }
}

/// Appends the record of an item as it stands in a job, for `forbear job export`: parked, pending or leased.
///
/// Gives `false`, and appends nothing, for an item that has ended: its record is in the output, or was kept from the
/// import.
pub fn write_listed(item: &Listed, redactor: &Redactor, out: &mut Vec<u8>) -> bool {
    let (outcome, reason, not_before) = match &item.state {
        State::Pending => (Outcome::Pending, None, None),
        State::Leased => (Outcome::Leased, None, None),
        State::Parked(Until::Time(at), reason) => (Outcome::Parked, Some(reason.clone()), Some(*at)),
        State::Parked(Until::NextRun, reason) => (Outcome::Parked, Some(until("the next run", reason)), None),
        State::Parked(Until::Credentials(account), reason) => {
            (Outcome::Parked, Some(until(&format!("other credentials for {account}"), reason)), None)
        }
        State::Ended(..) => return false,
    };
    let c = &item.counters;
    let record = Record {
        attempts: c.attempts,
        limited: c.limited,
        waited: c.waited,
        error: c.error.as_deref(),
        reason: reason.as_deref().filter(|reason| !reason.is_empty()),
        not_before,
        started_at: c.started_at,
        ..Record::new(
            ItemId::of(item.seq, item.id.as_deref()),
            item.request.as_ref().map(|request| request.url.as_str()),
            outcome,
        )
    };
    record.write(redactor, out);
    true
}

fn until(what: &str, reason: &str) -> String {
    if reason.is_empty() { format!("until {what}") } else { format!("{reason}; until {what}") }
}

/// A moment as in records: UTC, to the millisecond, rounded down ([RFC 3339]). After the year 9999, which that cannot
/// write, its end.
///
/// [RFC 3339]: https://www.rfc-editor.org/rfc/rfc3339
#[must_use]
pub fn rfc3339(at: Timestamp) -> String {
    let mut out = Vec::with_capacity(24);
    write_time(&mut out, at);
    String::from_utf8(out).unwrap_or_default()
}

fn key(out: &mut Vec<u8>, name: &str) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"\":");
}

fn text(
    out: &mut Vec<u8>,
    name: &str,
    value: Option<&str>,
    redactor: &Redactor,
    secrets: Option<&ExitSecrets>,
) {
    if let Some(value) = value {
        key(out, name);
        string(out, &hidden(redactor.text(value), secrets));
    }
}

/// A text without what only its exit may know.
fn hidden<'a>(text: Cow<'a, str>, secrets: Option<&ExitSecrets>) -> Cow<'a, str> {
    match secrets.map(|secrets| secrets.hide(&text)) {
        Some(Cow::Owned(shown)) => Cow::Owned(shown),
        _ => text,
    }
}

fn time(out: &mut Vec<u8>, name: &str, at: Option<Timestamp>) {
    if let Some(at) = at {
        key(out, name);
        out.push(b'"');
        write_time(out, at);
        out.push(b'"');
    }
}

/// A text in which nothing needs an escape, such as the name of a header.
fn word(out: &mut Vec<u8>, text: &str) {
    out.push(b'"');
    out.extend_from_slice(text.as_bytes());
    out.push(b'"');
}

/// A JSON string.
fn string(out: &mut Vec<u8>, text: &str) {
    // Writing into memory does not fail, and neither does the encoding of a string.
    let _ = serde_json::to_writer(&mut *out, text);
}

fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}

fn number(out: &mut Vec<u8>, n: u64) {
    let _ = serde_json::to_writer(&mut *out, &n);
}

fn seconds(out: &mut Vec<u8>, time: Duration) {
    number(out, time.as_secs());
    out.push(b'.');
    digits(out, u64::from(time.subsec_millis()), 3);
}

/// `n` in at least `width` digits, with zeros in front.
fn digits(out: &mut Vec<u8>, n: u64, width: u32) {
    for place in (0..width).rev() {
        out.push(b'0' + (n / 10u64.pow(place) % 10) as u8);
    }
}

/// Whether a text is an integer as JSON writes it, so that it can stand without quotes.
fn is_number(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    // More than 18 digits do not surely fit 64 bits, and many readers would round them.
    (1..=18).contains(&digits.len())
        && digits.bytes().all(|b| b.is_ascii_digit())
        && (digits.len() == 1 || !digits.starts_with('0'))
        && text != "-0"
}

/// An object in the order in which the fields came; a name that comes again has all its values in a list.
fn write_headers(out: &mut Vec<u8>, headers: &HeaderMap, redactor: &Redactor, secrets: Option<&ExitSecrets>) {
    out.push(b'{');
    for (index, name) in headers.keys().enumerate() {
        if index > 0 {
            out.push(b',');
        }
        word(out, name.as_str());
        out.push(b':');
        let mut values = headers.get_all(name).iter().map(|value| {
            // Bytes first: shown as text, a password that is none would be another one.
            match secrets.map(|secrets| secrets.hide_bytes(value.as_bytes())) {
                Some(Cow::Owned(bytes)) => Cow::Owned(redactor.header(name, &bytes).into_owned()),
                _ => redactor.header(name, value.as_bytes()),
            }
        });
        let (Some(first), second) = (values.next(), values.next()) else { continue };
        if let Some(second) = second {
            out.push(b'[');
            string(out, &first);
            for value in std::iter::once(second).chain(values) {
                out.push(b',');
                string(out, &value);
            }
            out.push(b']');
        } else {
            string(out, &first);
        }
    }
    out.push(b'}');
}

fn write_body(out: &mut Vec<u8>, body: &[u8]) {
    if let Ok(text) = std::str::from_utf8(body) {
        key(out, "body");
        string(out, text);
        return;
    }
    key(out, "body_base64");
    out.push(b'"');
    let start = out.len();
    out.resize(start + body.len().div_ceil(3) * 4, 0);
    // The room is exact, so it cannot be too small.
    let written =
        base64::engine::general_purpose::STANDARD.encode_slice(body, &mut out[start..]).unwrap_or(0);
    out.truncate(start + written);
    out.push(b'"');
}

fn write_time(out: &mut Vec<u8>, at: Timestamp) {
    /// The last millisecond of the year 9999.
    const LAST_MS: u64 = 253_402_300_799_999;
    let ms = (at.as_micros() / 1000).min(LAST_MS);
    let (days, in_day) = (ms / 86_400_000, ms % 86_400_000);
    // Years are counted from March, so that the leap day is the last of its year; eras have 400 years.
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    digits(out, year, 4);
    out.push(b'-');
    digits(out, month, 2);
    out.push(b'-');
    digits(out, day, 2);
    out.push(b'T');
    digits(out, in_day / 3_600_000, 2);
    out.push(b':');
    digits(out, in_day / 60_000 % 60, 2);
    out.push(b':');
    digits(out, in_day / 1000 % 60, 2);
    out.push(b'.');
    digits(out, in_day % 1000, 3);
    out.push(b'Z');
}

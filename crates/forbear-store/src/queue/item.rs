//! What goes into a job and what comes out of it: items, their requests, their counters, their ends.

use std::{fmt, path::PathBuf, sync::Arc, time::Duration};

use forbear_core::time::Timestamp;
use serde::{Deserialize, Serialize};

/// An item's number: the line of the input it came from, counted from 1. Its identity within the job.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Seq(pub u64);

/// The number of a *lane*: items that share all their scopes, so that one that may start means all may.
///
/// The key behind it is the caller's (origin, account and endpoint in one text); the job gives it a number at import.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct LaneId(pub(crate) i64);

/// A lane that has items to claim.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Lane {
    /// Its number, for [`Job::claim`](super::Job::claim), and the place to go on from in the next page.
    pub id: LaneId,
    /// The key that the caller gave at import.
    pub key: Arc<str>,
    /// Items that could be claimed now.
    pub pending: u64,
}

/// What is to be sent for an item.
///
/// It may carry credentials (the one exception of K1), so it prints nothing but its sizes.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Request {
    /// The URL as given.
    pub url: String,
    /// Method; `None` is GET.
    pub method: Option<String>,
    /// Header lines in order, repeats kept.
    pub headers: Vec<(String, String)>,
    /// Body, byte-exact.
    pub body: Option<Vec<u8>>,
    /// Name of the account, where the input gives one.
    pub account: Option<String>,
    /// Name of the endpoint, where the input gives one.
    pub endpoint: Option<String>,
    /// What it costs of a limit; `None` is one.
    pub cost: Option<u32>,
    /// Higher goes first within its lane; 0 is usual.
    pub priority: i32,
    /// Whether the input says that it may be sent twice; `None` leaves it to the method.
    pub idempotent: Option<bool>,
}

impl Request {
    /// A plain GET: nothing but a URL. Stored in the fewest bytes.
    #[must_use]
    pub fn get(url: impl Into<String>) -> Request {
        Request { url: url.into(), ..Request::default() }
    }
}

impl fmt::Debug for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Request(*** {} headers, {} bytes)",
            self.headers.len(),
            self.body.as_ref().map_or(0, Vec::len)
        )
    }
}

/// An item on its way into a job.
#[derive(Clone, Debug)]
pub struct NewItem {
    /// Its line; see [`Seq`]. A line that the job has already is skipped, so an import may be repeated.
    pub seq: Seq,
    /// The input's own id; `None` where the line number serves, which costs no space.
    ///
    /// A number is kept as its digits and a string as it is. Only a string that could be taken for one of these other
    /// forms, such as `"7"`, is kept as JSON, quotes included.
    pub id: Option<String>,
    /// Key of its lane; see [`LaneId`].
    pub lane: Arc<str>,
    /// What is to be sent.
    pub request: Request,
    /// Wall-clock time before which it must not start: it is imported as parked.
    pub not_before: Option<Timestamp>,
}

/// An input line that is no item: kept as a failed one, so that it is counted and seen.
#[derive(Clone)]
pub struct BadLine {
    /// Its line.
    pub seq: Seq,
    /// The finished record, a line of JSON: it goes to the output like any other.
    pub record: Vec<u8>,
}

impl fmt::Debug for BadLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BadLine({}, {} bytes)", self.seq.0, self.record.len())
    }
}

/// A part of the input: imported, with the position behind it, in one step.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Good items, by ascending line. A good size is a few thousand, or a MiB of requests, whichever comes first: three
    /// batches may be in memory.
    pub items: Vec<NewItem>,
    /// Lines that are none.
    pub bad: Vec<BadLine>,
    /// Where to read on after a restart.
    pub position: InputPosition,
    /// Whether the input ends here.
    pub end: InputEnd,
}

/// Whether the input has more.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum InputEnd {
    /// More may follow.
    #[default]
    More,
    /// This was the last of it.
    Reached,
}

/// How far the input has been read.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InputPosition {
    /// Bytes read.
    pub offset: u64,
    /// Lines read, comments and blank ones included.
    pub line: u64,
}

/// The right to finish, park or release a claimed item, once.
///
/// It dies with the run that claimed: an answer of an older run is refused.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Lease {
    pub(crate) seq: Seq,
    pub(crate) run: u64,
    pub(crate) token: u64,
}

impl Lease {
    /// The item that it is for.
    #[must_use]
    pub fn seq(self) -> Seq {
        self.seq
    }
}

/// An item in hand.
#[derive(Clone, Debug)]
pub struct Item {
    /// What gives it back.
    pub lease: Lease,
    /// The lane it was claimed from.
    pub lane: LaneId,
    /// The input's own id, or `None` for the line number ([`Seq`]).
    pub id: Option<String>,
    /// What to send.
    pub request: Request,
    /// What has happened to it so far.
    pub counters: Counters,
}

/// What has happened to an item; kept over parking, release and restart.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Attempts that counted (V1).
    pub attempts: u32,
    /// Refusals in this run; zero again in the next.
    pub refusals: u32,
    /// Refusals in all runs.
    pub limited: u32,
    /// Time spent waiting for limits.
    pub waited: Duration,
    /// When its first attempt began.
    pub started_at: Option<Timestamp>,
    /// The last error in words, already redacted.
    pub error: Option<String>,
}

/// How an item ended.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Ending {
    /// Done.
    Done,
    /// Failed for good.
    Failed,
    /// Sent, and nobody can say whether it was processed (V2). Counts as failed.
    Unknown,
}

/// A body that was written aside: synced and renamed before the item is acknowledged.
#[derive(Clone, Debug)]
pub struct BodyFile {
    /// Where it was written.
    pub aside: PathBuf,
    /// Where it belongs; its directory exists.
    pub path: PathBuf,
}

/// The end of an item, to be made durable.
#[derive(Clone)]
pub struct Finish {
    /// The right to say so.
    pub lease: Lease,
    /// How it ended.
    pub ending: Ending,
    /// The output record: one line of JSON, with or without its newline. A run that is killed before it is acknowledged
    /// is matched by its `id` (the item's, or the line number where it has none) and ends as its `outcome` says.
    pub record: Vec<u8>,
    /// The body, if it is a file.
    pub body: Option<BodyFile>,
    /// Its counters at the end; kept for those that failed.
    pub counters: Counters,
}

impl fmt::Debug for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Finish({}, {:?}, {} bytes)", self.lease.seq.0, self.ending, self.record.len())
    }
}

/// What a parked item waits for.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Until {
    /// A wall-clock time.
    Time(Timestamp),
    /// The next run of the job.
    NextRun,
    /// Other credentials for this account: see [`Job::credentials_changed`](super::Job::credentials_changed).
    Credentials(String),
}

/// The fields of a request that are rarely there, as stored. Short names: they stand in every such row.
#[derive(Default, Deserialize, Serialize)]
#[serde(default)]
pub(crate) struct Extras {
    #[serde(rename = "m", skip_serializing_if = "Option::is_none")]
    method: Option<String>,
    #[serde(rename = "h", skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    #[serde(rename = "a", skip_serializing_if = "Option::is_none")]
    account: Option<String>,
    #[serde(rename = "e", skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    #[serde(rename = "c", skip_serializing_if = "Option::is_none")]
    cost: Option<u32>,
    #[serde(rename = "p", skip_serializing_if = "is_zero")]
    priority: i32,
    #[serde(rename = "i", skip_serializing_if = "Option::is_none")]
    idempotent: Option<bool>,
}

fn is_zero(n: &i32) -> bool {
    *n == 0
}

impl Extras {
    /// The stored form; `None` for a plain GET.
    pub(crate) fn encode(request: &Request) -> Option<String> {
        let r = request;
        let plain = r.method.is_none()
            && r.headers.is_empty()
            && r.account.is_none()
            && r.endpoint.is_none()
            && r.cost.is_none()
            && r.priority == 0
            && r.idempotent.is_none();
        if plain {
            return None;
        }
        let extras = Extras {
            method: r.method.clone(),
            headers: r.headers.clone(),
            account: r.account.clone(),
            endpoint: r.endpoint.clone(),
            cost: r.cost,
            priority: r.priority,
            idempotent: r.idempotent,
        };
        Some(serde_json::to_string(&extras).expect("strings and numbers always make JSON"))
    }

    /// The request again.
    pub(crate) fn decode(
        url: String,
        extras: Option<&str>,
        body: Option<Vec<u8>>,
    ) -> Result<Request, serde_json::Error> {
        let Some(text) = extras else {
            return Ok(Request { url, body, ..Request::default() });
        };
        let e: Extras = serde_json::from_str(text)?;
        Ok(Request {
            url,
            method: e.method,
            headers: e.headers,
            body,
            account: e.account,
            endpoint: e.endpoint,
            cost: e.cost,
            priority: e.priority,
            idempotent: e.idempotent,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn k1_a_request_prints_no_secret() {
        let request = Request {
            headers: vec![("Authorization".into(), "Bearer s3cret".into())],
            body: Some(b"s3cret".to_vec()),
            ..Request::get("http://user:s3cret@h/?token=s3cret")
        };
        let item = NewItem { seq: Seq(1), id: None, lane: "h".into(), request, not_before: None };
        assert!(!format!("{item:?}").contains("s3cret"));
    }

    #[test]
    fn j3_a_plain_url_is_stored_as_nothing_but_its_url() {
        assert_eq!(Extras::encode(&Request::get("http://h/")), None);
    }

    #[test]
    fn j1_a_request_survives_being_stored() {
        for request in [
            Request::get("http://h/"),
            Request { body: Some(vec![0, 255]), ..Request::get("http://h/") },
            Request {
                method: Some("POST".into()),
                headers: vec![("A".into(), "1".into()), ("a".into(), "ü\"".into())],
                account: Some("acc".into()),
                endpoint: Some("e".into()),
                cost: Some(7),
                priority: -3,
                idempotent: Some(false),
                ..Request::get("http://h/x")
            },
        ] {
            let text = Extras::encode(&request);
            let back = Extras::decode(request.url.clone(), text.as_deref(), request.body.clone());
            assert_eq!(back.expect("just encoded"), request);
        }
    }
}

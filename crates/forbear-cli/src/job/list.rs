//! `forbear job list`: the items of a job, one a line.

use std::io::{self, BufWriter, Write};

use forbear::{
    record::{ItemId, Outcome},
    secrets::Redactor,
};
use forbear_store::queue::{
    JobAddress, Until,
    inspect::{Listed, State, Which},
};
use serde_json::{Map, Value};

use super::{Pages, failure, open, plain, redactor, show::due};
use crate::{
    args::{ItemState, JobListArgs},
    exit::{Exit, Failure, written},
};

pub(super) fn run(job: &JobAddress, args: &JobListArgs) -> Result<Exit, Failure> {
    let file = open(job)?;
    let summary = file.summary().map_err(|e| failure(job, &e))?;
    let redactor = redactor(job, args.config.as_deref(), &summary)?;
    let which = match args.state {
        None => Which::All,
        Some(ItemState::Pending) => Which::Pending,
        Some(ItemState::Parked) => Which::Parked,
        Some(ItemState::Leased) => Which::Leased,
        Some(ItemState::Done) => Which::Done,
        Some(ItemState::Failed) => Which::Failed,
    };
    let mut pages = Pages::new(&file, which);
    let mut out = BufWriter::with_capacity(1 << 16, io::stdout().lock());
    let mut left = args.limit.unwrap_or(u64::MAX);
    if !args.json {
        let header = "id        state    attempts  limited  until                 url  reason\n";
        if let Err(error) = out.write_all(header.as_bytes()) {
            return written(Err(error));
        }
    }
    while left > 0 {
        let page = pages.next().map_err(|e| failure(job, &e))?;
        if page.is_empty() {
            break;
        }
        for item in page {
            if left == 0 {
                break;
            }
            left -= 1;
            let line = Line::of(&item, &redactor);
            let wrote = if args.json { line.json(&mut out) } else { line.text(&mut out) };
            if let Err(error) = wrote {
                return written(Err(error));
            }
        }
    }
    written(out.flush())
}

/// What is shown of an item; nothing of it is secret.
struct Line {
    id: Value,
    state: Outcome,
    url: Option<String>,
    /// Not known of items that are done: their record has them.
    counted: Option<(u32, u32)>,
    until: Option<String>,
    reason: Option<String>,
}

impl Line {
    fn of(item: &Listed, redactor: &Redactor) -> Line {
        let (state, until, reason) = match &item.state {
            State::Pending => (Outcome::Pending, None, None),
            State::Leased => (Outcome::Leased, None, None),
            State::Parked(until, reason) => {
                let until = match until {
                    Until::Time(at) => due(*at),
                    Until::NextRun => "next run".to_owned(),
                    Until::Credentials(account) => format!("credentials of {account}"),
                };
                (Outcome::Parked, Some(until), Some(reason.as_str()))
            }
            State::Ended(ending, _) => (Outcome::from(*ending), None, None),
        };
        let c = &item.counters;
        let reason = reason.filter(|reason| !reason.is_empty()).or(c.error.as_deref());
        Line {
            id: id(item),
            state,
            url: item.request.as_ref().map(|request| redactor.url(&request.url).into_owned()),
            counted: (state != Outcome::Done).then_some((c.attempts, c.limited)),
            until,
            reason: reason.map(|reason| redactor.text(reason).into_owned()),
        }
    }

    fn text(&self, out: &mut impl Write) -> io::Result<()> {
        let id = match &self.id {
            Value::String(text) => plain(text).into_owned(),
            number => number.to_string(),
        };
        let number = |n: Option<u32>| n.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let until = self.until.as_deref().map_or("-".into(), plain);
        let url = self.url.as_deref().map_or("-".into(), plain);
        let (attempts, limited) = (number(self.counted.map(|c| c.0)), number(self.counted.map(|c| c.1)));
        write!(out, "{id:<8}  {:<7}  {attempts:>8}  {limited:>7}  {until:<20}  {url}", self.state.as_str())?;
        if let Some(reason) = &self.reason {
            write!(out, "  {}", plain(reason))?;
        }
        writeln!(out)
    }

    fn json(&self, out: &mut impl Write) -> io::Result<()> {
        let mut object = Map::new();
        object.insert("id".to_owned(), self.id.clone());
        object.insert("state".to_owned(), self.state.as_str().into());
        object.insert("url".to_owned(), self.url.clone().into());
        if let Some((attempts, limited)) = self.counted {
            object.insert("attempts".to_owned(), attempts.into());
            object.insert("limited".to_owned(), limited.into());
        }
        for (key, text) in [("until", &self.until), ("reason", &self.reason)] {
            if let Some(text) = text {
                object.insert(key.to_owned(), text.clone().into());
            }
        }
        serde_json::to_writer(&mut *out, &Value::Object(object))?;
        writeln!(out)
    }
}

/// The id as the item's record has it.
fn id(item: &Listed) -> Value {
    let of = ItemId::of(item.seq, item.id.as_deref());
    let text = of.text();
    // A string that looks like a number is kept with its quotes, so what has none and reads as a number is one.
    let number = item.id.as_deref().is_none_or(|stored| !stored.starts_with('"'));
    match text.parse::<i64>() {
        Ok(n) if number && n.to_string() == text && text.len() <= 18 => n.into(),
        _ => text.into(),
    }
}

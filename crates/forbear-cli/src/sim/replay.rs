//! `forbear sim --replay`: what a real run met, from its records, as a limiter to try policies against.
//!
//! Records say when each page came and how often it was refused, and not each request. So the limiter is the least one that
//! lets through what came: a token bucket at the pace of the best third of the run, with the burst that the rest shows.

use std::{
    collections::HashMap,
    fs::File,
    io::{BufRead, BufReader},
    path::Path,
    time::Duration,
};

use forbear::client::Target;
use forbear_core::time::Timestamp;
use forbear_zoo::{Rate, Spec};
use serde::Deserialize;

use crate::{exit::Failure, explain::instant};

/// What the records of one host come to.
#[derive(Clone, Debug)]
pub(super) struct Replay {
    /// `host`, or `host:port`.
    pub(super) host: String,
    /// Pages that came.
    pub(super) pages: u32,
    /// Refusals on the way.
    pub(super) refused: u64,
    /// Attempts that failed otherwise.
    pub(super) faults: u64,
    /// From the first start to the last page.
    pub(super) took: Duration,
    /// The middle one of the times that pages took which were never refused; none if there are none.
    pub(super) latency: Option<Duration>,
    /// The limit, if it was met.
    pub(super) limiter: Option<Spec>,
}

#[derive(Deserialize)]
struct Record {
    url: Option<String>,
    outcome: String,
    #[serde(default)]
    attempts: u64,
    #[serde(default)]
    limited: u64,
    #[serde(default)]
    waited_s: f64,
    started_at: Option<String>,
    finished_at: Option<String>,
}

/// One host's pages.
#[derive(Default)]
struct Pages {
    /// When each came, in seconds since 1970.
    came: Vec<f64>,
    took: Vec<f64>,
    first: Option<f64>,
    refused: u64,
    faults: u64,
}

impl Replay {
    /// Reads the records of a run; of several hosts those of `host`, else of the one with most pages.
    ///
    /// # Errors
    /// A file that cannot be read or has no records, a line that is none, too few pages.
    pub(super) fn read(path: &Path, host: Option<&str>) -> Result<Replay, Failure> {
        let wrong = |text: String| Failure::usage(format!("--replay: {}: {text}", path.display()));
        let file = File::open(path).map_err(|error| wrong(error.to_string()))?;
        let mut hosts: HashMap<String, Pages> = HashMap::new();
        for (n, line) in BufReader::new(file).lines().enumerate() {
            if n == RECORDS_MAX {
                return Err(wrong(format!("more than {RECORDS_MAX} records; give a part of them")));
            }
            let line = line.map_err(|error| wrong(error.to_string()))?;
            let record: Record = serde_json::from_str(&line)
                .map_err(|_| wrong(format!("line {} is no record of `forbear fetch`", n + 1)))?;
            let target = record.url.as_deref().and_then(|url| Target::parse(url).ok());
            let Some(target) = target else { continue }; // a bad line of the input
            let origin = target.origin();
            let name = origin.split_once("://").map_or(origin, |(_, host)| host);
            hosts.entry(name.to_owned()).or_default().add(&record);
        }
        let of = match host {
            Some(host) => hosts.remove_entry(host),
            None => {
                // Of two with as many, the first of the alphabet, so that it is the same each time.
                let busiest = hosts
                    .iter()
                    .max_by_key(|(name, pages)| (pages.came.len(), std::cmp::Reverse((*name).clone())));
                busiest.map(|(name, _)| name.clone()).and_then(|name| hosts.remove_entry(&name))
            }
        };
        let none =
            if host.is_some() { "there is no record of that host" } else { "there is no record in it" };
        let (host, pages) = of.ok_or_else(|| wrong(none.to_owned()))?;
        if pages.came.len() < PAGES_MIN {
            let count = pages.came.len();
            return Err(wrong(format!(
                "{count} pages of {host} came; at least {PAGES_MIN} are needed to see a pace"
            )));
        }
        Ok(pages.replay(host))
    }
}

impl Pages {
    fn add(&mut self, record: &Record) {
        self.refused += record.limited;
        self.faults += record.attempts.saturating_sub(1);
        let moment = |text: &Option<String>| text.as_deref().and_then(instant).map(seconds);
        let (Some(started), Some(finished)) = (moment(&record.started_at), moment(&record.finished_at))
        else {
            return;
        };
        self.first = Some(self.first.map_or(started, |first| first.min(started)));
        if record.outcome != "done" {
            return;
        }
        self.came.push(finished);
        if record.limited == 0 && record.attempts <= 1 && record.waited_s == 0.0 {
            self.took.push((finished - started).max(0.001));
        }
    }

    fn replay(mut self, host: String) -> Replay {
        self.came.sort_by(f64::total_cmp);
        self.took.sort_by(f64::total_cmp);
        let first = self.first.unwrap_or(self.came[0]);
        let last = self.came.last().copied().unwrap_or(first);
        let latency = self.took.get(self.took.len() / 2).map(|seconds| {
            Duration::from_millis((seconds * 1000.0).round() as u64) // as precise as a record
        });
        Replay {
            host,
            pages: u32::try_from(self.came.len()).unwrap_or(u32::MAX),
            refused: self.refused,
            faults: self.faults,
            took: Duration::from_secs_f64((last - first).max(0.001)),
            latency,
            limiter: (self.refused > 0).then(|| least_bucket(&self.came)),
        }
    }
}

/// The least token bucket that lets through what came at these moments, which go up: its rate is that of the best third.
fn least_bucket(came: &[f64]) -> Spec {
    let third = ((came[came.len() - 1] - came[0]) / 3.0).max(1.0);
    let (mut rate, mut from) = (0.0f64, 0);
    for (to, at) in came.iter().enumerate() {
        // The shortest stretch that ends here and is a third at least.
        while from + 1 < to && at - came[from + 1] >= third {
            from += 1;
        }
        if at - came[from] >= third {
            rate = rate.max((to - from) as f64 / (at - came[from]));
        }
    }
    let rate = if rate > 0.0 { rate } else { came.len() as f64 / third };
    // A bucket of so many: at no moment more had come than that, beside what the rate brings.
    let (mut least, mut burst) = (f64::INFINITY, 1.0f64);
    for (n, at) in came.iter().enumerate() {
        let before = n as f64 - rate * at;
        least = least.min(before);
        burst = burst.max(before + 1.0 - least);
    }
    let in_an_hour = (rate * 3600.0).round().clamp(1.0, f64::from(u32::MAX)) as u32;
    let rate = Rate::new(in_an_hour, Duration::from_secs(3600)).unwrap_or(Rate::per_second(1));
    Spec::token_bucket(rate, burst.ceil().min(f64::from(u32::MAX)) as u32)
}

fn seconds(at: Timestamp) -> f64 {
    at.as_micros() as f64 / 1e6
}

/// Fewer show no pace.
const PAGES_MIN: usize = 20;
/// Some hundred megabytes of moments.
const RECORDS_MAX: usize = 10_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_bucket_has_the_rate_and_the_burst_that_came() {
        // Ten at once, then four a second; a stop of a minute, and on.
        let burst = (0..10).map(|n| 1000.0 + f64::from(n) * 0.001);
        let then = (1..=400).map(|n| 1000.0 + f64::from(n) * 0.25);
        let after = (1..=400).map(|n| 1160.0 + f64::from(n) * 0.25);
        let came: Vec<f64> = burst.chain(then).chain(after).collect();
        let text = least_bucket(&came).to_string();
        let rate: f64 =
            text.split("rate=").nth(1).unwrap().split('/').next().unwrap().parse::<f64>().unwrap() / 3600.0;
        let count: u32 = text.split("burst=").nth(1).unwrap().parse().unwrap();
        assert!((3.9..4.3).contains(&rate), "{text}");
        assert!((10..=13).contains(&count), "{text}");
    }
}

//! Short jobs: there is hardly time to learn.

use std::time::Duration;

use forbear_zoo::Tide;

use crate::{
    net::Latency,
    scenario::{Scenario, TrueKind, Truth, Work},
};

/// A job of 300 pages by 16 workers.
#[derive(Clone, Debug)]
pub struct Job {
    /// The limiter's name.
    pub name: &'static str,
    /// Requests a second that it allows.
    pub rate: u32,
    /// What is run.
    pub scenario: Scenario,
    /// The wait of one exhaustion, as it is told or as it is.
    wait: f64,
    /// So many go through at once.
    at_once: f64,
}

/// The limiters of the zoo, with `R` for requests a second and `T` for ten times as many; whether a window shuts for long, and
/// how many seconds of the rate go through at once.
const LIMITERS: [(&str, &str, TrueKind, f64, f64); 16] = [
    ("token bucket, Retry-After", "token-bucket:rate=R/s,burst=R,hint=seconds", TrueKind::Bucket, 1.0, 1.0),
    ("token bucket, silent", "token-bucket:rate=R/s,burst=R", TrueKind::Bucket, 1.0, 1.0),
    ("token bucket, burst 1", "token-bucket:rate=R/s,burst=1", TrueKind::Bucket, 1.0, 0.0),
    (
        "token bucket, debt",
        "token-bucket:rate=R/s,burst=R,rejected=count,hint=seconds",
        TrueKind::Bucket,
        1.0,
        1.0,
    ),
    ("GCRA, draft 7", "gcra:rate=R/s,burst=R,hint=draft-7", TrueKind::Bucket, 1.0, 1.0),
    ("GCRA, structured", "gcra:rate=R/s,burst=R,hint=structured", TrueKind::Bucket, 1.0, 1.0),
    ("fixed window, Retry-After", "fixed-window:limit=T/10s,hint=seconds", TrueKind::Fixed, 10.0, 10.0),
    ("fixed window, silent", "fixed-window:limit=T/10s", TrueKind::Fixed, 10.0, 10.0),
    (
        "window from first request",
        "fixed-window:limit=T/10s,phase=first-request,hint=reset-epoch",
        TrueKind::Fixed,
        10.0,
        10.0,
    ),
    ("sliding log, ms", "sliding-log:limit=T/10s,hint=ms", TrueKind::Sliding, 10.0, 10.0),
    ("sliding log, silent", "sliding-log:limit=T/10s", TrueKind::Sliding, 10.0, 10.0),
    (
        "sliding log, rejected count",
        "sliding-log:limit=T/10s,rejected=count,hint=seconds",
        TrueKind::Sliding,
        10.0,
        10.0,
    ),
    ("sliding counter, silent", "sliding-counter:limit=T/10s", TrueKind::Sliding, 10.0, 10.0),
    (
        "penalty of 2 s, Retry-After",
        "token-bucket:rate=R/s,burst=R,penalty=2s,hint=seconds",
        TrueKind::Penalty,
        2.0,
        1.0,
    ),
    ("penalty of 2 s, silent", "token-bucket:rate=R/s,burst=R,penalty=2s", TrueKind::Penalty, 2.0, 1.0),
    (
        "ban after 3 in 10 s",
        "token-bucket:rate=R/s,burst=R,ban=3/10s/5s,hint=seconds",
        TrueKind::Bucket,
        1.0,
        1.0,
    ),
];

/// All of them, at 2 to 50 a second.
#[must_use]
pub fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for (name, text, kind, wait, seconds) in LIMITERS {
        for rate in [2, 5, 10, 20, 50] {
            let text = text.replace("T/", &format!("{}/", 10 * rate)).replace('R', &rate.to_string());
            let Ok(spec) = text.parse() else { continue };
            let at_once = (seconds * f64::from(rate)).max(1.0);
            let truth =
                Truth { kind, rate: f64::from(rate), number: at_once, window: None, tide: Tide::default() };
            let latency = Latency {
                round_trip: Duration::from_millis(40),
                service: Duration::from_millis(60),
                spread: 0.5,
            };
            let scenario = Scenario {
                spec,
                truth,
                nodes: 1,
                others: 0.0,
                latency,
                workers: 16,
                work: Work::Pages(PAGES),
                run_for: Duration::from_secs(7200),
                crashes: Vec::new(),
                seed: 0x0b_5000 + u64::from(rate),
            };
            jobs.push(Job { name, rate, scenario, wait, at_once });
        }
    }
    jobs
}

impl Job {
    /// Seconds that an oracle takes which is charged with one exhaustion: the pages at the pace that is allowed, after what goes
    /// through at once; the wait, told or real; and a start-up that doubles from two a second.
    #[must_use]
    pub fn oracle(&self) -> f64 {
        let (pages, rate) = (f64::from(PAGES), f64::from(self.rate));
        let latency = self.scenario.latency.mean().as_secs_f64();
        let flow = ((pages - self.at_once).max(0.0) / rate).max(pages * latency / 16.0);
        let doublings = (rate / 2.0).max(1.0).log2();
        flow + self.wait + 0.5 * doublings + latency
    }
}

/// Pages of a short job.
const PAGES: u32 = 300;

//! What is like none of the sets: bans, two limits at once, other tenants, several nodes, a client that is slow itself.

use std::time::Duration;

use forbear_zoo::Tide;

use crate::{
    net::Latency,
    scenario::{Scenario, TrueKind, Truth, Work},
};

/// One such case, an hour long.
#[derive(Clone, Debug)]
pub struct RowCase {
    /// What it is.
    pub name: &'static str,
    /// What is run.
    pub scenario: Scenario,
}

/// All of them.
#[must_use]
pub fn rows() -> Vec<RowCase> {
    let bucket = TrueKind::Bucket;
    let mut rows = vec![
        row(
            "penalty of 30 s, told",
            "token-bucket:rate=20/s,burst=20,penalty=30s,hint=seconds",
            TrueKind::Penalty,
            20.0,
        ),
        row(
            "penalty of 30 s, silent",
            "token-bucket:rate=20/s,burst=20,penalty=30s",
            TrueKind::Penalty,
            20.0,
        ),
        row(
            "ban of 10 min after 3 in 60 s, told",
            "token-bucket:rate=20/s,burst=20,ban=3/60s/10m,hint=seconds",
            bucket,
            20.0,
        ),
        row(
            "ban of 10 min after 3 in 60 s, silent",
            "token-bucket:rate=20/s,burst=20,ban=3/60s/10m",
            bucket,
            20.0,
        ),
        row(
            "bucket in debt, told",
            "token-bucket:rate=20/s,burst=20,rejected=count,hint=seconds",
            bucket,
            20.0,
        ),
        row(
            "log that counts refusals, told",
            "sliding-log:limit=600/30s,rejected=count,hint=seconds",
            TrueKind::Sliding,
            20.0,
        ),
        row(
            "log that counts refusals, silent",
            "sliding-log:limit=600/30s,rejected=count",
            TrueKind::Sliding,
            20.0,
        ),
        row(
            "two windows, told",
            "fixed-window:limit=10/1s,hint=seconds + fixed-window:limit=300/60s",
            TrueKind::Fixed,
            5.0,
        ),
        row(
            "two windows, silent",
            "fixed-window:limit=10/1s + fixed-window:limit=300/60s",
            TrueKind::Fixed,
            5.0,
        ),
    ];
    // Others take 20 of 50; what they leave is what can be had.
    let mut tenants = row("others take 20 of 50/s", "token-bucket:rate=50/s,burst=50", bucket, 30.0);
    tenants.scenario.others = 20.0;
    let mut told =
        row("others take 20 of 50/s, told", "token-bucket:rate=50/s,burst=50,hint=seconds", bucket, 30.0);
    told.scenario.others = 20.0;
    let mut nodes = row("four nodes of 10/s each", "token-bucket:rate=10/s,burst=20", bucket, 40.0);
    nodes.scenario.nodes = 4;
    let mut slow =
        row("a client of 5/s at a limit of 100/s", "token-bucket:rate=100/s,burst=10", bucket, 100.0);
    slow.scenario.work = Work::Stream(5.0);
    rows.extend([tenants, told, nodes, slow]);
    rows
}

fn row(name: &'static str, text: &str, kind: TrueKind, rate: f64) -> RowCase {
    let scenario = Scenario {
        spec: text.parse().unwrap_or_else(|_| forbear_zoo::Spec::open()),
        truth: Truth { kind, rate, number: 0.0, window: None, tide: Tide::default() },
        nodes: 1,
        others: 0.0,
        latency: Latency {
            round_trip: Duration::from_millis(50),
            service: Duration::from_millis(50),
            spread: 0.5,
        },
        workers: 500,
        work: Work::Endless,
        run_for: Duration::from_secs(3600),
        crashes: Vec::new(),
        seed: 0x0b_0001,
    };
    RowCase { name, scenario }
}

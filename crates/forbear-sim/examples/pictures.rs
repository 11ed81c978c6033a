//! Writes the pictures and the figures of `docs/concepts/six-policies.md`: `cargo run -p forbear-sim --example pictures`. The same
//! seeds give the same bytes, and a test compares them with what is there.

use std::{fmt::Write as _, fs, path::PathBuf, time::Duration};

use forbear::config::{Settings, Sources};
use forbear_sim::{
    Client, Gated, Latency, Report, Scenario, Trace, TrueKind, Truth, Work,
    habits::{Alone, Board, Retry},
    picture::{Column, side_by_side},
    run_traced,
};
use forbear_zoo::Tide;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

/// What the page shows: pictures by name, and its table.
pub(crate) struct Shown {
    /// A name and the SVG.
    pub(crate) pictures: Vec<(&'static str, String)>,
    /// The table in Markdown.
    pub(crate) figures: String,
}

#[allow(dead_code, reason = "the test compares, and writes nothing")]
fn main() -> Result<(), Box<dyn std::error::Error>> {
    let shown = shown()?;
    let docs = docs();
    fs::create_dir_all(docs.join("pictures"))?;
    for (name, svg) in &shown.pictures {
        fs::write(docs.join("pictures").join(name), svg)?;
    }
    let page = docs.join(PAGE);
    let text = fs::read_to_string(&page)?;
    fs::write(&page, with_figures(&text, &shown.figures).ok_or("the page has no place for figures")?)?;
    Ok(())
}

/// Where the documentation is.
pub(crate) fn docs() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs"))
}

/// The page.
pub(crate) const PAGE: &str = "concepts/six-policies.md";

/// The page with this table in its place.
pub(crate) fn with_figures(text: &str, figures: &str) -> Option<String> {
    let (before, rest) = text.split_once(BEGIN)?;
    let (_, after) = rest.split_once(END)?;
    Some(format!("{before}{BEGIN}\n{figures}{END}{after}"))
}

const BEGIN: &str = "<!-- written by `cargo run -p forbear-sim --example pictures` -->";
const END: &str = "<!-- end -->";

/// A run that is drawn.
struct Ran {
    name: &'static str,
    note: String,
    trace: Trace,
    report: Report,
}

fn settings(policy: &str) -> Result<Settings, Box<dyn std::error::Error>> {
    Ok(Sources { policy: Some(policy.to_owned()), ..Sources::default() }.load()?.settings)
}

/// The gate by a shipped policy; with the rate of its hosts, or another one.
fn gate(policy: &str, rate: Option<&str>, workers: u32) -> Result<Gated, Box<dyn std::error::Error>> {
    let settings = settings(policy)?;
    let host = settings.for_host("site0.test", 443);
    let rate = rate.map(str::parse).transpose()?.or(host.rate);
    Ok(Gated::new(settings.scope_policy(rate, host.concurrency.or(settings.host_concurrency)), workers))
}

/// Before a limit of so many a second.
fn before(
    spec: &str,
    rate: f64,
    workers: u32,
    answer: Duration,
    run_for: Duration,
) -> Result<Scenario, Box<dyn std::error::Error>> {
    Ok(Scenario {
        spec: spec.parse()?,
        truth: Truth { kind: TrueKind::Bucket, rate, number: 2.0, window: None, tide: Tide::default() },
        nodes: 1,
        others: 0.0,
        latency: Latency { round_trip: answer / 10, service: answer - answer / 10, spread: 0.0 },
        workers,
        work: Work::Endless,
        run_for,
        crashes: Vec::new(),
        seed: 1,
    })
}

fn play<C: Client>(
    name: &'static str,
    scenario: &Scenario,
    mut client: C,
) -> Result<Ran, Box<dyn std::error::Error>> {
    let mut trace = Trace::new();
    let report = run_traced(scenario, &mut client, &mut trace)?;
    let (pages, refused) = (report.done, report.whole.refused);
    let note = format!("{pages} pages, {refused} refused ({:.1} %)", 100.0 * report.whole.refused_share());
    Ok(Ran { name, note, trace, report })
}

fn draw(title: &str, runs: &[Ran]) -> Result<String, Box<dyn std::error::Error>> {
    let columns: Vec<Column<'_>> =
        runs.iter().map(|ran| Column { name: ran.name, note: &ran.note, trace: &ran.trace }).collect();
    Ok(side_by_side(title, &columns)?)
}

/// All of it.
pub(crate) fn shown() -> Result<Shown, Box<dyn std::error::Error>> {
    let mut shown = Shown {
        pictures: Vec::new(),
        figures: "| before | who | sent | refused | pages | most in 100 ms |\n| --- | --- | --- | --- | --- | --- |\n"
            .to_owned(),
    };
    let mut add = |file, title: &str, runs: Vec<Ran>| -> Result<(), Box<dyn std::error::Error>> {
        for ran in &runs {
            let Report { sent, done, herd, whole, .. } = &ran.report;
            writeln!(
                shown.figures,
                "| {title} | {} | {sent} | {} ({:.1} %) | {done} | {herd} |",
                ran.name,
                whole.refused,
                100.0 * whole.refused_share()
            )?;
        }
        shown.pictures.push((file, draw(title, &runs)?));
        Ok(())
    };

    let each = Retry::FullJitter { base: S, cap: 60 * S };
    let door = before("maintenance:from=5s,for=4s,hint=seconds,lie=0.75", 213.0, 64, 300 * MS, 15 * S)?;
    add(
        "shared-gate.svg",
        "64 workers, shut for 4 s, told 3 s",
        vec![
            play("each for itself", &door, Alone::new(each, 64))?,
            play("shared-gate", &door, gate("shared-gate", None, 64)?)?,
        ],
    )?;

    let sixteen = before("token-bucket:rate=2/s,burst=4", 2.0, 16, 100 * MS, 300 * S)?;
    add(
        "sixteen.svg",
        "16 workers, 2/s allowed, nothing told",
        vec![
            play("a retry every 2 s", &sixteen, Alone::new(Retry::Every(2 * S), 16))?,
            play("retry-after, told 2/s", &sixteen, gate("retry-after", Some("2/s"), 16)?)?,
        ],
    )?;

    let strict =
        before("token-bucket:rate=2/s,burst=2,penalty=30s/60s,hint=seconds", 2.0, 8, 300 * MS, 600 * S)?;
    add(
        "board.svg",
        "8 workers, 2/s allowed, told 30 s, 60 s if early",
        vec![
            play("each doubles", &strict, Alone::new(Retry::Doubling { base: 2 * S }, 8))?,
            play("cap of 2 and a board", &strict, Board::new(8, 2))?,
            play("retry-after, told 2/s", &strict, gate("retry-after", Some("2/s"), 8)?)?,
        ],
    )?;

    let fifty = before("maintenance:from=5s,for=500ms", 500.0, 50, 100 * MS, 10 * S)?;
    let wide = Retry::FullJitter { base: S, cap: 30 * S };
    add(
        "fifty.svg",
        "50 workers, shut for half a second",
        vec![
            play("1 s, no jitter", &fifty, Alone::new(Retry::Every(S), 50))?,
            play("full jitter, each", &fifty, Alone::new(wide, 50))?,
            play("shared-gate", &fifty, gate("shared-gate", None, 50)?)?,
        ],
    )?;

    let bucket = before("token-bucket:rate=6/s,burst=5", 6.0, 50, 100 * MS, 300 * S)?;
    add(
        "bucket.svg",
        "50 workers, 6/s allowed, nothing told",
        vec![
            play("full jitter, each", &bucket, Alone::new(wide, 50))?,
            play("jitter-bucket", &bucket, gate("jitter-bucket", None, 50)?)?,
        ],
    )?;
    Ok(shown)
}

//! What a run shows while it runs: a live line on a terminal, else plain lines, all on stderr.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use forbear::engine::{Event, Progress as Numbers, Watch};
use indicatif::{ProgressBar, ProgressStyle};

use crate::args::Progress;

/// Shows events and numbers.
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    quiet: bool,
    ended: AtomicBool,
    /// When a pause of a scope was told last.
    told: Mutex<HashMap<String, Instant>>,
}

impl Display {
    pub(crate) fn new(wanted: Progress, terminal: bool) -> Display {
        let live = wanted == Progress::Auto && terminal;
        let bar = live.then(|| {
            let bar = ProgressBar::new(0);
            let style = "{spinner} {pos}/{len} {wide_bar} {msg}";
            bar.set_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            bar.enable_steady_tick(Duration::from_millis(100));
            bar
        });
        Display {
            bar,
            quiet: wanted == Progress::None,
            ended: AtomicBool::new(false),
            told: Mutex::default(),
        }
    }

    /// A line for people.
    pub(crate) fn say(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.println(format!("forbear: {text}")),
            None => eprintln!("forbear: {text}"),
        }
    }

    pub(crate) fn event(&self, event: &Event) {
        match event {
            Event::Paused { scope, wait, incident, .. } => {
                // One calm line a pause: neither a scope that flaps nor a budget of a second fills a screen.
                let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
                let now = Instant::now();
                let recent = told.get(scope).is_some_and(|at| now.duration_since(*at) < BETWEEN_PAUSES);
                let short = !incident && wait.is_some_and(|wait| wait < Duration::from_secs(1));
                if short || recent {
                    tracing::info!("{event}");
                    return;
                }
                if told.len() < SCOPES_TOLD {
                    told.insert(scope.clone(), now);
                }
                drop(told);
                if !self.quiet {
                    self.say(&event.to_string());
                }
            }
            Event::Reopened { .. } => tracing::info!("{event}"),
            _ => self.say(&event.to_string()),
        }
    }

    /// Shows the numbers of a run until it ends.
    pub(crate) fn watch(self: &std::sync::Arc<Self>, watch: Watch) {
        if self.quiet {
            return;
        }
        let display = self.clone();
        tokio::spawn(async move {
            let mut last = Instant::now();
            let mut every = if display.bar.is_some() { LIVE } else { FIRST_LINE };
            while !display.ended.load(Ordering::Acquire) {
                tokio::time::sleep(LIVE).await;
                if last.elapsed() < every {
                    continue;
                }
                last = Instant::now();
                let numbers = watch.progress();
                match &display.bar {
                    Some(bar) => display.draw(bar, &numbers),
                    None => {
                        every = PLAIN;
                        if !display.ended.load(Ordering::Acquire) {
                            display.say(&line(&numbers));
                        }
                    }
                }
            }
        });
    }

    fn draw(&self, bar: &ProgressBar, numbers: &Numbers) {
        let counts = &numbers.counts;
        bar.set_length(counts.imported);
        bar.set_position(counts.imported - counts.open().min(counts.imported));
        bar.set_message(short(numbers));
    }

    /// The run is over: nothing is drawn any more.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

fn short(numbers: &Numbers) -> String {
    let counts = &numbers.counts;
    let ended = counts.imported.saturating_sub(counts.open());
    let rate = ended as f64 / numbers.elapsed.as_secs_f64().max(0.001);
    let mut text = format!("{rate:.0}/s, {} in flight", numbers.in_flight);
    if counts.parked > 0 {
        text.push_str(&format!(", {} parked", counts.parked));
    }
    if counts.failed + counts.unknown > 0 {
        text.push_str(&format!(", {} failed", counts.failed + counts.unknown));
    }
    let refused: u64 = numbers.hosts.iter().map(|host| host.refused).sum();
    if refused > 0 {
        text.push_str(&format!(", {refused} refusals"));
    }
    text
}

fn line(numbers: &Numbers) -> String {
    let counts = &numbers.counts;
    let mut text = format!("{} of {} done, {}", counts.done, counts.imported, short(numbers));
    if let Some(share) = numbers.input_share.filter(|share| *share < 1.0) {
        text.push_str(&format!(", {:.0} % of the input read", share * 100.0));
    }
    text
}

const LIVE: Duration = Duration::from_millis(200);
const FIRST_LINE: Duration = Duration::from_secs(5);
const PLAIN: Duration = Duration::from_secs(15);
const BETWEEN_PAUSES: Duration = Duration::from_secs(10);
const SCOPES_TOLD: usize = 10_000;

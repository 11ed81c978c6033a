//! What a run shows while it runs: a live line on a terminal, else plain lines, all on stderr.
//!
//! Lines are written by a thread of their own, from a bounded queue: a terminal that is stopped, or a pipe that nobody
//! reads, holds up no request. What does not fit in is counted, and said when there is room again.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use forbear::engine::{Event, Progress as Numbers, Watch};
use indicatif::{ProgressBar, ProgressStyle};

use crate::{args::Progress, shell};

/// Shows events and numbers.
pub(crate) struct Display {
    bar: Option<ProgressBar>,
    quiet: bool,
    ended: AtomicBool,
    lines: Mutex<Option<SyncSender<String>>>,
    /// Lines that did not fit into the queue.
    left_out: AtomicU64,
    /// Hears when the last line is written.
    written: Mutex<Receiver<()>>,
    told: Mutex<Told>,
}

/// What was told of pauses, so that they fill no screen.
#[derive(Default)]
struct Told {
    /// When each scope was told of last.
    scopes: HashMap<String, Instant>,
    /// Pauses told, and not told, since `from`.
    from: Option<Instant>,
    shown: u32,
    hidden: u32,
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
        let (sender, lines) = sync_channel::<String>(LINES_MAX);
        let (done, written) = channel();
        let shown = bar.clone();
        let writer = thread::Builder::new().name("forbear-lines".into()).spawn(move || {
            for line in lines {
                match &shown {
                    Some(bar) => bar.println(format!("forbear: {line}")),
                    None => shell::say(&line),
                }
            }
            let _ = done.send(());
        });
        Display {
            bar,
            quiet: wanted == Progress::None,
            ended: AtomicBool::new(false),
            lines: Mutex::new(writer.is_ok().then_some(sender)),
            left_out: AtomicU64::new(0),
            written: Mutex::new(written),
            told: Mutex::default(),
        }
    }

    /// A line for people.
    pub(crate) fn say(&self, text: &str) {
        let lines = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(sender) = lines.as_ref() else { return };
        let left_out = self.left_out.swap(0, Ordering::Relaxed);
        if left_out > 0
            && let Err(TrySendError::Full(_)) = sender.try_send(format!("{left_out} lines were left out"))
        {
            self.left_out.fetch_add(left_out, Ordering::Relaxed);
        }
        if let Err(TrySendError::Full(_)) = sender.try_send(text.to_owned()) {
            self.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn event(&self, event: &Event) {
        match event {
            Event::Paused { scope, wait, incident, .. } => {
                let short = !incident && wait.is_some_and(|wait| wait < Duration::from_secs(1));
                if short || !self.is_worth_a_line(scope) {
                    tracing::info!("{event}");
                } else if !self.quiet {
                    self.say(&event.to_string());
                }
            }
            Event::Reopened { .. } => tracing::info!("{event}"),
            _ => self.say(&event.to_string()),
        }
    }

    /// One calm line a pause: neither a scope that flaps, nor a thousand hosts that pause together, fills a screen.
    fn is_worth_a_line(&self, scope: &str) -> bool {
        let mut told = self.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let now = Instant::now();
        if told.from.is_none_or(|from| now.duration_since(from) > BETWEEN_PAUSES) {
            let hidden = std::mem::take(&mut told.hidden);
            (told.from, told.shown) = (Some(now), 0);
            if hidden > 0 && !self.quiet {
                self.say(&format!("and {hidden} more pauses; -v tells of each"));
            }
        }
        if told.scopes.get(scope).is_some_and(|at| now.duration_since(*at) < BETWEEN_PAUSES) {
            return false;
        }
        if told.shown >= PAUSES_MAX {
            told.hidden += 1;
            return false;
        }
        told.shown += 1;
        if told.scopes.len() >= SCOPES_TOLD {
            told.scopes.clear();
        }
        told.scopes.insert(scope.to_owned(), now);
        true
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
        let sender = self.lines.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        if sender.is_some() {
            drop(sender);
            let written = self.written.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let _ = written.recv_timeout(LAST_LINES);
        }
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
    if numbers.gate_lost {
        text.push_str(", gate store lost");
    }
    if let Some(exits) = &numbers.exits {
        text.push_str(&format!(", exits {}/{}", exits.usable, exits.all));
    }
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
/// Pauses that are told of in each of those times.
const PAUSES_MAX: u32 = 20;
/// Lines that wait to be written.
const LINES_MAX: usize = 1000;
/// How long the last of them are waited for.
const LAST_LINES: Duration = Duration::from_secs(1);

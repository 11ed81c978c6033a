//! What is shown while the demo runs: a bar for each client on a terminal, else plain lines; all on stderr.

use std::{
    io::{self, IsTerminal},
    time::{Duration, Instant},
};

use forbear::engine::Event;
use forbear_zoo::{Counts, Server};
use indicatif::{ProgressBar, ProgressStyle};

use crate::shell;

/// Shows how far the clients are, by what their servers count.
pub(super) struct View {
    pages: u64,
    live: bool,
    bar: Option<ProgressBar>,
}

/// Says what happens to the fetch, above its bar.
pub(super) struct Teller {
    bar: Option<ProgressBar>,
}

impl View {
    pub(super) fn new(pages: u32) -> View {
        View { pages: u64::from(pages), live: io::stderr().is_terminal(), bar: None }
    }

    /// A line for people.
    pub(super) fn say(&self, text: &str) {
        say(self.bar.as_ref(), text);
    }

    /// For the events of the client that is followed next.
    pub(super) fn teller(&mut self) -> Teller {
        Teller { bar: self.begin() }
    }

    /// Shows what `server` counts until `work` is over.
    pub(super) async fn follow<T>(
        &mut self,
        name: &str,
        server: &Server,
        work: impl Future<Output = T>,
    ) -> T {
        let bar = self.begin();
        tokio::pin!(work);
        let (every, mut last, started) =
            (if self.live { LIVE } else { PLAIN }, Counts::default(), Instant::now());
        let mut ticks = tokio::time::interval(every);
        let mut recent = (Instant::now(), 0);
        let mut rate = 0.0;
        let ended = loop {
            tokio::select! {
                ended = &mut work => break ended,
                _ = ticks.tick() => {
                    let counts = server.counts();
                    let since = recent.0.elapsed();
                    if since >= Duration::from_secs(1) {
                        rate = (counts.served - recent.1) as f64 / since.as_secs_f64();
                        recent = (Instant::now(), counts.served);
                    }
                    if let Some(bar) = &bar {
                        bar.set_prefix(name.to_owned());
                        bar.set_position(counts.served.min(self.pages));
                        bar.set_message(format!("{rate:.0}/s, {} refused", counts.refused));
                    } else if counts != last {
                        self.say(&format!("{name}: {}, {rate:.0}/s", progress(&counts, self.pages)));
                    }
                    last = counts;
                }
            }
        };
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
        let took = started.elapsed().as_secs_f64();
        self.say(&format!("{name}: {} in {took:.1} s", progress(&server.counts(), self.pages)));
        ended
    }

    /// Nothing is drawn any more.
    pub(super) fn end(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }

    fn begin(&mut self) -> Option<ProgressBar> {
        if self.live && self.bar.is_none() {
            let bar = ProgressBar::new(self.pages);
            let style = "{spinner} {prefix:8} {pos:>4}/{len} pages {wide_bar} {msg}";
            bar.set_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            );
            self.bar = Some(bar);
        }
        self.bar.clone()
    }
}

impl Teller {
    pub(super) fn event(&self, event: &Event) {
        match event {
            Event::Paused { incident: false, .. } | Event::Reopened { .. } => tracing::info!("{event}"),
            _ => say(self.bar.as_ref(), &event.to_string()),
        }
    }
}

fn progress(counts: &Counts, pages: u64) -> String {
    format!(
        "{} of {pages} pages, {} requests, {} refused",
        counts.served.min(pages),
        counts.hits,
        counts.refused
    )
}

fn say(bar: Option<&ProgressBar>, text: &str) {
    match bar {
        Some(bar) => bar.println(format!("forbear: {text}")),
        None => shell::say(text),
    }
}

/// How often a bar is drawn.
const LIVE: Duration = Duration::from_millis(100);
/// How often a line is written.
const PLAIN: Duration = Duration::from_secs(3);

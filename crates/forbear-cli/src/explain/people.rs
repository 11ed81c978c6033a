//! What a response says and what would be done, in words.

use std::io::{self, Write};

use forbear::config::Settings;
use forbear_core::{
    hint::{Profile, Reading, ScopeHint, TOO_LONG, WaitSource},
    outcome::{Outcome, Refusal, of_response},
    time::Timestamp,
    verdict::{History, Verdict, verdict},
};

use crate::words::{moment, wait};

/// One response, and all that decides what is done about it.
pub(crate) struct Explained<'a> {
    pub(crate) status: u16,
    pub(crate) reading: &'a Reading,
    pub(crate) profile: Option<&'static Profile>,
    pub(crate) settings: &'a Settings,
    pub(crate) now: Timestamp,
}

impl Explained<'_> {
    /// Prints both halves: what is said, and what forbear would do.
    ///
    /// # Errors
    /// Of the stream.
    pub(crate) fn print(&self, out: &mut impl Write) -> io::Result<()> {
        // Credentials are assumed, since without them a 401 needs no explanation.
        let outcome = of_response(self.status, self.reading, true);
        writeln!(out, "The response, status {}, read at {}", self.status, moment(self.now))?;
        for (name, text) in self.said() {
            writeln!(out, "  {name:11} {text}")?;
        }
        writeln!(out, "\nWhat forbear would do, policy {}", self.settings.policy)?;
        writeln!(out, "  {:11} {}", "scope", self.scope(&outcome))?;
        writeln!(out, "  {:11} {}", "item", self.item(&outcome))?;
        out.flush()
    }

    fn said(&self) -> Vec<(&'static str, String)> {
        let reading = self.reading;
        let mut lines = vec![("limited", if reading.limited { "yes" } else { "no" }.to_owned())];
        if reading.kind.as_str() != "none" {
            lines.push(("kind", reading.kind.as_str().replace('_', " ")));
        }
        let told = match reading.wait {
            Some(w) if w.is_zero() => {
                "a time that is already over, which is no leave to come at once".to_owned()
            }
            Some(w) if w >= TOO_LONG => "a time too long to hold".to_owned(),
            Some(w) => format!("{}, until {}", wait(w), moment(self.now.plus(w))),
            None if reading.limited => "nothing that can be read".to_owned(),
            None => "nothing".to_owned(),
        };
        lines.push(("told wait", told));
        let evidence = &reading.evidence;
        if !evidence.field().is_empty() {
            lines.push(("decided by", format!("{}: {}", evidence.field(), evidence.value())));
        }
        if !evidence.reason().is_empty() {
            lines.push(("because", evidence.reason().to_owned()));
        }
        if let Some(budget) = reading.budget {
            let number = |n: Option<f64>| n.map_or("?".to_owned(), |n| n.to_string());
            let mut text = format!("{} of {} left", number(budget.remaining), number(budget.limit));
            if let Some(window) = budget.window {
                text += &format!(", window {}", wait(window));
            }
            if let Some(reset) = budget.reset_after {
                text += &format!(", refilled in {}", wait(reset));
            }
            lines.push(("budget", text));
        }
        if reading.limited {
            lines.push(("whose", whose(reading.scope_hint).to_owned()));
        }
        if let Some(again) = reading.should_retry {
            let text = if again {
                "this request may be sent again, after the wait"
            } else {
                "this request should not be sent again"
            };
            lines.push(("again", text.to_owned()));
        }
        if let Some(profile) = self.profile {
            lines.push(("profile", profile.name().to_owned()));
        }
        lines
    }

    /// What becomes of the scope that the response is about.
    fn scope(&self, outcome: &Outcome) -> String {
        let told = self.reading.wait.filter(|w| !w.is_zero());
        match (outcome, told) {
            (Outcome::Refused(refusal), Some(told)) => {
                let mut text = self.closed_for(told);
                if told > self.settings.pause_cap && refusal.told().may_be_one_items {
                    text += &format!(
                        "; as that is over {}, one other item asks after {} whether all are meant",
                        wait(self.settings.pause_cap),
                        wait(self.settings.backoff.base())
                    );
                }
                text
            }
            (Outcome::Refused(_), None) => {
                let backoff = &self.settings.backoff;
                let (base, cap) = (wait(backoff.base()), wait(backoff.cap()));
                format!(
                    "closed for a backoff, {base} at first and up to {cap} when it repeats; then one request probes"
                )
            }
            (Outcome::Success, Some(told)) if self.reading.limited => self.closed_for(told),
            (Outcome::Overloaded, _) => "fewer requests at once; a pause if it repeats".to_owned(),
            (Outcome::Unauthorised, _) => {
                "open; the account stops when two different items meet this with no success between"
                    .to_owned()
            }
            _ => "stays open".to_owned(),
        }
    }

    fn closed_for(&self, told: std::time::Duration) -> String {
        let least = told.saturating_add(self.settings.pad.over(told));
        let most = least.saturating_add(told.mul_f64(self.settings.jitter).min(TOO_LONG));
        let until = moment(self.now.plus(least));
        if told >= TOO_LONG {
            return "closed for good".to_owned();
        }
        format!(
            "closed until {until}, and up to {} more by chance; then one request probes",
            wait(most - least)
        )
    }

    /// What becomes of the item, were this its first try.
    fn item(&self, outcome: &Outcome) -> String {
        let first = History { idempotent: true, ..History::default() };
        let policy = self.settings.item_policy();
        match verdict(outcome, &first, &policy, true, 0.0) {
            Verdict::Done => "done".to_owned(),
            Verdict::Retry { after } => {
                format!("once more after {} or so, attempt 2 of {}", wait(after), policy.max_attempts)
            }
            Verdict::Elsewhere { after } => format!("once more by another exit after {} or so", wait(after)),
            Verdict::Hold { told } if told.is_zero() => "kept in hand until the scope opens".to_owned(),
            Verdict::Hold { .. } => {
                format!("kept in hand until then, since the told wait is at most {}", wait(policy.hold_max))
            }
            Verdict::Park { told, .. } if told >= TOO_LONG => "parked for good".to_owned(),
            Verdict::Park { wait: time, .. } => {
                let why = match outcome {
                    Outcome::Refused(Refusal {
                        from: Some(WaitSource::Instruction | WaitSource::Reset),
                        ..
                    }) => {
                        format!(", since the told wait is over {}", wait(policy.hold_max))
                    }
                    _ => String::new(),
                };
                format!("parked until {}{why}", moment(self.now.plus(time)))
            }
            Verdict::ParkForNextRun => "parked until the next run".to_owned(),
            Verdict::ParkForCredentials => "parked until there are new credentials".to_owned(),
            Verdict::Fail(reason) => format!("failed: {}", reason.as_str()),
            Verdict::Unknown => "unknown: it may have been done, and doing it twice may do harm".to_owned(),
        }
    }
}

fn whose(hint: Option<ScopeHint>) -> &'static str {
    match hint {
        None => "not said, so it is taken for everyone's: the widest scope closes",
        Some(ScopeHint::Account) => "the account's (key, token, tenant or user)",
        Some(ScopeHint::App) => "the app's, over all its users",
        Some(ScopeHint::Endpoint) => "the endpoint's",
        Some(ScopeHint::Global) => "everything of this credential",
        Some(ScopeHint::Ip) => "the address's that requests come from",
        Some(ScopeHint::Service) => "the backend's, whoever asks",
    }
}

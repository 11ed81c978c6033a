//! Every key, once: its name, what it takes, what it means, how it is set and shown. The reference is checked against it.

use std::{num::NonZeroU32, time::Duration};

use forbear_core::{
    backoff::{Backoff, Jitter},
    hint::Profile,
    pace::RateList,
    policy::OnNoHint,
};

use super::{
    Endpoint, HostSettings, Pace, PathPattern, PathPatternError, Rotate, Settings, SettingsError, Sticky,
    exits::price, given::Given, show_duration, show_size, suggest,
};

/// A key that sets a part of a `T`.
pub(super) struct Key<T> {
    /// As it is written; with a table in front where it stands in one (`circuit.pause`).
    pub(super) name: &'static str,
    /// What it takes, in a few words.
    pub(super) takes: &'static str,
    pub(super) set: fn(&mut T, Given<'_>) -> Result<(), String>,
    pub(super) show: fn(&T) -> Option<String>,
}

/// Settings in the making: fields that are checked together are apart until all are known.
#[derive(Clone)]
pub(super) struct Draft {
    pub(super) settings: Settings,
    /// The form of the jitter, the base and the cap.
    backoff: (Jitter, Duration, Duration),
}

impl Default for Draft {
    fn default() -> Draft {
        let settings = Settings::default();
        Draft { backoff: (Jitter::Full, settings.backoff.base(), settings.backoff.cap()), settings }
    }
}

impl Draft {
    /// The finished settings.
    pub(super) fn build(mut self) -> Result<Settings, SettingsError> {
        let (form, base, cap) = self.backoff;
        let form = if self.settings.jitter == 0.0 { Jitter::Off } else { form };
        self.settings.backoff = Backoff::new(base, cap, form).map_err(SettingsError::Backoff)?;
        self.settings.check()?;
        self.settings.exits.fill_in();
        Ok(self.settings)
    }
}

/// The keys of the top level and of its plain tables, in the order in which they are shown.
pub(super) static TOP: &[Key<Draft>] = &[
    Key {
        name: "workers",
        takes: "a count from 1",
        set: |d, g| put(&mut d.settings.workers, g.count("nobody would send anything")),
        show: |d| text(d.settings.workers),
    },
    Key {
        name: "timeout",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.timeout, g.some_duration("every attempt would fail")),
        show: |d| time(d.settings.timeout),
    },
    Key {
        name: "run_for",
        takes: "a time, like \"2h\", or \"none\"",
        set: |d, g| {
            let found =
                g.unless("none").map(|g| g.some_duration("nothing would be sent; \"none\" sets no limit"));
            put(&mut d.settings.run_for, found.transpose())
        },
        show: |d| Some(d.settings.run_for.map_or("none".to_owned(), show_duration)),
    },
    Key {
        name: "stall_after",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.stall_after, g.duration()),
        show: |d| time(d.settings.stall_after),
    },
    Key {
        name: "max_attempts",
        takes: "a count from 1",
        set: |d, g| {
            put(&mut d.settings.max_attempts, g.count("the first try is an attempt too; 1 means no retry"))
        },
        show: |d| text(d.settings.max_attempts),
    },
    Key {
        name: "refusals_per_item",
        takes: "a count from 1",
        set: |d, g| {
            put(&mut d.settings.refusals_per_item, g.count("an item would park before it was refused"))
        },
        show: |d| text(d.settings.refusals_per_item),
    },
    Key {
        name: "hold_max",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.hold_max, g.duration()),
        show: |d| time(d.settings.hold_max),
    },
    Key {
        name: "pause_cap",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.pause_cap, g.duration()),
        show: |d| time(d.settings.pause_cap),
    },
    Key {
        name: "backoff",
        takes: "\"full\", \"decorrelated\", \"equal\" or \"half\"",
        set: |d, g| put(&mut d.backoff.0, g.one_of(FORMS)),
        show: |d| word(FORMS, d.backoff.0),
    },
    Key {
        name: "backoff_base",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.backoff.1, g.some_duration("retries would hammer; the shortest is \"1ms\"")),
        show: |d| time(d.backoff.1),
    },
    Key {
        name: "backoff_cap",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.backoff.2, g.some_duration("it may not be shorter than backoff_base")),
        show: |d| time(d.backoff.2),
    },
    Key {
        name: "on_no_hint",
        takes: "\"hold\" or \"park\"",
        set: |d, g| put(&mut d.settings.on_no_hint, g.one_of(NO_HINTS)),
        show: |d| word(NO_HINTS, d.settings.on_no_hint),
    },
    Key {
        name: "jitter",
        takes: "a share from 0 to 1",
        set: |d, g| put(&mut d.settings.jitter, g.float_within(0.0, 1.0, SettingsError::Jitter)),
        show: |d| text(d.settings.jitter),
    },
    Key {
        name: "pad.factor",
        takes: "a number from 1 to 10",
        set: |d, g| put(&mut d.settings.pad.factor, g.float_within(1.0, 10.0, SettingsError::PadFactor)),
        show: |d| text(d.settings.pad.factor),
    },
    Key {
        name: "pad.fixed",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.pad.fixed, g.duration()),
        show: |d| time(d.settings.pad.fixed),
    },
    Key {
        name: "probe_lease",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.probe_lease, g.some_duration("every waiter would be the probe")),
        show: |d| time(d.settings.probe_lease),
    },
    Key {
        name: "pace",
        takes: "\"configured\" or \"learned\"",
        set: |d, g| put(&mut d.settings.pace, g.one_of(PACES)),
        show: |d| word(PACES, d.settings.pace),
    },
    Key {
        name: "rate",
        takes: "rates, like \"5/15s\" or \"500/min requests, 9000/min tokens\", or \"none\"",
        set: |d, g| put(&mut d.settings.rate, g.unless("none").map(|g| g.rates()).transpose()),
        show: |d| Some(d.settings.rate.map_or("none".to_owned(), |r| r.to_string())),
    },
    Key {
        name: "host_concurrency",
        takes: "a count from 1 or \"learned\"",
        set: |d, g| {
            let found =
                g.unless("learned").map(|g| g.count("nothing would be sent; \"learned\" sets no ceiling"));
            put(&mut d.settings.host_concurrency, found.transpose())
        },
        show: |d| Some(d.settings.host_concurrency.map_or("learned".to_owned(), |n| n.to_string())),
    },
    Key {
        name: "scope",
        takes: "a list, like [\"origin\", \"origin+account\"]",
        set: |d, g| put(&mut d.settings.scope, g.scopes()),
        show: |d| list(&d.settings.scope),
    },
    Key {
        name: "body_max",
        takes: "a size, like \"64MiB\"",
        set: |d, g| put(&mut d.settings.body_max, g.size()),
        show: |d| Some(show_size(d.settings.body_max)),
    },
    Key {
        name: "cookies",
        takes: "true or false",
        set: |d, g| put(&mut d.settings.cookies, g.yes()),
        show: |d| text(d.settings.cookies),
    },
    Key {
        name: "user_agent",
        takes: "a text",
        set: |d, g| {
            let legal =
                |t: String| http::HeaderValue::from_str(&t).map(|_| t).map_err(|_| NO_VALUE.to_owned());
            put(&mut d.settings.user_agent, g.free_text().and_then(legal))
        },
        show: |d| Some(d.settings.user_agent.clone()),
    },
    Key {
        name: "queue",
        takes: "a file, or an address like \"postgres://user@host/database\"",
        set: |d, g| put(&mut d.settings.queue, g.queue().map(Some)),
        show: |d| Some(d.settings.queue.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)),
    },
    Key {
        name: "public_only",
        takes: "true or false",
        set: |d, g| put(&mut d.settings.public_only, g.yes()),
        show: |d| text(d.settings.public_only),
    },
    Key {
        name: "gate",
        takes: "\"memory\", a file, or an address like \"redis://host:6379\"",
        set: |d, g| put(&mut d.settings.gate, g.gate()),
        show: |d| text(&d.settings.gate),
    },
    Key {
        name: "circuit.refusals",
        takes: "a count from 1",
        set: |d, g| {
            put(&mut d.settings.circuit.refusals, g.count("it would trip over nothing").map(u32::from))
        },
        show: |d| text(d.settings.circuit.refusals),
    },
    Key {
        name: "circuit.incidents",
        takes: "a count from 1",
        set: |d, g| {
            put(&mut d.settings.circuit.incidents, g.count("it would trip over nothing").map(u32::from))
        },
        show: |d| text(d.settings.circuit.incidents),
    },
    Key {
        name: "circuit.pause",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.circuit.pause, g.some_duration("it would close nothing")),
        show: |d| time(d.settings.circuit.pause),
    },
    Key {
        name: "secrets.query",
        takes: "a list of names, like [\"token\"]",
        set: |d, g| {
            let names = g.texts().map(|names| names.into_iter().map(str::to_ascii_lowercase).collect());
            put(&mut d.settings.secrets.query, names)
        },
        show: |d| list(&d.settings.secrets.query),
    },
    Key {
        name: "secrets.headers",
        takes: "a list of names, like [\"token\"]",
        set: |d, g| put(&mut d.settings.secrets.headers, g.header_names()),
        show: |d| list(&d.settings.secrets.headers),
    },
    Key {
        name: "exits.concurrency",
        takes: "a count from 1, or \"none\"",
        set: |d, g| {
            let found = g.unless("none").map(|g| g.count("nothing would be sent; \"none\" sets no ceiling"));
            put(&mut d.settings.exits.concurrency, found.transpose())
        },
        show: |d| Some(d.settings.exits.concurrency.map_or("none".to_owned(), |n| n.to_string())),
    },
    Key {
        name: "exits.sticky",
        takes: "\"off\", \"session\" or \"account\"",
        set: |d, g| put(&mut d.settings.exits.sticky, g.one_of(STICKY)),
        show: |d| word(STICKY, d.settings.exits.sticky),
    },
    Key {
        name: "exits.rotate",
        takes: "\"retries\" or \"never\"",
        set: |d, g| put(&mut d.settings.exits.rotate, g.one_of(ROTATE)),
        show: |d| word(ROTATE, d.settings.exits.rotate),
    },
    Key {
        name: "exits.blocked_retries",
        takes: "a count from 0",
        set: |d, g| put(&mut d.settings.exits.blocked_retries, g.tally()),
        show: |d| text(d.settings.exits.blocked_retries),
    },
    Key {
        name: "exits.fault_wait",
        takes: "a time, like \"30s\" or \"1h30m\"",
        set: |d, g| put(&mut d.settings.exits.fault_wait, g.duration()),
        show: |d| time(d.settings.exits.fault_wait),
    },
    Key {
        name: "exits.min_success",
        takes: "a share from 0 to 1",
        set: |d, g| {
            put(&mut d.settings.exits.min_success, g.float_within(0.0, 1.0, SettingsError::MinSuccess))
        },
        show: |d| text(d.settings.exits.min_success),
    },
    Key {
        name: "exits.price_per_gb",
        takes: "a number from 0, or \"none\"",
        set: |d, g| put(&mut d.settings.exits.price_per_gb, g.unless("none").map(price).transpose()),
        show: |d| Some(d.settings.exits.price_per_gb.map_or("none".to_owned(), |p| p.to_string())),
    },
    Key {
        name: "exits.price_per_request",
        takes: "a number from 0, or \"none\"",
        set: |d, g| put(&mut d.settings.exits.price_per_request, g.unless("none").map(price).transpose()),
        show: |d| Some(d.settings.exits.price_per_request.map_or("none".to_owned(), |p| p.to_string())),
    },
];

/// The keys of a `[hosts."NAME"]` table; `headers` and `endpoints` are tables of their own.
pub(super) static HOST: &[Key<HostSettings>] = &[
    Key {
        name: "rate",
        takes: "rates, like \"5/15s\" or \"500/min requests, 9000/min tokens\"",
        set: |h, g| put(&mut h.rate, g.rates().map(Some)),
        show: |h| h.rate.and_then(text),
    },
    Key {
        name: "concurrency",
        takes: "a count from 1",
        set: |h, g| put(&mut h.concurrency, g.count("nothing would be sent").map(Some)),
        show: |h| h.concurrency.and_then(text),
    },
    Key {
        name: "scope",
        takes: "a list, like [\"origin\", \"origin+account\"]",
        set: |h, g| put(&mut h.scope, g.scopes().map(Some)),
        show: |h| h.scope.as_ref().and_then(|s| list(s)),
    },
    Key {
        name: "service",
        takes: "a profile's name",
        set: |h, g| put(&mut h.service, g.free_text().and_then(profile).map(Some)),
        show: |h| h.service.clone(),
    },
];

/// The keys of a `[[hosts."NAME".endpoints]]` table.
pub(super) static ENDPOINT: &[Key<EndpointDraft>] = &[
    Key {
        name: "match",
        takes: "a path pattern, like \"/v1/**\"",
        set: |e, g| {
            let read = |t: String| t.parse().map(Some).map_err(|p: PathPatternError| p.to_string());
            put(&mut e.matches, g.free_text().and_then(read))
        },
        show: |e| e.matches.as_ref().and_then(text),
    },
    Key {
        name: "name",
        takes: "a text",
        set: |e, g| put(&mut e.name, g.free_text().and_then(name)),
        show: |e| e.name.clone(),
    },
    Key {
        name: "rate",
        takes: "rates, like \"5/15s\" or \"500/min requests, 9000/min tokens\"",
        set: |e, g| put(&mut e.rate, g.rates().map(Some)),
        show: |e| e.rate.and_then(text),
    },
    Key {
        name: "concurrency",
        takes: "a count from 1",
        set: |e, g| put(&mut e.concurrency, g.count("nothing would be sent").map(Some)),
        show: |e| e.concurrency.and_then(text),
    },
];

/// An endpoint in the making.
#[derive(Default)]
pub(super) struct EndpointDraft {
    pub(super) name: Option<String>,
    pub(super) matches: Option<PathPattern>,
    pub(super) rate: Option<RateList>,
    pub(super) concurrency: Option<NonZeroU32>,
}

impl EndpointDraft {
    /// The finished endpoint, called by its pattern if it has no name; `None` without a pattern.
    pub(super) fn build(self) -> Option<Endpoint> {
        let matches = self.matches?;
        let name = self.name.unwrap_or_else(|| matches.to_string());
        Some(Endpoint { name, matches, rate: self.rate, concurrency: self.concurrency })
    }
}

impl From<&Endpoint> for EndpointDraft {
    fn from(e: &Endpoint) -> EndpointDraft {
        EndpointDraft {
            name: Some(e.name.clone()),
            matches: Some(e.matches.clone()),
            rate: e.rate,
            concurrency: e.concurrency,
        }
    }
}

/// The name of a profile that there is.
fn profile(name: String) -> Result<String, String> {
    if Profile::by_name(&name).is_some() {
        return Ok(name);
    }
    let near = suggest::nearest(&name, Profile::all().iter().map(Profile::name));
    Err(near
        .map_or_else(|| format!("there is no profile `{name}`"), |near| format!("did you mean \"{near}\"?")))
}

/// A name of one's own choosing that scopes and messages can carry.
fn name(text: String) -> Result<Option<String>, String> {
    if text.is_empty() || text.chars().any(char::is_control) {
        Err("a name may not be empty".to_owned())
    } else {
        Ok(Some(text))
    }
}

fn put<T>(place: &mut T, found: Result<T, String>) -> Result<(), String> {
    *place = found?;
    Ok(())
}

fn text(value: impl ToString) -> Option<String> {
    Some(value.to_string())
}

fn time(value: Duration) -> Option<String> {
    Some(show_duration(value))
}

fn list<T: ToString>(values: &[T]) -> Option<String> {
    Some(values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
}

fn word<T: Copy + PartialEq>(words: &[(&str, T)], value: T) -> Option<String> {
    words.iter().find(|(_, v)| *v == value).map(|(w, _)| (*w).to_owned())
}

pub(super) const NO_VALUE: &str = "not a legal header value: it has characters that would end the header";
const FORMS: &[(&str, Jitter)] = &[
    ("full", Jitter::Full),
    ("decorrelated", Jitter::Decorrelated),
    ("equal", Jitter::Equal),
    ("half", Jitter::Half),
];
const STICKY: &[(&str, Sticky)] =
    &[("off", Sticky::Off), ("session", Sticky::Session), ("account", Sticky::Account)];
const ROTATE: &[(&str, Rotate)] = &[("retries", Rotate::Retries), ("never", Rotate::Never)];
const NO_HINTS: &[(&str, OnNoHint)] = &[("hold", OnNoHint::Hold), ("park", OnNoHint::Park)];
const PACES: &[(&str, Pace)] = &[("configured", Pace::Configured), ("learned", Pace::Learned)];

//! The settings of a run: what each means, its default, and why.

use std::{num::NonZeroU32, time::Duration};

use forbear_core::pace::Rate;

use super::{
    Group, HostPattern, HostSettings, Scope,
    host::{group_of, merge},
};

/// Everything that the engine is told, after policy, file and flags.
///
/// The defaults are those of the policy `polite`.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Settings {
    /// The policy that these settings started from: a shipped name, or a path. Default `polite`.
    pub policy: String,
    /// Requests that may be on the wire at once, over all hosts. Default 64: enough to hide the latency of a few dozen
    /// hosts, few enough for the 1024 files that many systems allow.
    pub workers: NonZeroU32,
    /// One attempt, all of it: connecting, sending, the whole body. Never zero. Default 30 s.
    pub timeout: Duration,
    /// The whole run. Never zero. Default none: it ends when the work does (X2).
    pub run_for: Option<Duration>,
    /// Without `run_for`, a run in which nothing is in flight ends when the earliest due time is further off than this
    /// (X2). Default 15 min.
    pub stall_after: Duration,
    /// Attempts of one item that may fail by a fault, the first one included; refusals are counted apart (V1). Default 5.
    pub max_attempts: NonZeroU32,
    /// Refusals of one item in one run, after which it parks. Default 4.
    pub refusals_per_item: NonZeroU32,
    /// The longest told wait for which an item is kept in hand; a longer one parks it (P6). Zero parks every time.
    /// A wait over `pause_cap` parks in any case. Default 30 s.
    pub hold_max: Duration,
    /// The longest told wait that closes the scope without asking again; over it, one other item may probe (P7). Default
    /// 300 s.
    pub pause_cap: Duration,
    /// The pause when a refusal gives no usable time (P4, B3), and between tries after a fault.
    pub backoff: Backoff,
    /// What to do with an item that was refused without a time. Default [`OnNoHint::Hold`].
    pub on_no_hint: OnNoHint,
    /// What is added to a told time before anything starts (P1, P5).
    pub pad: Pad,
    /// The share of a wait that may be added by chance, after every cap (P1). Default 0.1.
    pub jitter: Jitter,
    /// How long a probe holds the right to be the only one, from its last renewal (B1). Never zero. Default 15 s.
    pub probe_lease: Duration,
    /// Where the pace comes from (L1-L6). Default [`Pace::Learned`].
    pub pace: Pace,
    /// What limits count (S1), where a host does not say otherwise; never empty. Default: the group, the origin, the origin
    /// with the account, the origin with the endpoint; each where a request has one.
    pub scope: Vec<Scope>,
    /// A ceiling on requests in flight to one origin, where a host does not say otherwise. Default none: it starts at 4 and
    /// is learned, up to `workers`.
    pub host_concurrency: Option<NonZeroU32>,
    /// A ceiling on the starts of the whole run, over all hosts (C1). Default none.
    pub rate: Option<Rate>,
    /// The longest body, decoded, in bytes (K4); a longer one is a failure that names the size. Default 16 MiB.
    pub body_max: u64,
    /// Whether cookies are kept and sent, apart for each exit. Default no: a fleet is not a browser.
    pub cookies: bool,
    /// The `User-Agent` where an item or a host has none; empty sends none. Default `forbear/VERSION`.
    pub user_agent: String,
    /// Whether addresses that are not public (loopback, private, link-local) are refused, also after a redirect (K2).
    /// Default no, so that it works against one's own servers.
    pub public_only: bool,
    /// What is said about single hosts, in the order of the file. Read it by [`for_host`](Settings::for_host).
    pub hosts: Vec<(HostPattern, HostSettings)>,
    /// Origins that share one limit. Read it by [`group_of`](Settings::group_of).
    pub groups: Vec<Group>,
    /// Names whose values are secret, beside those that always are (K1).
    pub secrets: SecretNames,
    /// When a scope trips, and for how long (X1).
    pub circuit: Circuit,
}

/// Why settings, each possible alone, do not go together.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A backoff of nothing would hammer.
    #[error("backoff_base must be longer than nothing; the shortest is `1ms`")]
    ZeroBackoff,
    /// The cap is the most that the base may grow to.
    #[error(
        "backoff_cap ({}) is shorter than backoff_base ({}); raise the one or lower the other",
        super::words::show_duration(*.cap),
        super::words::show_duration(*.base)
    )]
    CapBelowBase {
        /// The first pause.
        base: Duration,
        /// The longest one.
        cap: Duration,
    },
    /// Not a share.
    #[error("jitter is the share of a wait that may be added, from 0 to 1")]
    Jitter,
    /// A factor below one would start before the told time (P1).
    #[error("pad.factor must be from 1 to 10: a told time may be stretched, never shortened")]
    PadFactor,
    /// Tripping over nothing.
    #[error("circuit.{0} must be at least 1")]
    Circuit(&'static str),
    /// A time that must last.
    #[error("{0} must be longer than nothing")]
    ZeroTime(&'static str),
    /// A request must count somewhere.
    #[error("scope must name at least one combination, such as `origin`")]
    NoScope,
    /// A group that no scope counts.
    #[error(
        "groups are declared, but no `scope` counts `group`, so they would do nothing; add `group` to `scope`"
    )]
    UnusedGroups,
}

impl SettingsError {
    /// The keys that it is about, the likelier culprit first.
    pub(super) fn keys(&self) -> &'static [&'static str] {
        match self {
            SettingsError::ZeroBackoff => &["backoff_base"],
            SettingsError::CapBelowBase { .. } => &["backoff_cap", "backoff_base"],
            SettingsError::UnusedGroups => &["groups"],
            _ => &[],
        }
    }
}

impl Settings {
    /// Checks what no type of a single field can: that the fields go together.
    ///
    /// Settings that were read are checked already; those changed in code are checked by whoever takes them.
    ///
    /// # Errors
    /// The first thing that does not fit.
    pub fn check(&self) -> Result<(), SettingsError> {
        if self.timeout.is_zero() {
            return Err(SettingsError::ZeroTime("timeout"));
        }
        if self.run_for.is_some_and(|d| d.is_zero()) {
            return Err(SettingsError::ZeroTime("run_for"));
        }
        if self.probe_lease.is_zero() {
            return Err(SettingsError::ZeroTime("probe_lease"));
        }
        let scopes =
            || std::iter::once(&self.scope).chain(self.hosts.iter().filter_map(|(_, h)| h.scope.as_ref()));
        if scopes().any(Vec::is_empty) {
            return Err(SettingsError::NoScope);
        }
        if !self.groups.is_empty() && !scopes().flatten().any(|s| s.group()) {
            return Err(SettingsError::UnusedGroups);
        }
        Ok(())
    }

    /// All that is said about one host: of two tables that match it, the one about fewer hosts wins, key by key.
    ///
    /// It walks all tables, so ask once an origin, not once a request. `host` is as in a URL; an IPv6 address may have its
    /// brackets.
    #[must_use]
    pub fn for_host(&self, host: &str, port: u16) -> HostSettings {
        merge(&self.hosts, host, port)
    }

    /// The group that a host belongs to; of several, the one with the most particular member.
    #[must_use]
    pub fn group_of(&self, host: &str, port: u16) -> Option<&Group> {
        group_of(&self.groups, host, port)
    }
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            policy: "polite".to_owned(),
            workers: nonzero(64),
            timeout: Duration::from_secs(30),
            run_for: None,
            stall_after: Duration::from_secs(15 * 60),
            max_attempts: nonzero(5),
            refusals_per_item: nonzero(4),
            hold_max: Duration::from_secs(30),
            pause_cap: Duration::from_secs(300),
            backoff: Backoff::default(),
            on_no_hint: OnNoHint::Hold,
            pad: Pad::default(),
            jitter: Jitter::default(),
            probe_lease: Duration::from_secs(15),
            pace: Pace::Learned,
            scope: vec![Scope::GROUP, Scope::ORIGIN, Scope::ORIGIN_ACCOUNT, Scope::ORIGIN_ENDPOINT],
            host_concurrency: None,
            rate: None,
            body_max: 16 << 20,
            cookies: false,
            user_agent: concat!("forbear/", env!("CARGO_PKG_VERSION")).to_owned(),
            public_only: false,
            hosts: Vec::new(),
            groups: Vec::new(),
            secrets: SecretNames::default(),
            circuit: Circuit::default(),
        }
    }
}

/// How a wait that nobody told grows: capped, exponential, with jitter.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Backoff {
    form: BackoffForm,
    base: Duration,
    cap: Duration,
}

impl Backoff {
    /// A first pause of about `base` that grows to `cap`.
    ///
    /// # Errors
    /// A base of zero, and a cap below the base.
    pub fn new(form: BackoffForm, base: Duration, cap: Duration) -> Result<Backoff, SettingsError> {
        if base.is_zero() {
            return Err(SettingsError::ZeroBackoff);
        }
        if cap < base {
            return Err(SettingsError::CapBelowBase { base, cap });
        }
        Ok(Backoff { form, base, cap })
    }

    /// How chance enters. Default [`BackoffForm::Full`].
    #[must_use]
    pub fn form(&self) -> BackoffForm {
        self.form
    }

    /// The shortest pause. Default 1 s.
    #[must_use]
    pub fn base(&self) -> Duration {
        self.base
    }

    /// The longest pause, before B3 doubles it. Default 60 s.
    #[must_use]
    pub fn cap(&self) -> Duration {
        self.cap
    }
}

impl Default for Backoff {
    fn default() -> Backoff {
        Backoff { form: BackoffForm::Full, base: Duration::from_secs(1), cap: Duration::from_secs(60) }
    }
}

/// How chance enters a backoff. `e` is `min(cap, base x 2^n)` after `n` tries.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum BackoffForm {
    /// Anywhere between nothing and `e`.
    Full,
    /// Anywhere between `base` and three times the last pause, at most `cap`.
    Decorrelated,
    /// `e` times 0.5 to 1.5, so at most 1.5 x `cap`.
    Equal,
}

/// What becomes of an item that was refused without a usable time.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum OnNoHint {
    /// It goes by the pause of P4 like any other: held while that is short (P6).
    Hold,
    /// It parks until the backoff is over, whatever its length; the scope pauses all the same.
    Park,
}

/// What is added to a told time: `told x factor + fixed`. What P5 learns comes on top.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pad {
    factor: f64,
    fixed: Duration,
}

impl Pad {
    /// A pad that stretches by `factor` and then adds `fixed`.
    ///
    /// # Errors
    /// A factor below 1, above 10 or not a number.
    pub fn new(factor: f64, fixed: Duration) -> Result<Pad, SettingsError> {
        if (1.0..=10.0).contains(&factor) { Ok(Pad { factor, fixed }) } else { Err(SettingsError::PadFactor) }
    }

    /// By how much a told time is stretched, from 1 to 10. Default 1.
    #[must_use]
    pub fn factor(&self) -> f64 {
        self.factor
    }

    /// What is added after that. Default 50 ms: servers round, and timers are early.
    #[must_use]
    pub fn fixed(&self) -> Duration {
        self.fixed
    }

    /// `told` with its pad; saturates.
    #[must_use]
    pub fn apply(&self, told: Duration) -> Duration {
        Duration::try_from_secs_f64(told.as_secs_f64() * self.factor)
            .unwrap_or(Duration::MAX)
            .max(told)
            .saturating_add(self.fixed)
    }
}

impl Default for Pad {
    fn default() -> Pad {
        Pad { factor: 1.0, fixed: Duration::from_millis(50) }
    }
}

/// The share of a wait that may be added by chance, from 0 (off) to 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Jitter(f64);

impl Jitter {
    /// A share.
    ///
    /// # Errors
    /// Below 0, above 1 or not a number.
    pub fn new(share: f64) -> Result<Jitter, SettingsError> {
        if (0.0..=1.0).contains(&share) { Ok(Jitter(share)) } else { Err(SettingsError::Jitter) }
    }

    /// The share, from 0 to 1.
    #[must_use]
    pub fn share(&self) -> f64 {
        self.0
    }
}

impl Default for Jitter {
    fn default() -> Jitter {
        Jitter(0.1)
    }
}

/// Where the pace of a scope comes from. Configured rates are a ceiling in either case.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Pace {
    /// The configured rates alone; without one, only pauses hold requests back.
    Configured,
    /// Learned from hints and answers, under the configured rates (L1-L6).
    Learned,
}

/// Names whose values are secret, beside the built-in ones (K1). Compared without regard to case.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct SecretNames {
    /// Names of query parameters, lower-case.
    pub query: Vec<String>,
    /// Names of headers, lower-case. Together with `Authorization` they also tell accounts apart.
    pub headers: Vec<http::HeaderName>,
}

/// When a scope trips, and for how long (X1).
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Circuit {
    refusals: NonZeroU32,
    incidents: NonZeroU32,
    pause: Duration,
}

impl Circuit {
    /// Trips for `pause` after `refusals` in a row over at least `incidents`.
    ///
    /// # Errors
    /// Zero of any of them.
    pub fn new(refusals: u32, incidents: u32, pause: Duration) -> Result<Circuit, SettingsError> {
        let refusals = NonZeroU32::new(refusals).ok_or(SettingsError::Circuit("refusals"))?;
        let incidents = NonZeroU32::new(incidents).ok_or(SettingsError::Circuit("incidents"))?;
        if pause.is_zero() {
            return Err(SettingsError::ZeroTime("circuit.pause"));
        }
        Ok(Circuit { refusals, incidents, pause })
    }

    /// Refusals in a row that trip it. Default 25.
    #[must_use]
    pub fn refusals(&self) -> u32 {
        self.refusals.get()
    }

    /// Incidents over which they must be spread. Default 3.
    #[must_use]
    pub fn incidents(&self) -> u32 {
        self.incidents.get()
    }

    /// How long the scope stays tripped. Default 600 s.
    #[must_use]
    pub fn pause(&self) -> Duration {
        self.pause
    }
}

impl Default for Circuit {
    fn default() -> Circuit {
        Circuit { refusals: nonzero(25), incidents: nonzero(3), pause: Duration::from_secs(600) }
    }
}

/// For the constants above.
const fn nonzero(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("a constant that is not zero")
}

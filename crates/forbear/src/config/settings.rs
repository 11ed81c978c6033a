//! The settings of a run: what each means, its default, and why.

use std::{num::NonZeroU32, time::Duration};

use forbear_core::{
    backoff::{Backoff, BackoffError},
    circuit::CircuitPolicy,
    pace::{RateList, Rates},
    policy::{ItemPolicy, OnNoHint, Pad, ScopePolicy},
    scope::Combination,
};
use forbear_store::gate::GateAddress;

use forbear_store::queue::QueueAddress;

use super::{
    CostSettings, ExitSettings, Group, HostPattern, HostSettings,
    host::{group_of, merge},
    show_duration,
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
    /// The share of a wait that chance may add, after every cap (P1), from 0 to 1. Zero switches chance off in the backoff
    /// too. Default 0.1.
    pub jitter: f64,
    /// How long a probe holds the right to be the only one, from its last renewal (B1). Never zero. Default 15 s.
    pub probe_lease: Duration,
    /// Where the pace comes from (L1-L6). Default [`Pace::Learned`].
    pub pace: Pace,
    /// What limits count (S1), where a host does not say otherwise; never empty. Default: the group, the origin, the origin
    /// with the account, with the endpoint, with the exit; each where a request has one.
    pub scope: Vec<Combination>,
    /// A ceiling on requests in flight to one origin, where a host does not say otherwise. Default none: it starts at 4 and
    /// is learned, up to `workers`.
    pub host_concurrency: Option<NonZeroU32>,
    /// Ceilings on the starts of the whole run, over all hosts, each over its window (C1). Default none.
    pub rate: Option<RateList>,
    /// The longest body, decoded, in bytes (K4); a longer one is a failure that names the size. Default 16 MiB.
    pub body_max: u64,
    /// Whether cookies are kept and sent, apart for each exit. Default no: a fleet is not a browser.
    pub cookies: bool,
    /// The `User-Agent` where an item or a host has none; empty sends none. Default `forbear/VERSION`.
    pub user_agent: String,
    /// Whether addresses that are not public (loopback, private, link-local) are refused, also after a redirect (K2).
    /// Default no, so that it works against one's own servers.
    pub public_only: bool,
    /// Where the job lives, unless a file is given for it: a file, or a database that several processes share. Default none.
    pub queue: Option<QueueAddress>,
    /// What is said about single hosts, in the order of the file. Read it by [`for_host`](Settings::for_host).
    pub hosts: Vec<(HostPattern, HostSettings)>,
    /// Origins that share one limit. Read it by [`group_of`](Settings::group_of).
    pub groups: Vec<Group>,
    /// Names whose values are secret, beside those that always are (K1).
    pub secrets: SecretNames,
    /// When a scope trips, and for how long (X1).
    pub circuit: CircuitPolicy,
    /// The ways out. Default: directly.
    pub exits: ExitSettings,
    /// What requests cost, where a host does not say otherwise (C1). Default: one each, or what the item says.
    pub cost: CostSettings,
    /// Where gates live: in memory for one process (the default), or where a fleet shares them.
    pub gate: GateAddress,
}

/// Why settings, each possible alone, do not go together.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A base of nothing, or a cap below it.
    #[error("{}", backoff_text(*.0))]
    Backoff(BackoffError),
    /// Not a share.
    #[error("jitter is the share of a wait that may be added, from 0 to 1")]
    Jitter,
    /// A factor below one would start before the told time (P1).
    #[error("pad.factor must be from 1 to 10: a told time may be stretched, never shortened")]
    PadFactor,
    /// Tripping over nothing.
    #[error("circuit.refusals and circuit.incidents must be at least 1")]
    Circuit,
    /// A time that must last.
    #[error("{0} must be longer than nothing")]
    ZeroTime(&'static str),
    /// Not a share.
    #[error("exits.min_success is the share of requests that succeed, from 0 to 1")]
    MinSuccess,
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
            SettingsError::Backoff(_) => &["backoff_cap", "backoff_base"],
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
        if !self.groups.is_empty() && !scopes().flatten().any(|s| s.group) {
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

impl Settings {
    /// How a scope is treated that has these ceilings of its own. Without one on concurrency it is `workers`; where a fleet
    /// shares the gate it is none, for a process with few workers would wait until the others have nothing on the wire.
    #[must_use]
    pub fn scope_policy(&self, rate: Option<RateList>, concurrency: Option<NonZeroU32>) -> ScopePolicy {
        let own = if self.gate.is_shared() { FLEET } else { self.workers.get() };
        let concurrency_max = concurrency.map_or(own, NonZeroU32::get);
        ScopePolicy {
            rates: rate.map(Rates::from).unwrap_or_default(),
            learn: self.pace == Pace::Learned,
            pace_start: ScopePolicy::default().pace_start,
            concurrency_start: CONCURRENCY_START.min(concurrency_max),
            concurrency_max,
            backoff: self.backoff,
            pad: self.pad,
            jitter: self.jitter,
            pause_cap: self.pause_cap,
            probe_lease: self.probe_lease,
            circuit: self.circuit,
        }
    }

    /// How an item is treated.
    #[must_use]
    pub fn item_policy(&self) -> ItemPolicy {
        ItemPolicy {
            max_attempts: self.max_attempts.get(),
            refusals_max: self.refusals_per_item.get(),
            // Over the cap an item is never kept in hand (P7).
            hold_max: self.hold_max.min(self.pause_cap),
            on_no_hint: self.on_no_hint,
            backoff: self.backoff,
            jitter: self.jitter,
            pad: self.pad,
            blocked_retries: self.exits.blocked_retries,
            exit_wait: self.exits.fault_wait,
        }
    }
}

impl Default for Settings {
    fn default() -> Settings {
        let scope = ScopePolicy::default();
        Settings {
            policy: "polite".to_owned(),
            workers: nonzero(64),
            timeout: Duration::from_secs(30),
            run_for: None,
            stall_after: Duration::from_secs(15 * 60),
            max_attempts: nonzero(5),
            refusals_per_item: nonzero(4),
            hold_max: Duration::from_secs(30),
            pause_cap: scope.pause_cap,
            backoff: scope.backoff,
            on_no_hint: OnNoHint::Hold,
            pad: scope.pad,
            jitter: scope.jitter,
            probe_lease: scope.probe_lease,
            pace: Pace::Learned,
            scope: vec![
                Combination::GROUP,
                Combination::ORIGIN,
                Combination::ORIGIN_ACCOUNT,
                Combination::ORIGIN_ENDPOINT,
                Combination::ORIGIN_EXIT,
            ],
            host_concurrency: None,
            rate: None,
            body_max: 16 << 20,
            cookies: false,
            user_agent: concat!("forbear/", env!("CARGO_PKG_VERSION")).to_owned(),
            public_only: false,
            queue: None,
            hosts: Vec::new(),
            groups: Vec::new(),
            secrets: SecretNames::default(),
            circuit: scope.circuit,
            exits: ExitSettings::default(),
            cost: CostSettings::default(),
            gate: GateAddress::Memory,
        }
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

fn backoff_text(error: BackoffError) -> String {
    match error {
        BackoffError::CapBelowBase { base, cap } => format!(
            "backoff_cap ({}) is shorter than backoff_base ({}); raise the one or lower the other",
            show_duration(cap),
            show_duration(base)
        ),
        other => other.to_string(),
    }
}

/// More requests on the wire to one origin no fleet has.
const FLEET: u32 = u16::MAX as u32;
/// In flight to one origin before anything is known (policy `polite`).
const CONCURRENCY_START: u32 = 4;

/// For the constants above.
const fn nonzero(n: u32) -> NonZeroU32 {
    NonZeroU32::new(n).expect("a constant that is not zero")
}

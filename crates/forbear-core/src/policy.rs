//! Settings of the machines: one struct for a scope, one for an item, checked where they are built.

use std::{sync::Arc, time::Duration};

use crate::{
    backoff::{Backoff, Jitter},
    circuit::CircuitPolicy,
    pace::Rates,
    scope::{Combination, Role, ScopeKey},
};

/// How one scope is treated.
#[derive(Clone, Debug, PartialEq)]
pub struct ScopePolicy {
    /// Configured rates: a ceiling, whatever is learned. None by default.
    pub rates: Rates,
    /// Whether the pace also follows from what the server says and does (L1, B4). Switched off, only `rates` pace.
    pub learn: bool,
    /// Starts a second at the start, before any refusal, where the pace is learned and none is configured; it doubles from there
    /// (B4; default 8, infinite for none).
    pub pace_start: f32,
    /// Requests in flight at the start, before any success (default 4).
    pub concurrency_start: u32,
    /// Requests in flight at most (default: as many as there are workers).
    pub concurrency_max: u32,
    /// The pause when nobody said how long (P4); its cap is raised by refused probes up to `pause_cap` (B3).
    pub backoff: Backoff,
    /// Added to a told time, at least: what a scope learns may be more (P5).
    pub pad: Pad,
    /// The share of a told wait that chance may add to it (default 0.1, none below 0).
    pub jitter: f64,
    /// A longer told time is tested once by another item (P7; default 300 s).
    pub pause_cap: Duration,
    /// How long a probe may go without a sign of life (B1; 15 s).
    pub probe_lease: Duration,
    /// When many refusals in a row stop the scope for long (X1).
    pub circuit: CircuitPolicy,
}

impl Default for ScopePolicy {
    fn default() -> ScopePolicy {
        let backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(60), Jitter::Full);
        ScopePolicy {
            rates: Rates::default(),
            learn: true,
            pace_start: 8.0,
            concurrency_start: 4,
            concurrency_max: 64,
            backoff: backoff.unwrap_or_else(|_| unreachable!("1 s is above zero and below 60 s")),
            pad: Pad::default(),
            jitter: 0.1,
            pause_cap: Duration::from_secs(300),
            probe_lease: Duration::from_secs(15),
            circuit: CircuitPolicy::default(),
        }
    }
}

impl ScopePolicy {
    /// The same for a scope with no bound of its own, which lies beside the one that this is meant for. It opens as wide as
    /// it may, since others are paced below it. What an exit itself answers teaches no pace: its limits are told, or
    /// nobody's business.
    #[must_use]
    pub fn beside(self, role: Role) -> ScopePolicy {
        let (concurrency_start, learn) = (self.concurrency_max, self.learn && role != Role::Exit);
        ScopePolicy { concurrency_start, learn, pace_start: f32::INFINITY, ..self }
    }
}

/// What is added to a told time before anything is sent: servers round, and clocks differ.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pad {
    /// The told time is multiplied by this, at least 1.
    pub factor: f64,
    /// And this is added (default 50 ms: the usual rounding of a server's timer).
    pub fixed: Duration,
}

impl Default for Pad {
    fn default() -> Pad {
        Pad { factor: 1.0, fixed: Duration::from_millis(50) }
    }
}

impl Pad {
    /// What is added to `told`. An endless wait gets none, since nothing can be added to it.
    #[must_use]
    pub fn over(&self, told: Duration) -> Duration {
        if told > Duration::from_secs(100 * 365 * 86_400) {
            return Duration::ZERO;
        }
        told.mul_f64((self.factor - 1.0).max(0.0)) + self.fixed
    }
}

/// What a refusal without a usable hint does to the item.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum OnNoHint {
    /// It is kept in hand until the scope's own pause ends.
    #[default]
    Hold,
    /// It is parked for a backoff of its own.
    Park,
}

/// How one item is treated.
#[derive(Clone, Debug, PartialEq)]
pub struct ItemPolicy {
    /// Failed attempts of an item, the first included (default 5). Refusals and exit faults do not count (V1).
    pub max_attempts: u32,
    /// Refusals of an item in one run, after which it parks for the next run (default 4).
    pub refusals_max: u32,
    /// A told wait up to this keeps the item in hand (P6; default 30 s).
    pub hold_max: Duration,
    /// Without a hint: hold or park.
    pub on_no_hint: OnNoHint,
    /// Between tries after faults.
    pub backoff: Backoff,
    /// The share that chance may add to a told wait; used for parked items.
    pub jitter: f64,
    /// The pad over a told time; used for parked items.
    pub pad: Pad,
    /// So many other exits may try an item for which one was told that it is unwanted (default 0).
    pub blocked_retries: u32,
    /// After an exit fault an item waits for this times the tries so far, and up to twice this by chance, before another
    /// exit has it (default none).
    pub exit_wait: Duration,
}

impl Default for ItemPolicy {
    fn default() -> ItemPolicy {
        let scope = ScopePolicy::default();
        ItemPolicy {
            max_attempts: 5,
            refusals_max: 4,
            hold_max: Duration::from_secs(30),
            on_no_hint: OnNoHint::Hold,
            backoff: scope.backoff,
            jitter: scope.jitter,
            pad: scope.pad,
            blocked_retries: 0,
            exit_wait: Duration::ZERO,
        }
    }
}

/// A scope of a request together with the policy that holds for it.
#[derive(Clone, Debug)]
pub struct BoundScope {
    /// Its name.
    pub key: ScopeKey,
    /// What it counts by; none for the run's own scope.
    pub by: Option<Combination>,
    /// Which refusals fall on it.
    pub role: Role,
    /// How it is treated.
    pub policy: Arc<ScopePolicy>,
}

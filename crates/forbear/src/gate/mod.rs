//! One gate for a program with an HTTP client of its own: when a request may start, and what its answer means.
//!
//! A [`Gate`] is the machine of `forbear fetch` without its engine. Ask it for a [`Pass`], send one request, report what came
//! of it, and act on the verdict. Several processes that open the same address share every limit, pause and probe.
//!
//! For services of `tower` there is `GateLayer` (feature `tower`), for `reqwest` there is `GateMiddleware` (feature
//! `reqwest`); both do all of this around a client.

#[cfg(any(feature = "tower", feature = "reqwest"))]
mod held;
mod pass;
#[cfg(feature = "reqwest")]
mod reqwest;
#[cfg(feature = "tower")]
mod tower;

use std::{
    collections::HashMap,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use forbear_core::{gate::Cause, policy::ItemPolicy, scope::ScopeKey};
use forbear_store::gate::{
    AnyGates, GateAddress, GateStore, MemoryGates, SharedEvent, SharedOptions, StoreError,
};
use parking_lot::Mutex;
use tokio::time::Instant;

pub use forbear_core::{
    outcome::{Outcome, Processed, Refusal},
    verdict::{FailReason, Verdict},
};

#[cfg(any(feature = "tower", feature = "reqwest"))]
pub use self::held::Held;
pub use self::pass::{Pass, Report};
#[cfg(feature = "reqwest")]
pub use self::reqwest::GateMiddleware;
#[cfg(feature = "tower")]
pub use self::tower::{GateLayer, GateService, NotServed, Resend};
pub use crate::item::{Item, Received};
use crate::{
    client::{Target, TargetError},
    config::Settings,
    engine::{LaneParts, Route, Routes},
    lines::Lines,
    permit::{self, Answer},
    secrets::Accounts,
};

/// How a [`Gate`] treats those who ask.
#[derive(Clone, Debug)]
pub struct GateOptions {
    /// Policy, rates, hosts, scopes, as a configuration file has them. Default: the policy `polite`.
    pub settings: Settings,
    /// Whoever would have to wait for longer is told so at once. Default 30 s, as `hold_max`.
    pub wait_max: Duration,
    /// So many may wait at a time (C4). Default 10,000.
    pub waiting_max: usize,
    /// The key of the hash by which credentials are told apart without being kept (K1). Processes that share a gate need the
    /// same one, or give accounts names. Default: the one that is kept with the store where processes share it
    /// ([`Gate::open`]), else one by chance.
    pub account_key: Option<[u8; 32]>,
}

impl Default for GateOptions {
    fn default() -> GateOptions {
        GateOptions {
            settings: Settings::default(),
            wait_max: Duration::from_secs(30),
            waiting_max: 10_000,
            account_key: None,
        }
    }
}

/// Why a request does not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GateError {
    /// The URL.
    #[error(transparent)]
    Url(#[from] TargetError),
    /// Its turn would come too late.
    #[error("{scope} lets nothing through for {} ({})", crate::config::show_duration(*.wait), .cause.as_str())]
    Late {
        /// How long it would have to wait, at least.
        wait: Duration,
        /// The limit that holds it up.
        scope: Box<str>,
        /// Why it does.
        cause: Cause,
    },
    /// Nobody gave up a place in time: too many requests are on the wire, or wait before this one.
    #[error("no place on the wire within {}", crate::config::show_duration(*.waited))]
    Busy {
        /// How long it waited.
        waited: Duration,
    },
    /// As many wait as may.
    #[error("{waiting} requests wait at the gate already; ask again when some have started")]
    Crowded {
        /// How many that is.
        waiting: usize,
    },
    /// The store.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The gate before all requests of a program. Clones share everything.
///
/// **Clock.** Times are those of the store ([`GateStore::now`]); waits are slept by tokio's timer and asked again, so nothing
/// starts early (T2).
///
/// ```
/// use forbear::gate::{Gate, GateOptions, Item, Received, Verdict};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let gate = Gate::in_memory(GateOptions::default()); // or Gate::open("redis://gates.internal:6379", ...)
///
/// let mut item = Item::new().account("team-7");
/// let pass = gate.acquire("https://api.example/v1/orders", &item).await?;
/// // ... sends, and has an answer ...
/// let mut headers = http::HeaderMap::new();
/// headers.insert("retry-after", "20".parse()?);
/// let report = pass.answered(&mut item, Received::new(429, &headers)).await?;
/// assert_eq!(report.verdict, Verdict::Hold { told: std::time::Duration::from_secs(20) });
///
/// // Every request of that scope waits now, for what was told with its pad; whoever cannot is told so.
/// let late = gate.acquire_within("https://api.example/v1/orders", &item, std::time::Duration::from_secs(5)).await;
/// assert!(late.unwrap_err().to_string().starts_with("https://api.example lets nothing through for 2"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Gate<G: GateStore = AnyGates>(pub(in crate::gate) Arc<Inner<G>>);

pub(in crate::gate) struct Inner<G: GateStore> {
    store: Arc<G>,
    pub(in crate::gate) routes: Routes,
    /// Those that were asked for lately.
    at_hand: Mutex<HashMap<String, Arc<Route>, foldhash::fast::RandomState>>,
    pub(in crate::gate) lines: Arc<Lines<Waiters>>,
    accounts: Accounts,
    wait_max: Duration,
    waiting_max: usize,
    waiting: AtomicUsize,
    /// Those of them that had to wait, by what may hold them up.
    held_up: Mutex<HashMap<ScopeKey, u32>>,
    /// Of a probe on the wire: a third of its lease.
    pub(in crate::gate) sign_of_life: Duration,
}

/// A line is that of an account and an endpoint.
type Waiters = (Option<Arc<str>>, Option<Arc<str>>);

impl<G: GateStore> Clone for Gate<G> {
    fn clone(&self) -> Gate<G> {
        Gate(self.0.clone())
    }
}

impl<G: GateStore> std::fmt::Debug for Gate<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gate")
            .field("waiting", &self.0.waiting.load(Ordering::Relaxed))
            .finish_non_exhaustive()
    }
}

impl Gate {
    /// The gate at an address: `memory`, a file, `redis://...`.
    ///
    /// # Errors
    /// [`StoreError::Address`] for an address of no kind of store, [`StoreError::Unreachable`] if nothing answers there. A
    /// shared store that is lost later is no error: the gate goes on with its share (F1).
    pub async fn open(address: &str, options: GateOptions) -> Result<Gate, StoreError> {
        let lines: Arc<Lines<Waiters>> = Arc::default();
        let waiters = Arc::downgrade(&lines);
        let events = move |event: SharedEvent| {
            match &event {
                SharedEvent::Lost { why } => {
                    tracing::warn!(%why, "gate store lost; going on alone with this member's share")
                }
                SharedEvent::Back { after } => tracing::warn!(?after, "gate store is back"),
                SharedEvent::Unreadable { scope, why } => {
                    tracing::warn!(scope = scope.as_str(), %why, "unreadable gate")
                }
                _ => {}
            }
            let Some(lines) = waiters.upgrade() else { return };
            match event {
                SharedEvent::Changed { scope, .. } => wake(&lines, scope.as_str()),
                _ => lines.wake_all(),
            }
        };
        let shared = SharedOptions { events: Arc::new(events), ..SharedOptions::default() };
        let Ok(address) = address.parse::<GateAddress>();
        let store = address.open(shared).await?;
        let account_key = match options.account_key {
            Some(key) => Some(key),
            None => store.account_key().await?,
        };
        let options = GateOptions { account_key, ..options };
        let gate = Gate(Arc::new(Inner::new(Arc::new(store), options, lines)));
        if gate.0.store.is_shared() {
            tokio::spawn(tell_waiting(Arc::downgrade(&gate.0)));
        }
        Ok(gate)
    }
}

impl Gate<MemoryGates> {
    /// A gate of this process alone.
    #[must_use]
    pub fn in_memory(options: GateOptions) -> Gate<MemoryGates> {
        Gate::with_store(Arc::default(), options)
    }
}

impl<G: GateStore> Gate<G> {
    /// A gate on a store that others use too. Changes that other members of a shared store make are noticed within a
    /// second, not at once as by [`Gate::open`].
    #[must_use]
    pub fn with_store(store: Arc<G>, options: GateOptions) -> Gate<G> {
        Gate(Arc::new(Inner::new(store, options, Arc::default())))
    }

    /// Waits until a request to `url` may start, for `wait_max` at most. Of the URL the origin counts, and the path where the
    /// policy names endpoints.
    ///
    /// # Errors
    /// As [`Gate::acquire_within`].
    ///
    /// # Cancel safety
    /// As [`Gate::acquire_within`].
    pub async fn acquire(&self, url: &str, item: &Item) -> Result<Pass<G>, GateError> {
        self.acquire_within(url, item, self.0.wait_max).await
    }

    /// Waits until a request to `url` may start, for `within` at most.
    ///
    /// # Errors
    /// [`GateError::Late`] as soon as it is clear that its turn comes later, with the time; [`GateError::Busy`] when no place
    /// on the wire was given up in time; [`GateError::Crowded`], [`GateError::Url`], [`GateError::Store`].
    ///
    /// # Cancel safety
    /// Dropped before it is ready, nothing is taken, or what was taken is given back; the place in the line is lost.
    pub async fn acquire_within(
        &self,
        url: &str,
        item: &Item,
        within: Duration,
    ) -> Result<Pass<G>, GateError> {
        let inner = &*self.0;
        let (begun, deadline) = (Instant::now(), Instant::now().checked_add(within));
        let route = inner.route(url, item)?;
        let waiting = inner.waiting.fetch_add(1, Ordering::Relaxed);
        let _one_more = OneMore(&inner.waiting);
        if waiting >= inner.waiting_max {
            return Err(GateError::Crowded { waiting });
        }
        let place = inner.lines.join(&route.origin, (item.account.clone(), item.endpoint.clone()));
        let left =
            || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        let busy = || GateError::Busy { waited: begun.elapsed() };
        let _turn = tokio::time::timeout(left().min(LONGEST), place.turn()).await.map_err(|_| busy())?;
        let mut held_up = None;
        loop {
            let wait = match permit::acquire(&inner.store, &route.scopes, item.ask()).await? {
                Answer::Admitted(admission) => return Ok(Pass::new(self.clone(), route, admission)),
                Answer::Wait { until, scope, cause } => {
                    let wait = until.since(inner.store.now()).max(LEAST);
                    if wait > left() {
                        let scope = route.scopes[scope].key.as_str().into();
                        return Err(GateError::Late { wait, scope, cause });
                    }
                    wait
                }
                Answer::Full { .. } if left().is_zero() => return Err(busy()),
                Answer::Full { .. } => left().min(RECHECK),
            };
            held_up.get_or_insert_with(|| HeldUp::new(&inner.held_up, route.clone()));
            // News that came since the question wake it at once.
            let _ = tokio::time::timeout(wait.min(LONGEST), place.news()).await;
        }
    }

    /// An item for a request with these headers: its account by its credentials, and whether it may be sent twice by its
    /// method or an idempotency key (V2).
    #[must_use]
    pub fn item(&self, method: &http::Method, url: &str, headers: &http::HeaderMap) -> Item {
        let item = if method.is_idempotent() || headers.contains_key("idempotency-key") {
            Item::new()
        } else {
            Item::new().not_twice()
        };
        let texts = headers.iter().map(|(name, value)| {
            (name.as_str().to_owned(), String::from_utf8_lossy(value.as_bytes()).into_owned())
        });
        match self.0.accounts.of(None, url, &texts.collect::<Vec<_>>(), &[]) {
            Some(account) => item.account(&account),
            None => item,
        }
    }

    pub(in crate::gate) fn policy(&self) -> &ItemPolicy {
        &self.0.routes.item
    }
}

impl<G: GateStore> Inner<G> {
    fn new(store: Arc<G>, options: GateOptions, lines: Arc<Lines<Waiters>>) -> Inner<G> {
        let GateOptions { settings, wait_max, waiting_max, account_key } = options;
        let key = account_key.unwrap_or_else(|| std::array::from_fn(|_| fastrand::u8(..)));
        let accounts = Accounts::new(key, &settings.secrets);
        let sign_of_life = settings.probe_lease / 3;
        Inner {
            store,
            routes: Routes::direct(settings),
            at_hand: Mutex::default(),
            lines,
            accounts,
            wait_max,
            waiting_max,
            waiting: AtomicUsize::new(0),
            held_up: Mutex::default(),
            sign_of_life,
        }
    }

    fn route(&self, url: &str, item: &Item) -> Result<Arc<Route>, TargetError> {
        let target = Target::parse(url)?;
        let endpoint = self.routes.endpoint(&target, item.endpoint.as_deref());
        let parts = LaneParts {
            origin: target.origin(),
            account: item.account.as_deref(),
            endpoint: endpoint.as_deref(),
        };
        let text = parts.text();
        let mut at_hand = self.at_hand.lock();
        if let Some(route) = at_hand.get(&text) {
            return Ok(route.clone());
        }
        if at_hand.len() >= ROUTES_AT_HAND {
            at_hand.clear();
        }
        let route = Arc::new(self.routes.route(parts));
        at_hand.insert(text, route.clone());
        Ok(route)
    }
}

/// Calls whoever waits for a scope of this name.
fn wake(lines: &Lines<Waiters>, scope: &str) {
    match scope.split(' ').next() {
        Some(origin) if origin.contains("://") => lines.wake_at(&[origin.into()]),
        _ => lines.wake_all(),
    }
}

/// One of those who wait.
struct OneMore<'a>(&'a AtomicUsize);

impl Drop for OneMore<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// One who waits for these scopes.
struct HeldUp<'a>(&'a Mutex<HashMap<ScopeKey, u32>>, Arc<Route>);

impl<'a> HeldUp<'a> {
    fn new(all: &'a Mutex<HashMap<ScopeKey, u32>>, route: Arc<Route>) -> HeldUp<'a> {
        let mut counts = all.lock();
        route.scopes.iter().for_each(|scope| *counts.entry(scope.key.clone()).or_default() += 1);
        drop(counts);
        HeldUp(all, route)
    }
}

impl Drop for HeldUp<'_> {
    fn drop(&mut self) {
        let mut counts = self.0.lock();
        for scope in self.1.scopes.iter() {
            if let Some(count) = counts.get_mut(&scope.key) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(&scope.key);
                }
            }
        }
    }
}

/// Tells the store what waits here, for as long as somebody has the gate.
async fn tell_waiting(inner: Weak<Inner<AnyGates>>) {
    while let Some(inner) = inner.upgrade() {
        let waiting = inner.held_up.lock().clone();
        inner.store.note_waiting(&waiting);
        drop(inner);
        tokio::time::sleep(RECHECK).await;
    }
}

/// How long at most whoever waits for a place trusts to be called: what is freed may be counted by something that only some
/// other line has, such as an account, or by another process.
const RECHECK: Duration = Duration::from_secs(1);
/// A question a millisecond is enough.
const LEAST: Duration = Duration::from_millis(1);
/// A wait without end is looked at once a day.
const LONGEST: Duration = Duration::from_secs(86_400);
/// Routes that are kept at hand; others are put together anew.
const ROUTES_AT_HAND: usize = 10_000;

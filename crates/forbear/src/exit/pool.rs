//! Exits for a program with an HTTP client of its own: which exit, when, and what an answer means.

use std::{sync::Arc, time::Duration};

use forbear_core::{
    exit::{self, ExitId, ExitPolicy, Pick, Usable},
    pace::Rates,
    policy::{BoundScope, ItemPolicy, ScopePolicy},
    scope::{Combination, Parts, Role, ScopePlan, origins_own},
    time::Timestamp,
};
use forbear_store::gate::{GateStore, MemoryGates, StoreError};

use super::{
    Entry, Exit, ExitRow, Item,
    members::{Asker, Leave, Members, Names},
};
use crate::{
    client::{Target, TargetError},
    lines::Lines,
};

/// How the exits of an [`ExitPool`] are used. The default is that of the policy `proxy-queue`: each exit has limits of its
/// own at an origin, until a second one is refused meanwhile.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// How exits are chosen and left.
    pub exits: ExitPolicy,
    /// What becomes of an item after each answer.
    pub item: ItemPolicy,
    /// For what the plan counts at an origin: rates, concurrency, pauses. Other scopes are treated alike, but have no rates and
    /// no bound of their own.
    pub scope: ScopePolicy,
    /// Requests that one exit may carry at once, to whatever origins. Default: any number.
    pub exit_concurrency: u32,
    /// What limits count by. Default `origin+exit`, with the origin behind it (S5).
    pub plan: ScopePlan,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            exits: ExitPolicy::default(),
            item: ItemPolicy::default(),
            scope: ScopePolicy::default(),
            exit_concurrency: u32::MAX,
            plan: ScopePlan::new(vec![Combination::ORIGIN_EXIT]),
        }
    }
}

/// Exits that stand in for one another, for an HTTP client of your own. Clones share everything.
///
/// Ask for an [`Exit`], send one request by it, report what came of it, and act on the verdict. Each hop of a redirect is a
/// request of its own, so the client must follow none by itself, and try nothing twice.
///
/// **Clock.** Times are those of the gate store ([`GateStore::now`]); waits are slept by tokio's timer and asked again, so
/// nothing starts early.
///
/// **Bounds.** Whoever waits costs a place in the line of its origin and account, first come, first served; how many wait is
/// up to the caller. Exits, origins and sessions are bounded as in `forbear fetch`.
///
/// ```
/// use forbear::exit::{ExitPool, ExitUrl, Item, Outcome, PoolOptions, Verdict};
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let exits = [ExitUrl::parse("http://me-{session}:p@ss@203.0.113.7:8080")?, ExitUrl::parse("203.0.113.8:8080")?];
/// let pool = ExitPool::new(exits, PoolOptions::default());
///
/// let mut item = Item::new();
/// let exit = pool.exit("http://shop.example/page/1", &item).await?;
/// println!("by {}", exit.name()); // no credentials in it; `exit.proxy_url().expose()` is for the client
/// // ... sends, and gets an answer ...
/// let report = exit.failed(&mut item, Outcome::EXIT_BROKEN).await?;
/// assert!(matches!(report.verdict, Verdict::Elsewhere { .. }));
/// assert_eq!(report.again(), Some(std::time::Duration::ZERO));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct ExitPool<G: GateStore = MemoryGates> {
    pub(super) inner: Arc<Inner<G>>,
}

impl<G: GateStore> Clone for ExitPool<G> {
    fn clone(&self) -> ExitPool<G> {
        ExitPool { inner: self.inner.clone() }
    }
}

/// A line is that of an account; items that wait for an exit of their own stand apart.
type Waiters = (Option<Arc<str>>, Option<ExitId>);

/// What a pool and its exits share.
pub(super) struct Inner<G: GateStore> {
    pub(super) members: Members,
    pub(super) gates: Arc<G>,
    pub(super) lines: Lines<Waiters>,
    pub(super) item: ItemPolicy,
    plan: ScopePlan,
    /// For what the plan counts at the origin, for an exit's own scope, and for the others.
    policies: [Arc<ScopePolicy>; 3],
}

/// Why there is no exit for a request, and waiting does not help.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExitError {
    /// The URL.
    #[error(transparent)]
    Url(#[from] TargetError),
    /// Each exit has turned us away, or there is none: only other credentials help (E5). Never go directly instead.
    #[error("no usable exit: each of {exits} turned us away")]
    NoExit {
        /// How many there are.
        exits: usize,
    },
    /// The gate store.
    #[error(transparent)]
    Gate(#[from] StoreError),
}

/// The answer to [`ExitPool::try_exit`].
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "it is taken apart where it is made; a box would be an allocation a request"
)]
pub enum Offer<G: GateStore = MemoryGates> {
    /// Send by this one.
    Exit(Exit<G>),
    /// Not before this time is over; ask again then, or when something has come back.
    Wait(Duration),
    /// When a request has come back: all that may be on the wire there is.
    Busy,
}

impl ExitPool {
    /// A pool with gates of its own, in memory. `exits` are [`ExitUrl`](super::ExitUrl)s, or [`Entry`]s as a list has them.
    #[must_use]
    pub fn new<E: Into<Entry>>(exits: impl IntoIterator<Item = E>, options: PoolOptions) -> ExitPool {
        ExitPool::with_gates(exits, options, Arc::default())
    }
}

impl<G: GateStore> ExitPool<G> {
    /// A pool on gates that others use too. Gates know an exit by its name: of two pools the first exits at one host and port
    /// count as one.
    #[must_use]
    pub fn with_gates<E: Into<Entry>>(
        exits: impl IntoIterator<Item = E>,
        options: PoolOptions,
        gates: Arc<G>,
    ) -> ExitPool<G> {
        let PoolOptions { exits: policy, item, scope: own, exit_concurrency, plan } = options;
        let beside = ScopePolicy { rates: Rates::default(), concurrency_max: u32::MAX, ..own.clone() };
        let exits_own = ScopePolicy { concurrency_max: exit_concurrency, ..beside.clone() };
        let policies = [own, exits_own.beside(Role::Exit), beside.beside(Role::Behind)].map(Arc::new);
        let members =
            Members::new(exits.into_iter().map(Into::into).collect(), policy, &mut Names::default());
        ExitPool { inner: Arc::new(Inner { members, gates, lines: Lines::default(), item, plan, policies }) }
    }

    /// Waits until a request to `url` may go, and says by which exit. Only the origin of the URL counts.
    ///
    /// # Errors
    /// What no waiting cures. While all exits merely fail it waits: see [`ExitPool::usable`].
    ///
    /// # Cancel safety
    /// Dropped before it is ready, nothing is taken; the place in the line is lost.
    pub async fn exit(&self, url: &str, item: &Item) -> Result<Exit<G>, ExitError> {
        let target = Target::parse(url)?;
        let own = self.inner.members.own(item.keep);
        let line = self.inner.lines.join(target.origin(), (item.account.clone(), own));
        let _turn = line.turn().await;
        loop {
            let wait = match self.ask(&target, item).await? {
                Offer::Exit(exit) => return Ok(exit),
                Offer::Wait(wait) => wait,
                Offer::Busy => RECHECK,
            };
            // News that came since the question wake it at once.
            let _ = tokio::time::timeout(wait, line.news()).await;
        }
    }

    /// The same without waiting. Whoever asks so passes by those that wait.
    ///
    /// # Errors
    /// As [`ExitPool::exit`].
    ///
    /// # Cancel safety
    /// Dropped before it is ready, nothing is taken.
    pub async fn try_exit(&self, url: &str, item: &Item) -> Result<Offer<G>, ExitError> {
        self.ask(&Target::parse(url)?, item).await
    }

    /// Whether anything can go out at all, and when the next exit is tried if not (E5).
    #[must_use]
    pub fn usable(&self) -> Usable {
        self.inner.members.usable()
    }

    /// What went through each exit so far, in the order of the list.
    #[must_use]
    pub fn rows(&self) -> Vec<ExitRow> {
        self.inner.members.rows()
    }

    async fn ask(&self, target: &Target, item: &Item) -> Result<Offer<G>, ExitError> {
        let Inner { members, gates, .. } = &*self.inner;
        let (now, origin) = (gates.now(), target.origin());
        let asker = Question { inner: &self.inner, origin, item };
        let leave = members.acquire(gates, origin, (item.wanted(), item.ask()), now, &asker).await?;
        let until = |until: Timestamp| Offer::Wait(until.since(gates.now()).max(LEAST).min(LONGEST));
        Ok(match leave {
            Leave::Go(admission, scopes, pick) => {
                Offer::Exit(Exit::new(self.inner.clone(), target, pick, scopes, admission))
            }
            Leave::Wait { until: at, .. } => until(at),
            Leave::Busy { or: Some(or) } if or.since(now) < RECHECK => until(or),
            Leave::Full(..) | Leave::Busy { .. } => Offer::Busy,
            Leave::None => return Err(ExitError::NoExit { exits: members.len() }),
        })
    }
}

impl<G: GateStore> Inner<G> {
    /// The scopes of a request by this exit.
    fn scopes(&self, origin: &str, account: Option<&str>, pick: &Pick) -> Arc<[BoundScope]> {
        let exit = self.members.scope_name(pick);
        let parts = Parts { origin, account, exit: Some(&exit), ..Parts::default() };
        let scopes = self.plan.scopes(&parts);
        let own = origins_own(&scopes);
        let bound = scopes.into_iter().enumerate().map(|(i, scope)| {
            let [of_own, of_exit, of_others] = &self.policies;
            let policy = match scope.role {
                Role::Exit => of_exit,
                _ if own == Some(i) => of_own,
                _ => of_others,
            };
            BoundScope { key: scope.key, by: scope.by, role: scope.role, policy: policy.clone() }
        });
        bound.collect()
    }
}

impl<G: GateStore> std::fmt::Debug for Inner<G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExitPool").field("exits", &self.members.len()).finish_non_exhaustive()
    }
}

/// One request that asks for an exit.
struct Question<'a, G: GateStore> {
    inner: &'a Inner<G>,
    origin: &'a str,
    item: &'a Item,
}

impl<G: GateStore> Asker for Question<'_, G> {
    async fn scopes(&self, pick: &Pick) -> Arc<[BoundScope]> {
        self.inner.scopes(self.origin, self.item.account.as_deref(), pick)
    }

    fn freed(&self, origins: Vec<Arc<str>>) {
        self.inner.lines.wake_at(&origins);
    }
}

impl Item {
    fn wanted(&self) -> exit::Ask {
        use std::hash::BuildHasher;
        let hash = |name: &Arc<str>| foldhash::fast::FixedState::default().hash_one(name);
        exit::Ask { keep: self.keep, not: self.not, account: self.account.as_ref().map(hash) }
    }
}

/// How long at most whoever waits for a place trusts to be called: what is freed may be counted by something that only some
/// other line has, such as an account.
const RECHECK: Duration = Duration::from_secs(1);
/// A question a millisecond is enough.
const LEAST: Duration = Duration::from_millis(1);
/// A wait without end is looked at once a day.
const LONGEST: Duration = Duration::from_secs(86_400);

//! `forbear fetch`: every item of a job, each request through the gate, each result durable before it counts.
//!
//! Workers take what may start, the supervisor here feeds them lanes and knows when the run is over. The life of one
//! request is told in `ARCHITECTURE.md`.

mod cookies;
mod events;
mod evidence;
mod exchange;
mod exits;
mod feed;
mod front;
mod gates;
mod next;
mod plan;
mod route;
mod summary;
mod timer;
mod worker;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use forbear_core::{
    exit::Usable,
    policy::BoundScope,
    scope::{Role, ScopeKey},
    time::Timestamp,
};
use forbear_store::{
    gate::{AnyGates, GateRecord, GateStore, StoreError},
    queue::{
        InputEnd, Item, Job, JobAddress, JobOptions, OutputTarget, QueueError, Seq, Until, inspect::JobFile,
    },
};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};

pub(crate) use self::route::{Route, Routes};
use self::{
    cookies::Cookies,
    exits::Pools,
    feed::{Feeder, load_gates, restore},
    front::{Front, Work},
    gates::Calls,
    timer::Timer,
    worker::wall_now,
};
pub use self::{
    events::{Event, Events, by_evidence},
    gates::StoreLosses,
    plan::{Plan, PlannedHost, plan},
    route::{HostStats, LaneParts, origin_scopes},
    summary::{Broken, End, ExitCount, HostRow, Summary},
};
use crate::{
    bodies::{Bodies, BodyDir, BodyError},
    client::{Client, ClientOptions, Target},
    config::Settings,
    input::{ImportError, Imported, Importer, Source},
    secrets::{Accounts, Redactor},
};

/// What a run is told.
#[derive(Debug)]
pub struct FetchOptions {
    /// How to fetch.
    pub settings: Settings,
    /// The job: a file, or a name in a queue that several processes share.
    pub job: JobAddress,
    /// Where records go.
    pub output: OutputTarget,
    /// Where items come from; none goes on with what the job has.
    pub input: Option<Source>,
    /// Where bodies go.
    pub bodies: KeepBodies,
}

/// Where bodies go.
#[derive(Clone, Debug, Default)]
pub enum KeepBodies {
    /// Into the records.
    #[default]
    Inline,
    /// Into files of this directory.
    Dir(PathBuf),
    /// Nowhere: they are counted only.
    None,
}

/// Why a run could not begin, or had to end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FetchError {
    /// The job.
    #[error(transparent)]
    Job(#[from] QueueError),
    /// The input.
    #[error(transparent)]
    Input(#[from] ImportError),
    /// The gate store: a run does not begin without it.
    #[error("{}", no_gate(place, source))]
    Gate {
        /// Its address, without a password.
        place: String,
        /// What went wrong.
        source: StoreError,
    },
    /// The place for bodies.
    #[error(transparent)]
    Bodies(#[from] BodyError),
    /// Neither an input, nor a job to go on with.
    #[error("there is no job at {job}, and no INPUT to make one from")]
    NothingGiven {
        /// Where a job was looked for.
        job: JobAddress,
    },
    /// The job and its records cannot be one file.
    #[error("{job} cannot be the job and its output; give another --job")]
    OneFile {
        /// Both.
        job: JobAddress,
    },
    /// A setting that the client cannot use.
    #[error("the user agent has characters that no header may have")]
    UserAgent,
    /// No thread could be started.
    #[error("cannot start a thread")]
    Thread(#[source] std::io::Error),
}

/// Asks a run to stop (J6). Clones ask the same run.
#[derive(Clone, Debug, Default)]
pub struct Stop {
    inner: Arc<StopInner>,
}

#[derive(Debug, Default)]
struct StopInner {
    asked: AtomicBool,
    changed: Notify,
}

impl Stop {
    /// Starts nothing more; what is in flight has two seconds to finish, then the run saves and ends.
    pub fn ask(&self) {
        self.inner.asked.store(true, Ordering::Release);
        self.inner.changed.notify_one();
    }

    fn is_asked(&self) -> bool {
        self.inner.asked.load(Ordering::Acquire)
    }
}

/// A run in progress: numbers for whoever shows them.
pub struct Watch {
    shared: Arc<Shared<AnyGates>>,
    started: Instant,
}

/// The numbers of a run, at one moment.
#[derive(Clone, Debug)]
pub struct Progress {
    /// How many items stand where.
    pub counts: forbear_store::queue::Counts,
    /// Requests on the wire or being written.
    pub in_flight: usize,
    /// Items in hand for a time of their own.
    pub held: usize,
    /// Since the run began.
    pub elapsed: Duration,
    /// Of each origin.
    pub hosts: Vec<HostRow>,
    /// Of the exits; none without any.
    pub exits: Option<ExitCount>,
    /// The shared gate store is lost, and this process goes on alone with its share (F1).
    pub gate_lost: bool,
    /// Share of the input that has been read, where its size is known.
    pub input_share: Option<f64>,
}

impl Watch {
    /// The present numbers.
    #[must_use]
    pub fn progress(&self) -> Progress {
        let (busy, held) = {
            let front = self.shared.front.lock();
            (front.busy, front.frontier.held())
        };
        Progress {
            counts: self.shared.job.counts(),
            in_flight: busy,
            held,
            elapsed: self.started.elapsed(),
            hosts: summary::rows(&self.shared),
            exits: summary::exit_count(&self.shared),
            gate_lost: self.shared.gates.is_alone(),
            input_share: self.shared.importer.lock().as_ref().and_then(|importer| {
                let progress = importer.progress();
                Some(progress.bytes() as f64 / progress.total_bytes()? as f64)
            }),
        }
    }
}

/// Everything that workers and supervisor share.
struct Shared<G> {
    gates: Arc<G>,
    /// Other processes may change them.
    shared_gates: bool,
    calls: Arc<Calls>,
    job: Arc<Job>,
    client: Client,
    settings: Arc<Settings>,
    routes: Arc<Routes>,
    redactor: Redactor,
    accounts: Accounts,
    bodies: Bodies,
    cookies: Cookies,
    front: Mutex<Front>,
    /// Workers with nothing to do.
    idle: Notify,
    /// An item has ended, so the run may have.
    ended: Notify,
    timer: Timer,
    stopping: AtomicBool,
    /// Gates of exits as the last run left them, until they are met. Held while one is put back: nobody asks it before.
    kept_exits: tokio::sync::Mutex<HashMap<String, Vec<u8>>>,
    /// Whether it was said that no exit can be used.
    no_exit: AtomicBool,
    /// Items on the wire that must not be sent twice: if the run ends under one, nobody knows what became of it (V2).
    once: Mutex<HashMap<Seq, Item>>,
    events: Events,
    warned: Mutex<Vec<String>>,
    broken: Mutex<Option<Broken>>,
    importer: Mutex<Option<Importer>>,
    source: Option<Source>,
}

/// A run that is ready to go.
pub struct Run {
    shared: Arc<Shared<AnyGates>>,
    kept_gates: HashMap<String, Vec<u8>>,
    started: Instant,
}

impl Run {
    /// Opens the gate store, opens or resumes the job, and begins to read the input.
    ///
    /// Reads and writes files: call it where blocking is allowed.
    ///
    /// # Errors
    /// Whatever keeps the run from beginning; nothing is changed then.
    ///
    /// # Cancel safety
    /// Dropped before it is ready, nothing has begun.
    pub async fn open(options: FetchOptions, events: Events) -> Result<Run, FetchError> {
        look(&options)?;
        let settings = Arc::new(options.settings);
        let gates::Opened { gates, calls, account_key } = gates::open(&settings.gate, &events).await?;
        let of_job = events.clone();
        let output = options.output.clone();
        let job = Job::open(
            &options.job,
            JobOptions { account_key, ..JobOptions::new(options.output) },
            Arc::new(move |event| of_job(Event::Job(event))),
        )?;
        if account_key.is_some_and(|key| key != job.account_key()) {
            events(Event::Warning(
                "this job was begun without this gate store: an account that its credentials name is counted apart \
                 from the other processes' (one that its items name is not)"
                    .to_owned(),
            ));
        }
        let job = Arc::new(job);
        let redactor = Redactor::new(&settings.secrets);
        let accounts = Accounts::new(job.account_key(), &settings.secrets);
        let client = Client::new(ClientOptions {
            user_agent: settings.user_agent.parse().map_err(|_| FetchError::UserAgent)?,
            public_only: settings.public_only,
            idle_per_origin_max: settings.workers.get() as usize,
            ..ClientOptions::default()
        });
        let routes = Arc::new(Routes::new(settings.clone(), Pools::new(&settings, &client)));
        let bodies = match options.bodies {
            KeepBodies::Inline => Bodies::Inline,
            KeepBodies::None => Bodies::None,
            KeepBodies::Dir(dir) => Bodies::Dir(BodyDir::open(dir, &body_key(&options.job, &output, &job))?),
        };
        if matches!(routes.pools(), Pools::Direct) && went_by_exits(&options.job) {
            events(Event::Warning(
                "earlier runs of this job went out by exits; this one was given none, and goes directly"
                    .to_owned(),
            ));
        }
        let kept_gates = load_gates(&job)?;
        let shared_gates = gates.is_shared();
        let importer = match &options.input {
            None => None,
            Some(source) => import(&job, source, &settings, &events)?,
        };
        let shared = Arc::new(Shared {
            gates,
            shared_gates,
            calls,
            job,
            client,
            routes,
            redactor,
            accounts,
            bodies,
            cookies: Cookies::new(settings.cookies),
            settings,
            front: Mutex::default(),
            idle: Notify::new(),
            ended: Notify::new(),
            timer: Timer::default(),
            stopping: AtomicBool::new(false),
            kept_exits: tokio::sync::Mutex::default(),
            no_exit: AtomicBool::new(false),
            once: Mutex::default(),
            events,
            warned: Mutex::default(),
            broken: Mutex::default(),
            importer: Mutex::new(importer),
            source: options.input,
        });
        Ok(Run { shared, kept_gates, started: Instant::now() })
    }

    /// For showing progress while it runs.
    #[must_use]
    pub fn watch(&self) -> Watch {
        Watch { shared: self.shared.clone(), started: self.started }
    }

    /// Runs to the end: all items ended, the time is over, nothing is due for long, or `stop` was asked.
    ///
    /// # Errors
    /// When the job cannot go on. What was not acknowledged is pending for the next run.
    pub async fn run(self, stop: Stop) -> Result<Summary, FetchError> {
        let shared = self.shared;
        let waker = shared.clone();
        shared.timer.start(move || waker.idle.notify_one()).map_err(FetchError::Thread)?;
        let mut workers = JoinSet::new();
        for _ in 0..shared.settings.workers.get() {
            workers.spawn(shared.clone().work());
        }
        let deadline = shared.settings.run_for.map(|d| self.started + d);
        let caller = shared.shared_gates.then(|| tokio::spawn(shared.clone().answer_calls()));
        let mut kept = self.kept_gates;
        if let Err(error) = shared.take_new_credentials(&mut kept).await {
            shared.stop_for(&error);
        }
        if shared.shared_gates {
            kept.clear(); // the store remembers, and what an operator has opened there stays open
        }
        let by_exit = kept.extract_if(|scope, _| ScopeKey::from_text(scope).is_by_exit());
        shared.kept_exits.lock().await.extend(by_exit);
        let mut feeder = Feeder::new(shared.clone(), kept);
        let end = supervise(&shared, &mut feeder, &stop, deadline).await;

        shared.stopping.store(true, Ordering::Release);
        shared.idle.notify_waiters();
        if let Some(importer) = shared.importer.lock().as_ref() {
            importer.stop();
        }
        let grace = if end == End::Complete { Duration::from_secs(3600) } else { GRACE };
        let finished = async { while workers.join_next().await.is_some() {} };
        if tokio::time::timeout(grace, finished).await.is_err() {
            // What is cut off goes back to the job by itself: its lease ends with the run. A sink that nobody reads must
            // not hold up the end.
            workers.abort_all();
            while workers.join_next().await.is_some() {}
            let cut = std::mem::take(&mut *shared.once.lock());
            let _ = tokio::time::timeout(GRACE, shared.give_up(cut.into_values())).await;
        }
        shared.timer.stop();
        if let Some(caller) = caller {
            caller.abort();
        }
        shared.gates.leave(GRACE).await;
        let resume_at = resume_at(&shared);
        let at_hand = shared.front.lock().frontier.drain();
        for (work, due) in at_hand {
            // An error is the job's, and the job says it when it closes.
            let _ = shared.put_back(*work, due);
        }
        summary::save_exits(&shared);
        shared.save_evidence();
        let closed = tokio::time::timeout(GRACE, shared.job.close()).await;
        let broken = shared.broken.lock().clone();
        if end != End::Complete {
            shared.say_if_no_exit();
        }
        let counts = match closed {
            Ok(Ok(counts)) => counts,
            Ok(Err(error)) if broken.is_none() => return Err(error.into()),
            _ => shared.job.counts(),
        };
        Ok(summary::of(&shared, counts, end, broken, resume_at, self.started.elapsed()))
    }
}

/// What can be seen to be wrong before a job is made: a name that was mistyped leaves nothing behind.
fn look(options: &FetchOptions) -> Result<(), FetchError> {
    let job = &options.job;
    match (&options.input, job.file()) {
        (Some(source), _) => source.look()?,
        (None, Some(file)) if file.exists() => {}
        (None, Some(_)) => return Err(FetchError::NothingGiven { job: job.clone() }),
        (None, None) => match JobFile::open(job) {
            Ok(_) => {}
            Err(QueueError::NoSuchJob { .. }) => return Err(FetchError::NothingGiven { job: job.clone() }),
            Err(error) => return Err(error.into()),
        },
    }
    let absolute = |path: &Path| std::path::absolute(path).ok();
    match &options.output {
        OutputTarget::File(out) if job.file().is_some_and(|job| absolute(out) == absolute(job)) => {
            Err(FetchError::OneFile { job: job.clone() })
        }
        _ => Ok(()),
    }
}

/// What the bodies that this process has half done are known by. Of several on one job each has an output of its own.
fn body_key(address: &JobAddress, output: &OutputTarget, job: &Job) -> [u8; 32] {
    let key = job.account_key();
    if address.file().is_some() {
        return key;
    }
    let own = match output {
        OutputTarget::File(path) => std::path::absolute(path).unwrap_or_else(|_| path.clone()),
        OutputTarget::Stdout => PathBuf::from(std::process::id().to_string()),
    };
    *blake3::keyed_hash(&key, own.as_os_str().as_encoded_bytes()).as_bytes()
}

/// Whether a job has had exits. One that cannot be looked at has its own error elsewhere.
fn went_by_exits(job: &JobAddress) -> bool {
    JobFile::open(job).and_then(|file| file.exits()).is_ok_and(|exits| !exits.is_empty())
}

/// Begins to read the input, unless another process does. One that is not the job's is refused in either case.
fn import(
    job: &Arc<Job>,
    source: &Source,
    settings: &Arc<Settings>,
    events: &Events,
) -> Result<Option<Importer>, ImportError> {
    if !job.may_import()? {
        source.compare(job.input())?;
        return Ok(None);
    }
    let told = events.clone();
    let lane_of = |target: &Target, account: Option<&str>, endpoint: Option<&str>| {
        Arc::from(LaneParts { origin: target.origin(), account, endpoint }.text())
    };
    let tell = Arc::new(move |event| told(Event::Input(event)));
    Importer::start(job.clone(), source, settings.clone(), tell, lane_of).map(Some)
}

/// Feeds lanes to the workers until the run is over; says why it is.
async fn supervise<G: GateStore>(
    shared: &Arc<Shared<G>>,
    feeder: &mut Feeder<G>,
    stop: &Stop,
    deadline: Option<Instant>,
) -> End {
    let mut arrivals = shared.job.arrivals();
    let mut saved = Instant::now();
    let mut asked_to_import = Instant::now();
    loop {
        if stop.is_asked() {
            return End::Interrupted;
        }
        if shared.broken.lock().is_some() {
            return End::Broken;
        }
        let now = Instant::now();
        if deadline.is_some_and(|at| now >= at) {
            return End::OutOfTime;
        }
        // A store that does not answer must not keep the run from ending.
        let fed = tokio::select! {
            fed = feeder.feed() => fed,
            () = stop.inner.changed.notified() => continue,
            () = sleep_to(deadline) => continue,
        };
        if let Err(error) = fed {
            shared.stop_for(&error);
            return End::Broken;
        }
        if asked_to_import.elapsed() >= IMPORT_AGAIN && shared.input_waits() {
            asked_to_import = Instant::now();
            if let Some(end) = shared.import_again().await {
                return end;
            }
        }
        shared.say_if_no_exit();
        if saved.elapsed() >= SAVE_EXITS {
            summary::save_exits(shared);
            saved = Instant::now();
        }
        if let Some(end) = over(shared, deadline) {
            return end;
        }
        let tick =
            tokio::time::sleep(TICK.min(deadline.map_or(TICK, |at| at.saturating_duration_since(now))));
        tokio::select! {
            () = tick => {}
            () = shared.ended.notified() => {}
            () = stop.inner.changed.notified() => {}
            changed = arrivals.changed() => {
                if changed.is_ok() {
                    arrivals.borrow_and_update();
                    feeder.arrived();
                }
            }
        }
    }
}

/// Waits for the end of the run's time.
async fn sleep_to(deadline: Option<Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Whether the run is over, and why (X2).
fn over<G: GateStore>(shared: &Shared<G>, deadline: Option<Instant>) -> Option<End> {
    if let Some(importer) = shared.importer.lock().as_ref() {
        match importer.ended() {
            None => return None,
            // What it handed over last is not counted before it is written.
            Some(Ok(Imported::All)) if !is_written(&shared.job, importer) => return None,
            Some(Err(error)) => {
                shared.broken.lock().get_or_insert(Broken::Input(chain(&*error)));
                return Some(End::Broken);
            }
            Some(Ok(_)) => {}
        }
    }
    let counts = shared.job.counts();
    if counts.input == InputEnd::More && (shared.job.is_fed_elsewhere() || shared.input_waits()) {
        return None;
    }
    if counts.open() == 0 {
        return Some(End::Complete);
    }
    let now = shared.gates.now();
    let mut front = shared.front.lock();
    if front.busy > 0 || front.frontier.is_loading() || front.frontier.is_ready(now) {
        return None;
    }
    let timer = front.next_timer();
    let at_hand = front.frontier.at_hand();
    drop(front);
    if counts.leased - counts.elsewhere > at_hand as u64 {
        return None; // results on their way to the disk, which may be full for a while
    }
    let unseen = counts.pending > 0 && at_hand == 0;
    if at_hand == 0 && counts.elsewhere > 0 || unseen && timer.is_none() && shared.job.is_shared() {
        return None; // what others have may come back, and what has is the feeder's next round
    }
    let wall = wall_now();
    let parked = shared.job.next_due().map(|due| due.since(wall));
    let wait = timer.map(|at| at.since(now)).into_iter().chain(parked).min();
    if let Some((_, usable)) = shared.routes.pools().unusable() {
        let hopeless = match usable {
            Usable::Yes => false,
            Usable::Out => wait.is_none(),
            // A proxy's outage is waited for as long as a server's, and by those alone that go by it.
            Usable::Failing { since, .. } => {
                deadline.is_none()
                    && now.since(since) > shared.settings.stall_after
                    && !shared.front.lock().has_a_way()
            }
        };
        if hopeless {
            return Some(End::NoExit);
        }
    }
    let Some(wait) = wait else {
        // Nothing is due by itself. Items that nobody has looked at yet are the feeder's next round.
        return (!unseen).then_some(End::NothingDue);
    };
    match deadline {
        Some(at) => (Instant::now() + wait > at).then_some(End::OutOfTime),
        None => {
            // Counted from the told deadline: pad and chance only come on top of it.
            let stretch = shared.settings.pad.factor + shared.settings.jitter;
            let told = wait.div_f64(stretch.max(1.0)).saturating_sub(shared.settings.pad.fixed);
            (told > shared.settings.stall_after).then_some(End::Stalled)
        }
    }
}

/// Whether the job has all that the importer has read. That the input has ended is no answer: it had before it has grown.
fn is_written(job: &Job, importer: &Importer) -> bool {
    let (position, read) = (job.position(), importer.progress());
    job.counts().input == InputEnd::Reached
        && position.line >= read.lines()
        && position.offset >= read.bytes()
}

/// The wall-clock time when the first of what is left is due.
fn resume_at<G: GateStore>(shared: &Shared<G>) -> Option<Timestamp> {
    let now = shared.gates.now();
    let wall = wall_now();
    let timer = shared.front.lock().next_timer();
    timer.map(|at| wall.plus(at.since(now))).into_iter().chain(shared.job.next_due()).min()
}

impl<G: GateStore> Shared<G> {
    /// The monotonic instant of a moment on the gate's clock.
    fn instant(&self, at: Timestamp) -> Instant {
        Instant::now() + at.since(self.gates.now()).min(Duration::from_secs(86_400))
    }

    /// Gives an item back to the job. One that was tried already waits for its time, as the reason says; others are as if
    /// nobody had looked at them.
    fn put_back(&self, work: Work, due: Timestamp) -> Result<(), QueueError> {
        let wait = due.since(self.gates.now());
        if work.tries == 0 || due == Timestamp::MAX {
            return self.job.release(work.item);
        }
        let counters = work.counters_at(due);
        let said = counters.error.clone().unwrap_or_default();
        let until = Until::Time(wall_now().plus(wait));
        self.job.park(work.item.lease, until, format!("the run ended while it waited ({said})"), counters)
    }

    /// Opens what an earlier run shut for its credentials, where the configuration has others now. Whoever wants the same
    /// ones tried again says so by `job retry --parked`.
    async fn take_new_credentials(&self, kept: &mut HashMap<String, Vec<u8>>) -> Result<(), QueueError> {
        let renewed = |_: &String, record: &mut Vec<u8>| {
            GateRecord::refused(record).is_some_and(|refused| {
                self.accounts.configured(&self.routes.headers(&refused.origin)) != refused.configured
            })
        };
        let scopes: Vec<String> = kept.extract_if(renewed).map(|(scope, _)| scope).collect();
        for scope in scopes {
            if self.shared_gates {
                let policy = Arc::new(self.settings.scope_policy(None, None));
                let key = ScopeKey::from_text(&scope);
                self.reopen(BoundScope { key, by: None, role: Role::Planned, policy }).await;
            }
            self.job.delete_gate(&scope)?;
            let items = self.job.credentials_changed(scope.clone()).await?;
            (self.events)(Event::Renewed { scope, items });
        }
        Ok(())
    }

    /// Puts the gates of an exit back as the last run left them (P8).
    async fn restore(&self, scopes: &[BoundScope]) {
        let mut kept = self.kept_exits.lock().await;
        if !kept.is_empty() {
            restore(&mut kept, &*self.gates, scopes).await;
        }
    }

    /// Whether there is an input that nobody reads here: another process did, and may have ended.
    fn input_waits(&self) -> bool {
        self.source.is_some()
            && self.job.counts().input == InputEnd::More
            && self
                .importer
                .lock()
                .as_ref()
                .is_none_or(|importer| matches!(importer.ended(), Some(Ok(Imported::Stopped))))
    }

    /// Reads the input on, if nobody else does.
    async fn import_again(self: &Arc<Self>) -> Option<End> {
        let shared = self.clone();
        let began = tokio::task::spawn_blocking(move || match &shared.source {
            Some(source) => import(&shared.job, source, &shared.settings, &shared.events),
            None => Ok(None),
        });
        match began.await {
            Ok(Ok(Some(importer))) => *self.importer.lock() = Some(importer),
            Ok(Ok(None)) | Err(_) => {}
            // A queue that cannot be reached is waited for.
            Ok(Err(ImportError::Job(error))) if error.is_unreachable() => {}
            Ok(Err(error)) => {
                self.broken.lock().get_or_insert(Broken::Input(chain(&error)));
                return Some(End::Broken);
            }
        }
        None
    }

    /// Says when no exit can be used any more, once until one can again (E5).
    fn say_if_no_exit(&self) {
        let unusable = self.routes.pools().unusable();
        if self.no_exit.swap(unusable.is_some(), Ordering::Relaxed) {
            return;
        }
        let Some((exits, usable)) = unusable else { return };
        let wait = match usable {
            Usable::Failing { next, .. } => Some(next.since(self.gates.now())),
            Usable::Yes | Usable::Out => None,
        };
        (self.events)(Event::NoExit { wait, exits });
    }

    /// Says a thing once; it may well happen a million times.
    fn warn_once(&self, text: String) {
        let mut warned = self.warned.lock();
        if warned.len() < 100 && !warned.contains(&text) {
            (self.events)(Event::Warning(text.clone()));
            warned.push(text);
        }
    }

    /// Says once what only those want to know who ask for more words.
    fn say_once(&self, text: String) {
        let mut warned = self.warned.lock();
        if warned.len() < 100 && !warned.contains(&text) {
            tracing::info!("{text}");
            warned.push(text);
        }
    }

    /// What the job said to an item's end. One that others have meanwhile is theirs; any other error ends the run.
    fn taken(&self, said: Result<(), QueueError>) {
        match said {
            Ok(()) => {}
            Err(QueueError::StaleLease) => self.warn_once("a result came too late, and was dropped".into()),
            Err(error) => self.stop_for(&error),
        }
    }

    /// The job cannot go on: the run ends, and says why.
    fn stop_for(&self, error: &QueueError) {
        let broken = if is_closed(error) { Broken::OutputClosed } else { Broken::Job(chain(error)) };
        self.broken.lock().get_or_insert(broken);
        self.stopping.store(true, Ordering::Release);
        self.ended.notify_one();
    }
}

fn is_closed(error: &QueueError) -> bool {
    match error {
        QueueError::OutputClosed => true,
        QueueError::Stopped(why) => is_closed(why),
        _ => false,
    }
}

/// What to say where the gate store is not there.
fn no_gate(place: &str, source: &StoreError) -> String {
    match source {
        StoreError::Unreachable(why) => format!(
            "cannot reach the gate store {place}: {why}; start it or correct the address, or use --gate memory to go on \
             with gates of this process alone"
        ),
        other => format!("{place}: {other}"),
    }
}

/// An error with all its causes.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("job", &self.shared.job).finish_non_exhaustive()
    }
}

/// How long what is in flight may take once the run is to end.
const GRACE: Duration = Duration::from_secs(2);
/// How often what went through the exits is saved: that much of it a kill may cost.
const SAVE_EXITS: Duration = Duration::from_secs(10);
/// How often it is tried to read the input on, where another process did.
const IMPORT_AGAIN: Duration = Duration::from_secs(1);
/// How often the supervisor looks, if nothing calls it.
const TICK: Duration = Duration::from_millis(50);

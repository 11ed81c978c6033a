//! One run: opened, driven to its end, and ended so that nothing is lost (J1, J6).

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use forbear_core::scope::ScopeKey;
use forbear_store::{
    gate::AnyGates,
    queue::{Job, JobAddress, JobOptions, OutputTarget, QueueError, inspect::JobFile},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, task::JoinSet};

use super::{
    FetchError, FetchOptions, KeepBodies, Stop, Watch,
    cookies::Cookies,
    events::{Event, Events},
    exits::Pools,
    feed::{Feeder, load_gates},
    gates,
    route::{LaneParts, Routes},
    shared::Shared,
    summary::{self, End, Summary},
    supervisor::{resume_at, supervise},
    timer::Timer,
};
use crate::{
    bodies::{Bodies, BodyDir},
    client::{Client, ClientOptions, Target},
    config::Settings,
    input::{ImportError, Importer, Source},
    secrets::{Accounts, Redactor},
};

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
        shared.save_learned();
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
pub(super) fn import(
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

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run").field("job", &self.shared.job).finish_non_exhaustive()
    }
}

/// How long what is in flight may take once the run is to end.
const GRACE: Duration = Duration::from_secs(2);

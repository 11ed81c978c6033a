//! What workers and supervisor of a run share.

use std::{
    collections::HashMap,
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
    gate::{GateRecord, GateStore},
    queue::{InputEnd, Item, Job, QueueError, Seq, Until},
};
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::{
    cookies::Cookies,
    events::{Event, Events},
    feed::restore,
    front::{Front, Work},
    gates::Calls,
    route::Routes,
    run::import,
    summary::{Broken, End},
    timer::Timer,
    worker::wall_now,
};
use crate::{
    bodies::Bodies,
    client::Client,
    config::Settings,
    input::{ImportError, Imported, Importer, Source},
    secrets::{Accounts, Redactor},
};

/// Everything that workers and supervisor share.
pub(super) struct Shared<G> {
    pub(super) gates: Arc<G>,
    /// Other processes may change them.
    pub(super) shared_gates: bool,
    pub(super) calls: Arc<Calls>,
    pub(super) job: Arc<Job>,
    pub(super) client: Client,
    pub(super) settings: Arc<Settings>,
    pub(super) routes: Arc<Routes>,
    pub(super) redactor: Redactor,
    pub(super) accounts: Accounts,
    pub(super) bodies: Bodies,
    pub(super) cookies: Cookies,
    pub(super) front: Mutex<Front>,
    /// Workers with nothing to do.
    pub(super) idle: Notify,
    /// An item has ended, so the run may have.
    pub(super) ended: Notify,
    pub(super) timer: Timer,
    pub(super) stopping: AtomicBool,
    /// Gates of exits as the last run left them, until they are met. Held while one is put back: nobody asks it before.
    pub(super) kept_exits: tokio::sync::Mutex<HashMap<String, Vec<u8>>>,
    /// Whether it was said that no exit can be used.
    pub(super) no_exit: AtomicBool,
    /// Items on the wire that must not be sent twice: if the run ends under one, nobody knows what became of it (V2).
    pub(super) once: Mutex<HashMap<Seq, Item>>,
    pub(super) events: Events,
    pub(super) warned: Mutex<Vec<String>>,
    pub(super) broken: Mutex<Option<Broken>>,
    pub(super) importer: Mutex<Option<Importer>>,
    pub(super) source: Option<Source>,
}

impl<G: GateStore> Shared<G> {
    /// The monotonic instant of a moment on the gate's clock.
    pub(super) fn instant(&self, at: Timestamp) -> Instant {
        Instant::now() + at.since(self.gates.now()).min(Duration::from_secs(86_400))
    }

    /// Gives an item back to the job. One that was tried already waits for its time, as the reason says; others are as if
    /// nobody had looked at them.
    pub(super) fn put_back(&self, work: Work, due: Timestamp) -> Result<(), QueueError> {
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
    pub(super) async fn take_new_credentials(
        &self,
        kept: &mut HashMap<String, Vec<u8>>,
    ) -> Result<(), QueueError> {
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
    pub(super) async fn restore(&self, scopes: &[BoundScope]) {
        let mut kept = self.kept_exits.lock().await;
        if !kept.is_empty() {
            restore(&mut kept, &*self.gates, scopes).await;
        }
    }

    /// Whether there is an input that nobody reads here: another process did, and may have ended.
    pub(super) fn input_waits(&self) -> bool {
        self.source.is_some()
            && self.job.counts().input == InputEnd::More
            && self
                .importer
                .lock()
                .as_ref()
                .is_none_or(|importer| matches!(importer.ended(), Some(Ok(Imported::Stopped))))
    }

    /// Reads the input on, if nobody else does.
    pub(super) async fn import_again(self: &Arc<Self>) -> Option<End> {
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
    pub(super) fn say_if_no_exit(&self) {
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
    pub(super) fn warn_once(&self, text: String) {
        let mut warned = self.warned.lock();
        if warned.len() < 100 && !warned.contains(&text) {
            (self.events)(Event::Warning(text.clone()));
            warned.push(text);
        }
    }

    /// Says once what only those want to know who ask for more words.
    pub(super) fn say_once(&self, text: String) {
        let mut warned = self.warned.lock();
        if warned.len() < 100 && !warned.contains(&text) {
            tracing::info!("{text}");
            warned.push(text);
        }
    }

    /// What the job said to an item's end. One that others have meanwhile is theirs; any other error ends the run.
    pub(super) fn taken(&self, said: Result<(), QueueError>) {
        match said {
            Ok(()) => {}
            Err(QueueError::StaleLease) => self.warn_once("a result came too late, and was dropped".into()),
            Err(error) => self.stop_for(&error),
        }
    }

    /// The job cannot go on: the run ends, and says why.
    pub(super) fn stop_for(&self, error: &QueueError) {
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

/// An error with all its causes.
pub(super) fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        words = format!("{words}: {cause}");
        source = cause.source();
    }
    words
}

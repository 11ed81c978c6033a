//! A shared store inside one process, for simulations: a member's side of it is the one that Redis and the file have.
//!
//! Time is the runtime's, so with a clock that stands still and is moved on by whoever waits longest, an hour takes a moment.
//! What goes wrong is said by [`SimStore::weather`]: an answer that takes long, a store that is gone, that hangs, that forgets,
//! whose clock is set.

use std::{
    collections::BTreeMap,
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use forbear_core::time::Timestamp;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    SharedOptions, StoreError,
    shared::{Link, LinkError, Page, Push, Reply, SharedGates, Tick, Write, member_of_a_fleet},
};

/// How the way to a simulated store is, and the store itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Weather {
    /// One way, at least; chance adds up to as much again.
    pub delay: Duration,
    /// Connections are refused, and those that there were are cut.
    pub lost: bool,
    /// It takes everything and answers nothing.
    pub hangs: bool,
    /// What its clock is ahead of the true time by, in microseconds; behind, if negative.
    pub ahead_us: i64,
}

impl Default for Weather {
    fn default() -> Weather {
        Weather { delay: Duration::from_micros(200), lost: false, hangs: false, ahead_us: 0 }
    }
}

/// A store that the members of one simulated fleet share.
#[derive(Clone)]
pub struct SimStore(Arc<Inner>);

struct Inner {
    began: Instant,
    epoch: Timestamp,
    weather: Mutex<Weather>,
    /// Cut connections are not the present ones.
    cuts: AtomicU64,
    values: Mutex<BTreeMap<String, (Vec<u8>, Timestamp)>>,
    listeners: Mutex<Vec<Arc<Ear>>>,
}

/// Where a member listens.
struct Ear {
    listener: OnceLock<Box<dyn Fn(Push) + Send + Sync>>,
    /// The number of cuts that there had been when it connected.
    connected: AtomicU64,
}

/// One member's clock: what it shows at the start, and how fast it runs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Drift {
    /// Microseconds that it shows at the start.
    pub offset_us: u64,
    /// Millionths that it runs too fast; too slow, if negative.
    pub ppm: i64,
}

impl SimStore {
    /// An empty store whose clock shows `epoch` now.
    #[must_use]
    pub fn new(epoch: Timestamp) -> SimStore {
        SimStore(Arc::new(Inner {
            began: Instant::now(),
            epoch,
            weather: Mutex::default(),
            cuts: AtomicU64::new(0),
            values: Mutex::default(),
            listeners: Mutex::default(),
        }))
    }

    /// Changes the weather. Where the store is lost with it, every member hears that its connection is cut.
    pub fn weather(&self, change: impl FnOnce(&mut Weather)) {
        let mut weather = self.0.weather.lock();
        let before = weather.lost;
        change(&mut weather);
        let cut = weather.lost && !before;
        drop(weather);
        if !cut {
            return;
        }
        self.0.cuts.fetch_add(1, Relaxed);
        let ears: Vec<Arc<Ear>> = self.0.listeners.lock().clone();
        for listener in ears.iter().filter_map(|ear| ear.listener.get()) {
            listener(Push::Gone(LinkError::Io(io::ErrorKind::ConnectionReset.into())));
        }
    }

    /// It has forgotten everything.
    pub fn forget(&self) {
        self.0.values.lock().clear();
    }

    /// The true time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.0.epoch.plus(self.0.began.elapsed())
    }

    /// Another process joins, with a clock of its own.
    ///
    /// # Errors
    /// [`StoreError::Unreachable`] if the store is lost or hangs.
    pub async fn join(&self, drift: Drift, options: SharedOptions) -> Result<SimGates, StoreError> {
        let ear = Arc::new(Ear { listener: OnceLock::new(), connected: AtomicU64::new(u64::MAX) });
        let link = SimLink { store: self.0.clone(), ear: ear.clone(), drift };
        link.reconnect().await.map_err(unreachable)?;
        let gates = SharedGates::new(link, options);
        let _ = ear.listener.set(Box::new(gates.listener()));
        self.0.listeners.lock().push(ear);
        gates.greet().await.map_err(unreachable)?;
        Ok(SimGates(gates))
    }
}

impl std::fmt::Debug for SimStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimStore").field("weather", &self.0.weather.lock()).finish_non_exhaustive()
    }
}

fn unreachable(error: LinkError) -> StoreError {
    StoreError::Unreachable(io::Error::other(error.to_string()))
}

/// The gates of one member of a simulated fleet.
pub struct SimGates(SharedGates<SimLink>);

member_of_a_fleet!(SimGates);

struct SimLink {
    store: Arc<Inner>,
    ear: Arc<Ear>,
    drift: Drift,
}

impl SimLink {
    async fn way(&self) {
        let delay = self.store.weather.lock().delay;
        tokio::time::sleep(delay + delay.mul_f64(fastrand::f64())).await;
    }

    fn is_connected(&self) -> bool {
        !self.store.weather.lock().lost && self.ear.connected.load(Relaxed) == self.store.cuts.load(Relaxed)
    }
}

impl Link for SimLink {
    async fn swap(&self, writes: &[Write], tell: bool) -> Result<Reply, LinkError> {
        let cut = || LinkError::Io(io::ErrorKind::ConnectionReset.into());
        self.way().await;
        if !self.is_connected() {
            return Err(cut());
        }
        if self.store.weather.lock().hangs {
            std::future::pending::<()>().await;
        }
        let reply = self.store.swap(writes, tell);
        self.way().await;
        // What was written stays written, whether or not anybody hears of it.
        if self.is_connected() { Ok(reply) } else { Err(cut()) }
    }

    async fn call(&self, write: &Write) -> Result<(), LinkError> {
        self.way().await;
        if self.is_connected() && !self.store.weather.lock().hangs {
            self.store.call(write);
        }
        Ok(())
    }

    async fn page(&self, _: Option<&str>) -> Result<Page, LinkError> {
        let values = self.store.values.lock();
        Ok((values.iter().map(|(key, (value, _))| (key.clone(), value.clone())).collect(), None))
    }

    async fn reconnect(&self) -> Result<(), LinkError> {
        self.way().await;
        let weather = *self.store.weather.lock();
        if weather.lost {
            return Err(LinkError::Io(io::ErrorKind::ConnectionRefused.into()));
        }
        if weather.hangs {
            return Err(LinkError::Hung);
        }
        self.ear.connected.store(self.store.cuts.load(Relaxed), Relaxed);
        Ok(())
    }

    fn tick(&self) -> Tick {
        let (began, drift) = (self.store.began, self.drift);
        Box::new(move || {
            let true_us = u64::try_from(began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let fast = i128::from(true_us) * i128::from(drift.ppm) / 1_000_000;
            let shown = i128::from(true_us) + i128::from(drift.offset_us) + fast;
            u64::try_from(shown).unwrap_or(0)
        })
    }

    fn suspended(&self) -> Tick {
        Box::new(|| 0)
    }
}

impl Inner {
    /// What the script in Redis does.
    fn swap(self: &Arc<Self>, writes: &[Write], tell: bool) -> Reply {
        let now = self.epoch.plus(self.began.elapsed());
        let ahead = self.weather.lock().ahead_us;
        let time = Timestamp::from_micros(now.as_micros().saturating_add_signed(ahead));
        let mut values = self.values.lock();
        values.retain(|_, (_, until)| now < *until);
        let known = |write: &Write| values.get(&write.key).map(|(value, _)| value.clone());
        let as_expected = writes.iter().all(|write| match known(write) {
            None => write.expect.is_empty(),
            Some(value) => !write.expect.is_empty() && value.starts_with(&write.expect),
        });
        if !as_expected {
            return Reply { time: Some(time), found: Some(writes.iter().map(known).collect()) };
        }
        for write in writes.iter().filter(|write| !write.value.is_empty()) {
            let keep = write.keep.max(Duration::from_millis(1));
            values.insert(write.key.clone(), (write.value.clone(), now.plus(keep)));
            if tell {
                self.call(write);
            }
        }
        Reply { time: Some(time), found: None }
    }

    /// Calls a value out to everybody, each in his own time.
    fn call(self: &Arc<Self>, write: &Write) {
        let (delay, cuts) = (self.weather.lock().delay, self.cuts.load(Relaxed));
        for ear in self.listeners.lock().iter() {
            let (ear, store) = (ear.clone(), self.clone());
            let (key, value) = (write.key.clone(), write.value.clone());
            let after = delay + delay.mul_f64(fastrand::f64());
            tokio::spawn(async move {
                tokio::time::sleep(after).await;
                let whole = cuts == store.cuts.load(Relaxed) && ear.connected.load(Relaxed) == cuts;
                if let Some(listener) = ear.listener.get().filter(|_| whole) {
                    listener(Push::Value(key, value));
                }
            });
        }
    }
}

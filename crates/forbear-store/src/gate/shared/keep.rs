//! What a member does by itself: hears what the store calls, sends what is due, goes on alone and comes back (F1).

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Weak, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use forbear_core::{scope::ScopeKey, time::Timestamp};

use super::{
    Changes, Inner, Purpose, SharedChange, SharedEvent,
    entry::Entry,
    flight::Part,
    link::{Link, LinkError, Push, Write},
    record::Record,
};

impl<L: Link> Inner<L> {
    /// The store calls.
    pub(super) fn hear(&self, push: Push) {
        let (key, value) = match push {
            Push::Value(key, value) => (ScopeKey::from_text(&key), value),
            Push::Missed => {
                self.missed.store(true, Relaxed);
                return self.urgent.notify_one();
            }
            Push::Gone(error) => return self.lose(&error, None),
        };
        let now = self.clock.now();
        let changed = {
            let mut table = self.table.lock();
            let Some(entry) = table.entries.get_mut(&key).filter(|entry| !entry.is_local()) else { return };
            let Ok(mut record) = Record::decode(&value) else { return }; // whoever asks for it will say so
            record.shift(self.moved_us(&record, now));
            if record.writer == self.me {
                return;
            }
            if record.is_notice() {
                return entry.heard_of_pause(record, now);
            }
            if !entry.is_news(&record) {
                return;
            }
            if entry.flying.is_some() {
                entry.called = Some(record);
                return;
            }
            let was = entry.pause();
            if entry.rebase(record, now, false) {
                self.urgent.notify_one();
            }
            if self.leads_by(entry) {
                self.urgent.notify_one();
            }
            let change = SharedChange::since(was, &entry.local);
            table.active.push(key.clone());
            vec![(key, change)]
        };
        self.tell_changed(changed);
    }

    pub(super) fn tell_changed(&self, changed: Changes) {
        for (scope, change) in changed {
            (self.options.events)(SharedEvent::Changed { scope, change });
        }
    }

    /// The store is gone (F1): from here on nobody asks it but [`keep`].
    pub(super) fn lose(&self, error: &LinkError, asked: Option<u64>) {
        let now = self.clock.now();
        {
            let mut table = self.table.lock();
            if table.alone.is_some() || asked.is_some_and(|asked| asked != table.losses) {
                return;
            }
            table.losses += 1;
            table.alone = Some(now);
            for entry in table.entries.values_mut().filter(|entry| !entry.is_local()) {
                if let Some(called) = entry.called.take() {
                    let _ = entry.rebase(called, now, false);
                }
                entry.part(self.me, now);
                entry.landed.notify_waiters();
            }
        }
        tracing::info!(%error, "the gate store is lost; going on alone with this member's share of every pace");
        (self.options.events)(SharedEvent::Lost { why: error.to_string() });
        self.urgent.notify_one();
    }

    /// The store is back: everything that is remembered goes to it, and what it has comes here.
    async fn rejoin(self: &Arc<Self>) -> Result<(), LinkError> {
        self.link.reconnect().await?;
        self.swap(&[], false).await?;
        self.read_again(true).await?;
        let after = {
            let mut table = self.table.lock();
            table.alone.take().map(|since| self.clock.now().since(since)).unwrap_or_default()
        };
        (self.options.events)(SharedEvent::Back { after });
        Ok(())
    }

    /// Takes in what the store has of every scope that is known here.
    async fn read_again(self: &Arc<Self>, was_lost: bool) -> Result<(), LinkError> {
        let mut places: HashMap<String, Vec<ScopeKey>> = HashMap::new();
        {
            let table = self.table.lock();
            for (key, _) in table.entries.iter().filter(|(_, entry)| !entry.is_local()) {
                places.entry(self.link.place(key.as_str())).or_default().push(key.clone());
            }
        }
        let look = |key: &ScopeKey| Write {
            key: key.as_str().to_owned(),
            expect: NOBODYS.to_vec(),
            value: Vec::new(),
            keep: Duration::ZERO,
        };
        for keys in places.values().flat_map(|keys| keys.chunks(AT_ONCE)) {
            let looks: Vec<Write> = keys.iter().map(look).collect();
            let found = self.swap(&looks, false).await?.found.unwrap_or_default();
            let now = self.clock.now();
            let mut changed = Changes::new();
            let mut table = self.table.lock();
            for (key, value) in keys.iter().zip(found) {
                let Some(entry) = table.entries.get_mut(key) else { continue };
                if !was_lost && entry.flying.is_some() {
                    continue; // its answer says what the store has
                }
                let record = value.as_deref().and_then(|value| Record::decode(value).ok());
                match record {
                    Some(mut record) if was_lost => {
                        record.shift(self.moved_us(&record, now));
                        let _ = entry.rebase(record, now, true);
                    }
                    None if was_lost => drop(entry.vanished(now)),
                    Some(record) if !entry.is_news(&record) && !entry.is_lost_in(&record) => continue,
                    _ => self.learn(entry, key, value.as_deref(), now, &mut changed),
                }
                entry.hurry();
                table.active.push(key.clone());
            }
            drop(table);
            self.tell_changed(changed);
        }
        Ok(())
    }

    /// The store's clock was set forward, and has jumped over the pauses in its records: they are written in its new time, for
    /// whoever comes later.
    pub(super) fn say_pauses_again(&self) {
        tracing::info!(
            "the gate store's clock was set forward; pauses last as long as they were told all the same"
        );
        let mut table = self.table.lock();
        let table = &mut *table;
        for (key, entry) in table.entries.iter_mut().filter(|(_, entry)| !entry.is_local()) {
            if entry.local.shut {
                entry.dirty = Some(Timestamp::ZERO);
                table.active.push(key.clone());
            }
        }
        self.urgent.notify_one();
    }

    /// Sends what is due.
    pub(super) fn flush(self: &Arc<Self>) {
        let now = self.clock.now();
        let mut flights = Vec::new();
        {
            let mut table = self.table.lock();
            let table = &mut *table;
            if table.alone.is_some() {
                return;
            }
            let mut active = std::mem::take(&mut table.active);
            active.sort_unstable();
            active.dedup();
            active.retain(|key| {
                let Some(entry) = table.entries.get_mut(key) else { return false };
                if flights.len() < AT_ONCE
                    && (entry.is_due(self.me, now) || entry.dirty.is_some() && entry.is_crowded(self.me, now))
                    && entry.flying.is_none()
                    && !entry.is_local()
                {
                    let before = entry.view(self.me, now, false);
                    let part = Part::still(key.clone(), before, false);
                    flights.push(part);
                }
                entry.is_active(self.me)
            });
            table.active.extend(active);
            let launch = |part| self.launch(table, vec![part], now, Purpose::Flush);
            flights.into_iter().map(launch).collect::<Vec<_>>()
        }
        .into_iter()
        .for_each(|flight| drop(self.runtime.spawn(self.clone().fly(flight))));
    }
}

impl<L: Link> Inner<L> {
    /// Notes what waits here for each scope, for whoever looks from outside.
    pub(super) fn note_waiting(&self, waiting: &HashMap<ScopeKey, u32>) {
        let now = self.clock.now();
        let mut table = self.table.lock();
        let table = &mut *table;
        for (key, entry) in table.entries.iter_mut().filter(|(_, entry)| !entry.is_local()) {
            let count = waiting.get(key).copied().unwrap_or(0);
            if count != entry.waiting && (entry.local.shut || entry.is_member(self.me)) {
                entry.note_waiting(count, now);
                table.active.push(key.clone());
            }
        }
    }

    /// Takes this member out of every scope where it has nothing on the wire.
    pub(super) async fn leave(self: Arc<Self>) {
        let mut seen = HashSet::new();
        loop {
            let now = self.clock.now();
            let (mut flights, mut busy) = (Vec::new(), None);
            {
                let mut table = self.table.lock();
                let table = &mut *table;
                if table.alone.is_some() {
                    return;
                }
                let of_mine = |(_, entry): &(&ScopeKey, &Entry)| entry.is_member(self.me) && entry.own == 0;
                let mine = table.entries.iter().filter(of_mine).filter(|(key, _)| !seen.contains(*key));
                let keys: Vec<ScopeKey> = mine.map(|(key, _)| key.clone()).take(AT_ONCE).collect();
                for key in keys {
                    let Some(entry) = table.entries.get_mut(&key) else { continue };
                    if entry.flying.is_some() {
                        busy = Some(entry.landed.clone().notified_owned());
                        continue;
                    }
                    let before = entry.view(self.me, now, false);
                    let part = Part::still(key.clone(), before, false);
                    seen.insert(key);
                    flights.push(self.launch(table, vec![part], now, Purpose::Leave));
                }
            }
            if flights.is_empty() {
                let Some(landed) = busy else { return };
                landed.await;
                continue;
            }
            for flight in flights {
                self.clone().fly(flight).await;
            }
        }
    }
}

/// Looks after a member for as long as somebody has it: sends what is due, and finds the store again.
pub(super) async fn keep<L: Link>(inner: Weak<Inner<L>>) {
    let mut wait = RETRY.0;
    let mut key_at = Instant::now();
    loop {
        let Some(strong) = inner.upgrade() else { return };
        if strong.table.lock().alone.is_some() {
            match strong.rejoin().await {
                Ok(()) => (wait, key_at) = (RETRY.0, Instant::now()),
                Err(error) => {
                    tracing::debug!(%error, "the gate store is still gone");
                    drop(strong);
                    tokio::time::sleep(wait.mul_f64(fastrand::f64() + 0.5)).await;
                    wait = (wait * 2).min(RETRY.1);
                    continue;
                }
            }
        }
        if strong.missed.swap(false, Relaxed)
            && let Err(error) = strong.read_again(false).await
        {
            strong.lose(&error, None);
            continue;
        }
        if strong.clock.is_old()
            && let Err(error) = strong.swap(&[], false).await
        {
            strong.lose(&error, None);
            continue;
        }
        strong.learn_of_all();
        strong.flush();
        if strong.secret.get().is_some() && Instant::now() >= key_at {
            key_at = Instant::now() + KEY_AGAIN;
            if let Err(error) = strong.account_key().await {
                strong.lose(&error, None);
                continue;
            }
        }
        let urgent = strong.urgent.notified();
        let _ = tokio::time::timeout(TICK, urgent).await;
    }
}

/// How often a member looks what is due.
const TICK: Duration = Duration::from_millis(50);
/// Between two tries to find the store again: at first, and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(1));
/// How often the store is asked whether it still has the key of accounts: a member that comes later must find it.
const KEY_AGAIN: Duration = Duration::from_secs(60);
/// So many scopes in one request to the store at most.
const AT_ONCE: usize = 128;
/// Begins no value, so that the store tells what it has.
pub(super) const NOBODYS: &[u8] = b"?";

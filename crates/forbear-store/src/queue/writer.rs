//! The one thread that writes: bodies, output, database, in this order, a group at a time (J1).
//!
//! Order and durability of a group:
//!
//! 1. body files are synced and renamed, and their directories synced;
//! 2. records are appended to the output, and the output synced;
//! 3. the transaction commits. With a park, a gate or a wake in it, it is synced too (`synchronous = FULL`); with nothing
//!    but acknowledgements and imports it is not (`NORMAL`).
//!
//! A power cut may so undo acknowledgements, but their records are safe, and the next start finds them again in the
//! output's tail. It may undo imports, but only such of whose items no record was written: before the next record, the
//! database's log is synced. It can never undo a deadline.
//!
//! A kill costs less: what the file system was given it keeps, so records are written while the group still gathers.

use std::{
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use hashbrown::HashSet;
use parking_lot::MutexGuard;

use super::{
    bodies,
    error::{Event, Events, QueueError},
    group::{FinishPlan, Group, records},
    item::{Batch, BodyFile, Seq},
    ledger::{Ledger, Place, Standing, Tally},
    output::{Output, may_pass},
    shared::{Command, Inner, Phase, Shared, woken},
};

/// How long a group gathers. With a commit of the same length, what was fetched is durable in about 50 ms.
const GATHER: Duration = Duration::from_millis(25);
/// While a group gathers, its records are written at this pace, so that a kill costs what came in so short a time.
const AHEAD: Duration = Duration::from_millis(1);
/// A larger record waits for its group.
const AHEAD_BYTES_MAX: usize = 1 << 20;
/// Leases are shown to others at this pace when nothing else is to be written.
const SHOW_LEASES: Duration = Duration::from_millis(200);
/// A group goes at once when it has this many commands: fuller ones save nothing.
const GROUP_MAX: usize = 8192;
/// Pauses between tries while the disk is full.
const RETRY_FIRST: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(2);
pub(crate) struct Writer {
    pub(crate) ledger: Box<dyn Ledger>,
    pub(crate) output: Output,
    pub(crate) shared: Arc<Shared>,
    pub(crate) events: Events,
    pub(crate) tally: Tally,
}

/// How far the gathering group was written ahead. That must be the beginning of what [`records`] gives later.
struct Ahead {
    /// Commands of the inbox that were looked at.
    seen: usize,
    /// The rest waits for its group.
    over: bool,
}

impl Ahead {
    /// The records that have come since the last look.
    fn records(&mut self, inbox: &[Command]) -> Vec<u8> {
        let mut records = Vec::new();
        for command in inbox.iter().skip(self.seen) {
            self.seen += 1;
            let Command::Finish { finish, .. } = command else { continue };
            // A body's file may turn out to be lost, and then its record is not written.
            self.over |= finish.body.is_some() || finish.record.len() > AHEAD_BYTES_MAX;
            if self.over {
                self.seen = inbox.len();
                break;
            }
            records.extend_from_slice(&finish.record);
        }
        records
    }
}

impl Writer {
    /// Works until the job is closed or cannot go on.
    pub(crate) fn run(mut self) {
        loop {
            let mut group = self.gather();
            if let Err(error) = self.persist(&mut group) {
                return self.leave(Err(error), group);
            }
            let closing = group.closing;
            self.publish(group);
            if closing {
                return self.leave(Ok(()), Group::default());
            }
        }
    }

    /// Waits for something to do, then for company, and plans the group.
    fn gather(&mut self) -> Group {
        let shared = Arc::clone(&self.shared);
        let mut inner = shared.inner.lock();
        loop {
            if !inner.inbox.is_empty() || !inner.gates.is_empty() || inner.urgent || inner.closing {
                break;
            }
            if inner.fresh.is_empty() && inner.unlease.is_empty() {
                inner.idle = true;
                shared.wake.wait(&mut inner);
                inner.idle = false;
            } else if shared.wake.wait_for(&mut inner, SHOW_LEASES).timed_out() {
                break;
            }
        }
        let deadline = Instant::now() + GATHER;
        let mut ahead = Ahead { seen: 0, over: !matches!(self.output, Output::File(_)) };
        while !inner.urgent && !inner.closing && inner.inbox.len() < GROUP_MAX && inner.imports < 2 {
            let records = ahead.records(&inner.inbox);
            if !records.is_empty() {
                MutexGuard::unlocked(&mut inner, || ahead.over |= !self.write_ahead(&records));
                continue;
            }
            let now = Instant::now();
            if now >= deadline {
                break;
            }
            let next = if ahead.over { deadline } else { deadline.min(now + AHEAD) };
            shared.wake.wait_until(&mut inner, next);
        }
        let mut group = Group {
            commands: std::mem::take(&mut inner.inbox),
            gates: inner.gates.drain().collect(),
            hide: std::mem::take(&mut inner.unlease),
            closing: inner.closing,
            ..Group::default()
        };
        inner.urgent = false;
        let fresh = std::mem::take(&mut inner.fresh);
        group.show = fresh
            .into_iter()
            .filter(|seq| inner.held.get(seq).is_some_and(|h| h.phase == Phase::Out && !h.shown))
            .collect();
        let mut known = self.tally.position.line;
        for (index, command) in group.commands.iter_mut().enumerate() {
            let place = |seq: Seq| {
                inner.held.get(&seq).map(|h| (Place { seq, lane: h.lane, rank: h.rank, token: h.token }, h))
            };
            match command {
                Command::Import(batch) => {
                    batch.items.retain(|item| item.seq.0 > known);
                    batch.bad.retain(|bad| bad.seq.0 > known);
                    known = known.max(batch.position.line);
                }
                Command::Finish { finish, .. } => {
                    let Some((place, held)) = place(finish.lease.seq()) else { continue };
                    group.finishes.push(FinishPlan {
                        command: index,
                        place,
                        has_progress: held.has_progress,
                        shown: held.shown,
                        lost: false,
                    });
                }
                Command::Park { seq, .. } => {
                    let Some((place, held)) = place(*seq) else { continue };
                    if held.shown {
                        group.hide.push(*seq);
                    }
                    group.parks.push((index, place));
                }
                Command::Progress { seq, counters } => group.progress.push((*seq, counters.clone())),
                Command::Release(seqs) => {
                    group.releases.extend(seqs.iter().filter_map(|seq| place(*seq)).map(|(place, _)| place));
                }
                Command::Look
                | Command::Wake { .. }
                | Command::Credentials { .. }
                | Command::Input(_)
                | Command::Exits(_)
                | Command::Flush(_) => {}
            }
        }
        if !group.progress.is_empty() {
            // What ended or was parked after its release says more than the release did.
            let gone: HashSet<Seq> = group
                .finishes
                .iter()
                .map(|f| f.place.seq)
                .chain(group.parks.iter().map(|(_, p)| p.seq))
                .collect();
            group.progress.retain(|(seq, _)| !gone.contains(seq));
        }
        group
    }

    /// Writes records of the group that gathers; false if they wait for the rest.
    fn write_ahead(&mut self, records: &[u8]) -> bool {
        // The group will meet the same error, and knows what to do.
        let in_order = self.ledger.before_records().is_ok();
        match &mut self.output {
            Output::File(out) => in_order && out.write_ahead(records),
            Output::Stream(_) => false,
        }
    }

    /// Makes the group durable, however long the disk stays full.
    fn persist(&mut self, group: &mut Group) -> Result<(), QueueError> {
        let mut pause = RETRY_FIRST;
        let mut full: Option<PathBuf> = None;
        let mut tries = 0;
        loop {
            let error = match self.attempt(group) {
                Ok(()) => break,
                Err(error) => error,
            };
            tries += 1;
            if !self.worth_another_try(&error, tries) || group.closing || self.shared.inner.lock().closing {
                return Err(error);
            }
            if error.is_unreachable() {
                continue; // the ledger has waited, and has said so
            }
            if full.is_none() {
                let path = match &error {
                    QueueError::Io { path, .. } => path.clone(),
                    _ => self.shared.path.clone(),
                };
                (self.events)(Event::DiskFull { path: path.clone() });
                full = Some(path);
            }
            tracing::debug!(%error, "group not written, trying again");
            let mut inner = self.shared.inner.lock();
            if !inner.closing {
                self.shared.wake.wait_for(&mut inner, pause);
            }
            pause = (pause * 2).min(RETRY_MAX);
        }
        if let Some(path) = full {
            (self.events)(Event::DiskHasRoom { path });
        }
        Ok(())
    }

    fn worth_another_try(&self, error: &QueueError, tries: u32) -> bool {
        match error {
            // Half a group in a stream cannot be taken back.
            QueueError::Io { path, .. } if path == self.output.path() => {
                matches!(self.output, Output::File(_)) && may_pass(error)
            }
            QueueError::Io { .. } => may_pass(error),
            _ => self.ledger.worth_another_try(error, tries),
        }
    }

    /// One try. What succeeded is not done again by the next.
    fn attempt(&mut self, group: &mut Group) -> Result<(), QueueError> {
        if !group.bodies_settled {
            self.settle_bodies(group)?;
            group.bodies_settled = true;
        }
        match self.ledger.begin()? {
            Standing::Good => {}
            Standing::Committed(tally) => {
                self.tally = tally;
                return Ok(());
            }
            Standing::Lost { run } => {
                self.lost(group, run)?;
                return self.attempt(group);
            }
        }
        let start = match group.start {
            Some(start) => start,
            None => {
                if records(group).next().is_some() {
                    self.ledger.before_records()?;
                }
                let start = self.output.append(records(group))?;
                group.start = Some(start);
                start
            }
        };
        match self.ledger.commit(group, start) {
            Ok(tally) => self.tally = tally,
            Err(QueueError::NotTheImporter) if !group.no_imports => {
                self.shared.inner.lock().imports_refused = true;
                group.no_imports = true;
                self.unwrite(group)?;
                return self.attempt(group);
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    /// Others have what was in hand here, and will write its records: ours must not stand in the output too.
    fn lost(&mut self, group: &mut Group, run: u64) -> Result<(), QueueError> {
        let items = {
            let mut inner = self.shared.inner.lock();
            self.shared.run.store(run, Ordering::Release);
            let items = inner.leased;
            inner.lose_leases();
            items
        };
        self.shared.room.notify_all();
        group.finishes.iter_mut().for_each(|plan| plan.lost = true);
        group.parks.clear();
        group.progress.clear();
        group.releases.clear();
        group.no_imports = true;
        self.unwrite(group)?;
        (self.events)(Event::LeasesLost { items });
        Ok(())
    }

    /// Takes the group's records out of the output again.
    fn unwrite(&mut self, group: &mut Group) -> Result<(), QueueError> {
        let start = group.start.take().flatten();
        match &mut self.output {
            Output::File(out) => out.cut(start),
            Output::Stream(_) => Ok(()),
        }
    }

    fn settle_bodies(&self, group: &mut Group) -> Result<(), QueueError> {
        let bodies: Vec<(usize, &BodyFile)> = group
            .finishes
            .iter()
            .enumerate()
            .filter_map(|(i, plan)| match &group.commands[plan.command] {
                Command::Finish { finish, .. } => finish.body.as_ref().map(|body| (i, body)),
                _ => None,
            })
            .collect();
        if bodies.is_empty() {
            return Ok(());
        }
        let lost = bodies::settle(&bodies).map_err(|(path, source)| QueueError::Io { path, source })?;
        for index in lost {
            let plan = &mut group.finishes[index];
            plan.lost = true;
            // For everybody, where it is out of the table while it is in hand.
            group.releases.push(plan.place);
            if let Command::Finish { finish, .. } = &group.commands[plan.command]
                && let Some(body) = &finish.body
            {
                (self.events)(Event::BodyLost { path: body.path.clone() });
            }
        }
        Ok(())
    }

    /// Tells callers what is durable now.
    fn publish(&mut self, group: Group) {
        let parked_changed = !group.parks.is_empty()
            || !group.woken.is_empty()
            || group.commands.iter().any(
                |c| matches!(c, Command::Import(Batch { items, .. }) if items.iter().any(|i| i.not_before.is_some())),
            );
        let soonest = if parked_changed { Some(self.ledger.soonest()) } else { None };
        let shared = Arc::clone(&self.shared);
        // First the reader: see `sqlite/reader.rs`.
        let reader = shared.pages.lock();
        let mut inner = shared.inner.lock();
        for plan in &group.finishes {
            if plan.lost {
                self.give_back_lost(&mut inner, plan);
            } else {
                inner.forget(plan.place.seq, plan.place.token);
            }
        }
        for place in group.parks.iter().map(|(_, place)| place).chain(&group.releases) {
            inner.forget(place.seq, place.token);
        }
        for seq in &group.show {
            if let Some(held) = inner.held.get_mut(seq) {
                held.shown = true;
                // Given back or parked while the group was written: the next one takes the row away.
                if held.phase == Phase::Returned {
                    held.shown = false;
                    inner.unlease.push(*seq);
                }
            }
        }
        let arrived = group.imported.iter().chain(group.woken.iter().flat_map(|(_, places)| places));
        let mut arrivals = 0;
        for place in arrived {
            arrivals += 1;
            inner.lower_cursor(place.lane, place.rank, place.seq);
        }
        inner.imports -= group.commands.iter().filter(|c| matches!(c, Command::Import(_))).count();
        inner.tally = self.tally;
        inner.commits += 1;
        if let Some(from_table) = soonest {
            inner.set_soonest(from_table);
        }
        drop(inner);
        drop(reader);
        shared.room.notify_all();
        let mut woken_places: hashbrown::HashMap<usize, Vec<Place>> = group.woken.into_iter().collect();
        for (index, command) in group.commands.into_iter().enumerate() {
            let places = woken_places.remove(&index).unwrap_or_default();
            // A caller that has gone away does not need its answer.
            match command {
                Command::Wake { reply, .. } => drop(reply.send(woken(&places))),
                Command::Credentials { reply, .. } => drop(reply.send(places.len() as u64)),
                Command::Flush(reply) => drop(reply.send(())),
                _ => {}
            }
        }
        if arrivals > 0 {
            shared.arrivals.send_modify(|n| *n += arrivals);
        }
    }

    /// An item whose body was lost is pending again: it was never taken out of the table.
    fn give_back_lost(&self, inner: &mut Inner, plan: &FinishPlan) {
        inner.forget(plan.place.seq, plan.place.token);
        if plan.shown {
            inner.unlease.push(plan.place.seq);
        }
        inner.lower_cursor(plan.place.lane, plan.place.rank, plan.place.seq);
    }

    /// The end: of a closed job in one tidy file, of a broken one with the reason for everybody who asks, those of the
    /// group `unsaved` among them.
    fn leave(self, ended: Result<(), QueueError>, unsaved: Group) {
        let Writer { ledger, output, shared, events, .. } = self;
        let tidily = ended.is_ok();
        if let Err(error) = &ended {
            events(Event::Stopped { why: words(error) });
        }
        let reader = shared.pages.lock();
        let mut inner = shared.inner.lock();
        inner.gone = true;
        inner.dead = ended.err().map(Arc::new);
        // Their senders hear by the dropped answers.
        let left = std::mem::take(&mut inner.inbox);
        drop(inner);
        drop((unsaved, left));
        if let Some(mut reader) = reader {
            reader.close();
        }
        drop(output);
        ledger.leave(tidily);
        shared.capacity.close();
        shared.room.notify_all();
        shared.left.send_replace(true);
    }
}

/// An error with its causes, in one line.
fn words(error: &QueueError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

//! Feeds lanes to the workers, and knows when the run is over (X2).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use forbear_core::{exit::Usable, time::Timestamp};
use forbear_store::{
    gate::GateStore,
    queue::{InputEnd, Job},
};

use super::{
    Stop,
    feed::Feeder,
    shared::{Shared, chain},
    summary::{self, Broken, End},
    worker::wall_now,
};
use crate::input::{Imported, Importer};

/// Feeds lanes to the workers until the run is over; says why it is.
pub(super) async fn supervise<G: GateStore>(
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
pub(super) fn resume_at<G: GateStore>(shared: &Shared<G>) -> Option<Timestamp> {
    let now = shared.gates.now();
    let wall = wall_now();
    let timer = shared.front.lock().next_timer();
    timer.map(|at| wall.plus(at.since(now))).into_iter().chain(shared.job.next_due()).min()
}

/// How often what went through the exits is saved: that much of it a kill may cost.
const SAVE_EXITS: Duration = Duration::from_secs(10);
/// How often it is tried to read the input on, where another process did.
const IMPORT_AGAIN: Duration = Duration::from_secs(1);
/// How often the supervisor looks, if nothing calls it.
const TICK: Duration = Duration::from_millis(50);

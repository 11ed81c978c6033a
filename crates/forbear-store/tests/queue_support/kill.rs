//! What the campaigns of kills share: chance that can be repeated, lines of every kind, and every way back of an item.

use std::{
    env,
    ops::ControlFlow,
    time::{Duration, SystemTime},
};

use forbear_core::time::Timestamp;
use forbear_store::queue::*;

use super::item;

/// A line in so many is no item.
pub const BAD: u64 = 97;

/// A small generator (splitmix64), so that a campaign can be repeated.
pub struct Dice(u64);

impl Dice {
    /// From `FORBEAR_KILL_SEED`, else from the clock; the seed is printed.
    pub fn seeded() -> (Dice, u64) {
        let now = now().as_micros();
        let seed = env::var("FORBEAR_KILL_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(now);
        eprintln!("FORBEAR_KILL_SEED={seed}");
        (Dice(seed), seed)
    }

    pub fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }
}

/// The kills of a campaign, where it is a long one.
pub fn rounds() -> Option<u64> {
    env::var("FORBEAR_ROUNDS").ok().and_then(|n| n.parse().ok())
}

pub fn now() -> Timestamp {
    Timestamp::ZERO.plus(SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970"))
}

/// The lines after `line` up to `last`, spread over so many lanes.
pub fn part(line: u64, last: u64, lanes: u64) -> Batch {
    let mut part = Batch { position: InputPosition { offset: last * 7, line: last }, ..Batch::default() };
    for line in line + 1..=last {
        if line % BAD == 0 {
            let record = format!(r#"{{"id":{line},"line":{line},"outcome":"failed","error":"not a URL"}}"#);
            part.bad.push(BadLine { seq: Seq(line), record: record.into() });
            continue;
        }
        let mut item = item(line, &format!("h{}", line % lanes));
        item.id = (line % 3 == 0).then(|| format!("id-{line}"));
        item.request.priority = (line % 2) as i32;
        part.items.push(item);
    }
    part
}

/// Takes each kind of way back, once for some of the items, and before they are "sent".
pub fn turn_back(job: &Job, mut item: Item) -> ControlFlow<Result<(), QueueError>, Item> {
    item.counters.attempts += 1;
    if item.counters.attempts == 1 {
        match item.lease.seq().0 % 11 {
            3 => return ControlFlow::Break(job.release(item)),
            5 => {
                let due = Until::Time(now().plus(Duration::from_millis(20)));
                return ControlFlow::Break(job.park(item.lease, due, "told", item.counters));
            }
            _ => {}
        }
    }
    ControlFlow::Continue(item)
}

/// The end of an item, with a record of a length of its own.
pub fn answer(item: Item) -> Finish {
    let line = item.lease.seq().0;
    let (ending, outcome) = match line % 7 {
        1 => (Ending::Failed, "failed"),
        2 => (Ending::Unknown, "unknown"),
        _ => (Ending::Done, "done"),
    };
    let id = item.id.as_ref().map_or_else(|| line.to_string(), |id| format!("\"{id}\""));
    let pad = "x".repeat((line % 500) as usize);
    let record = format!(r#"{{"id":{id},"line":{line},"outcome":"{outcome}","pad":"{pad}"}}"#);
    Finish { lease: item.lease, ending, record: record.into(), body: None, counters: item.counters }
}

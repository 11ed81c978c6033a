//! A board with "not before" on it, and a cap: what many fleets have in front of a host, and no pace.

use std::time::Duration;

use forbear_core::time::Timestamp;

use crate::{
    client::{Client, Go, Reply},
    world::EPOCH,
};

/// Workers that share a board. The largest "not before" on it wins, no success wipes it, and each worker comes back a part
/// of a second after it, a part of its own. At most `cap` requests are on the wire.
#[derive(Clone, Debug)]
pub struct Board {
    cap: u32,
    on_wire: u32,
    not_before: Timestamp,
    /// How long after that each worker comes.
    spread: Vec<Duration>,
    refused: u32,
}

impl Board {
    /// So many `workers`, of which `cap` may be on the wire.
    #[must_use]
    pub fn new(workers: u32, cap: u32) -> Board {
        // Parts of a second that lie far from each other, whoever comes next (multiples of the golden section).
        let part = |n: u32| Duration::from_secs_f64((f64::from(n) * 0.618_033_988_75).fract());
        Board { cap, on_wire: 0, not_before: EPOCH, spread: (0..workers).map(part).collect(), refused: 0 }
    }

    fn back(&self, worker: u32) -> Timestamp {
        let spread = self.spread.get(worker as usize).copied().unwrap_or_default();
        if self.not_before == EPOCH { EPOCH } else { self.not_before.plus(spread) }
    }
}

impl Client for Board {
    type Ticket = ();
    const SHARED: bool = false;
    const FORBEARS: bool = false;

    fn ask(&mut self, worker: u32, now: Timestamp) -> Go<()> {
        let back = self.back(worker);
        if now < back {
            return Go::At(back);
        }
        if self.on_wire >= self.cap {
            return Go::Full;
        }
        self.on_wire += 1;
        Go::Send(())
    }

    fn answered(&mut self, worker: u32, (): (), reply: &Reply, now: Timestamp, roll: f64) -> Timestamp {
        self.on_wire -= 1;
        if !reply.refused {
            self.refused = 0;
            return now;
        }
        // Told, and a quarter on top; else a guess of 0.5 to 1.5 times the exponential.
        let guess = Duration::from_secs(1 << self.refused.min(6)).min(Duration::from_secs(60));
        let wait = reply.told.map_or_else(|| guess.mul_f64(0.5 + roll), |told| told.mul_f64(1.25));
        self.refused += 1;
        self.not_before = self.not_before.max(now.plus(wait));
        self.back(worker)
    }
}

//! Fleets at random: the same one from the same seed, on every machine.

use std::time::Duration;

use forbear_core::{
    backoff::{Backoff, Jitter},
    exit::{ExitPolicy, Rotate},
    policy::{ItemPolicy, OnNoHint, Pad, ScopePolicy},
    scope::Combination,
};
use forbear_zoo::{Spec, SplitMix64};

use super::{Exit, Fleet, Site, Wire};
use crate::net::Latency;

impl Fleet {
    /// The fleet of this seed: one to four sites with limiters of the zoo, none to eight exits of all kinds, one of the shapes
    /// that the shipped policies have, up to three crashes, and a wire that is mostly good.
    #[must_use]
    pub fn draw(seed: u64) -> Fleet {
        let mut draw = Draw(SplitMix64::new(seed ^ 0x00f1_ee75));
        draw.0.next_u64();
        let sites = draw.between(1, 4);
        let sites: Vec<Site> = (0..sites).map(|_| draw.site()).collect();
        let exits = draw.exits(sites.len() as u64);
        let workers = draw.log(1.0, 64.0) as u32;
        let mut fleet = Fleet {
            crashes: draw.crashes(),
            wire: draw.wire(),
            clock_ahead_ms: draw.clock(),
            once: draw.one_of(&[0.0, 0.0, 0.2]),
            timeout: Duration::from_secs(draw.one_of(&[5, 10, 30])),
            sites,
            exits,
            workers,
            seed,
            // Slow is not never: a pace that is refused again and again falls to one start in a day.
            run_for: Duration::from_secs(400 * 86_400),
            ..Fleet::default()
        };
        draw.policy(&mut fleet);
        fleet
    }
}

/// Random numbers in ranges.
struct Draw(SplitMix64);

impl Draw {
    fn even(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.0.next_f64()
    }

    fn log(&mut self, from: f64, to: f64) -> f64 {
        (from.ln() + (to / from).ln() * self.0.next_f64()).exp()
    }

    fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.0.next_u64() % (to - from + 1)
    }

    fn chance(&mut self, share: f64) -> bool {
        self.0.next_f64() < share
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.0.next_u64() as usize % all.len()]
    }

    fn time(&mut self, from: f64, to: f64) -> Duration {
        Duration::from_millis((self.log(from, to) * 1000.0) as u64)
    }

    fn site(&mut self) -> Site {
        let rate = self.log(0.5, 60.0).round().max(1.0);
        let window = self.log(1.0, 90.0).round().max(1.0);
        let limit = (rate * window).round();
        let burst = (rate * self.log(0.1, 8.0)).round().max(1.0);
        let mut spec = match self.between(0, 9) {
            0 | 1 => format!("token-bucket:rate={rate}/s,burst={burst}"),
            2 => format!("gcra:rate={rate}/s,burst={burst}"),
            3 => format!("fixed-window:limit={limit}/{window}s"),
            4 => format!("fixed-window:limit={limit}/{window}s,phase=first-request"),
            5 => format!("sliding-log:limit={limit}/{window}s"),
            6 => format!("sliding-counter:limit={limit}/{window}s"),
            7 => format!("concurrency:max={}", self.between(1, 12)),
            8 => format!("brownout:capacity={}/s", self.between(5, 60)),
            _ => format!("maintenance:from={}s,for={}s", self.between(1, 60), self.between(1, 400)),
        };
        let limited = !spec.starts_with("brownout") && !spec.starts_with("maintenance");
        if limited && self.chance(0.1) {
            spec += &format!(",penalty={}s", self.between(1, 20));
        }
        if limited && self.chance(0.1) {
            spec += ",rejected=count";
        }
        if limited && self.chance(0.3) {
            spec += ",scope=client";
        }
        let hints =
            ["seconds", "http-date", "ms", "reset-epoch", "reset-delta", "draft-3", "draft-7", "structured"];
        // One at most: of one time that is told at two precisions the finer counts (H2), and the limiter knows of the other.
        if self.chance(0.7) {
            spec += &format!(",hint={}", self.one_of(&hints));
        }
        if self.chance(0.2) {
            spec += &format!(",skew={}s", self.between(1, 900));
        }
        if self.chance(0.1) {
            spec += &format!(",lie={:.1}", self.log(0.3, 4.0));
        }
        if self.chance(0.3) {
            let [a, b, c, d] = [0.03, 0.03, 0.02, 0.02].map(|most| self.even(0.0, most));
            spec += &format!(" + flaky:reset={a:.3},bad-gateway={b:.3},truncated={c:.3},stalled={d:.3}");
        }
        if self.chance(0.05) {
            spec += &format!(" + sentence:match=/,wait={}s", self.between(301, 4000));
        }
        let latency = Latency {
            round_trip: self.time(0.002, 0.2),
            service: self.time(0.005, 0.5),
            spread: self.even(0.0, 1.0),
        };
        let spec = spec.parse().unwrap_or_else(|_| Spec::open());
        Site { spec, latency, pages: self.log(5.0, 300.0) as u32 }
    }

    fn exits(&mut self, sites: u64) -> Vec<Exit> {
        if self.chance(0.4) {
            return Vec::new();
        }
        let count = self.between(1, 8);
        let mut exits: Vec<Exit> = (0..count)
            .map(|_| {
                let site = self.between(0, sites - 1) as u32;
                match self.between(0, 15) {
                    0 => Exit::Dead,
                    1 => Exit::Silent,
                    2 => Exit::RejectsUs,
                    3 => {
                        let text =
                            format!("token-bucket:rate={}/s,burst=5,hint=seconds", self.between(1, 20));
                        text.parse().map_or(Exit::Good, Exit::Limits)
                    }
                    4 => Exit::Burnt { site },
                    5 => Exit::Unwanted { site },
                    6 => Exit::NoWay { site },
                    7 => Exit::Down { from: self.time(0.1, 60.0), span: self.time(1.0, 300.0) },
                    8 | 9 => Exit::Slow(self.time(0.05, 8.0)),
                    _ => Exit::Good,
                }
            })
            .collect();
        if self.chance(0.9) {
            exits.push(Exit::Good); // in the others it may be that nothing can go out at all
        }
        exits
    }

    fn crashes(&mut self) -> Vec<(Duration, Duration)> {
        let count = self.one_of(&[0, 0, 1, 3]);
        let mut crashes: Vec<_> =
            (0..count).map(|_| (self.time(0.05, 300.0), self.time(0.001, 60.0))).collect();
        crashes.sort();
        crashes
    }

    fn wire(&mut self) -> Wire {
        let [refused, reset, lost, not_taken] = match self.chance(0.4) {
            true => [0.02, 0.02, 0.01, 0.02].map(|most| self.even(0.0, most)),
            false => [0.0; 4],
        };
        Wire { refused, reset, lost, not_taken }
    }

    /// Minutes ahead or behind, of one in three.
    fn clock(&mut self) -> i64 {
        if self.chance(0.7) { 0 } else { self.even(-900_000.0, 900_000.0) as i64 }
    }

    /// One of the shapes of the shipped policies.
    fn policy(&mut self, fleet: &mut Fleet) {
        let (base, cap, jitter, park) = match self.between(0, 5) {
            0 => (1, 60, Jitter::Full, false),         // polite, shared-gate
            1 => (1, 60, Jitter::Equal, true),         // retry-after
            2 => (1, 30, Jitter::Full, false),         // jitter-bucket
            3 => (1, 60, Jitter::Decorrelated, false), // proxy-queue
            _ => (1, 60, Jitter::Half, false),         // exit-state
        };
        let backoff = Backoff::new(Duration::from_secs(base), Duration::from_secs(cap), jitter);
        let Ok(backoff) = backoff else { return };
        let pad = if park { Pad { factor: 1.25, fixed: Duration::ZERO } } else { Pad::default() };
        let concurrency = self.one_of(&[4, 64, 64]).min(fleet.workers.max(1));
        fleet.policy = ScopePolicy {
            backoff,
            pad,
            concurrency_start: concurrency.min(4),
            concurrency_max: concurrency,
            learn: !self.chance(0.2),
            jitter: self.one_of(&[0.0, 0.03, 0.1]),
            ..ScopePolicy::default()
        };
        fleet.item = ItemPolicy {
            backoff,
            pad,
            on_no_hint: if park { OnNoHint::Park } else { OnNoHint::Hold },
            jitter: fleet.policy.jitter,
            blocked_retries: self.one_of(&[0, 4]),
            exit_wait: Duration::from_millis(self.one_of(&[0, 500])),
            ..ItemPolicy::default()
        };
        if self.chance(0.3) {
            let text = format!("{}/{}s", self.between(1, 60), self.between(1, 3));
            fleet.rates = text.parse().ok();
        }
        if !fleet.exits.is_empty() {
            let combination = self.one_of(&[Combination::ORIGIN, Combination::ORIGIN_EXIT]);
            fleet.scope = vec![combination];
            let rotate = self.one_of(&[Rotate::Retries, Rotate::Retries, Rotate::Never]);
            fleet.by_exit = ExitPolicy { rotate, ..ExitPolicy::default() };
        }
    }
}

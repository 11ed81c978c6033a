//! A fleet of members at random, from a seed.

use std::time::Duration;

use forbear_core::pace::RateList;
use forbear_store::gate::Drift;
use forbear_zoo::{Spec, SplitMix64};

/// Members on one store, before one origin.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) spec: Spec,
    pub(crate) members: Vec<Drift>,
    /// Workers of each.
    pub(crate) workers: u32,
    pub(crate) pages: u32,
    pub(crate) round_trip: Duration,
    pub(crate) service: Duration,
    /// One way to the store.
    pub(crate) delay: Duration,
    pub(crate) rate: Option<RateList>,
    /// Requests on the wire at once, of all members together.
    pub(crate) cap: u32,
    pub(crate) troubles: Vec<(Duration, Trouble)>,
    /// When it is looked at, done or not.
    pub(crate) lasts: Duration,
    pub(crate) seed: u64,
}

/// What goes wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Trouble {
    /// The store cannot be reached for so long.
    Lost(Duration),
    /// It answers nothing for so long.
    Hangs(Duration),
    /// It has forgotten everything.
    Forgets,
    /// Its clock is set by so many seconds.
    Steps(i64),
    /// This member is killed.
    Kill(usize),
    /// The member that learns for the others is killed.
    KillTheOwner,
    /// The member that probes next is killed as it does.
    KillTheProbe,
}

impl Plan {
    pub(crate) fn draw(seed: u64) -> Plan {
        let mut chance = SplitMix64::new(seed ^ 0x3e3b_e125);
        chance.next_u64();
        let mut between = |from: u64, to: u64| from + chance.next_u64() % (to - from + 1);
        let spec = match between(0, 5) {
            0 => "token-bucket:rate=20/s,burst=10,hint=seconds".to_owned(),
            1 => format!("fixed-window:limit={}/5s,hint=seconds", between(20, 200)),
            2 => "sliding-log:limit=60/3s,hint=draft-7".to_owned(),
            3 => "token-bucket:rate=10/s,burst=20".to_owned(),
            4 => format!("maintenance:from={}s,for={}s,hint=seconds", between(1, 5), between(2, 40)),
            _ => "token-bucket:rate=30/s,burst=10,hint=reset-delta + flaky:reset=0.02,bad-gateway=0.01"
                .to_owned(),
        };
        let count = between(2, 4) as usize;
        let members = (0..count)
            .map(|_| Drift { offset_us: between(0, 1_200_000_000), ppm: between(0, 200) as i64 - 100 })
            .collect();
        let troubles = (0..between(0, 3)).map(|_| {
            let at = Duration::from_millis(between(500, 40_000));
            let span = Duration::from_millis(between(100, 15_000));
            let trouble = match between(0, 5) {
                0 => Trouble::Lost(span),
                1 => Trouble::Hangs(span),
                2 => Trouble::Forgets,
                3 => Trouble::Steps(between(0, 600) as i64 - 300),
                4 => Trouble::Kill(between(0, count as u64 - 1) as usize),
                _ => Trouble::KillTheProbe,
            };
            (at, trouble)
        });
        let mut troubles: Vec<_> = troubles.collect();
        troubles.sort_by_key(|(at, _)| *at);
        let rate = (between(0, 2) == 0).then(|| format!("{}/s", between(5, 40)).parse().unwrap());
        Plan {
            spec: spec.parse().unwrap(),
            members,
            workers: between(1, 8) as u32,
            pages: between(50, 400) as u32,
            round_trip: Duration::from_millis(between(2, 60)),
            service: Duration::from_millis(between(5, 200)),
            delay: Duration::from_millis(between(1, 10)),
            rate,
            cap: between(2, 32) as u32,
            troubles,
            lasts: HOUR,
            seed,
        }
    }
}

/// Longer than this no fleet may take.
pub(crate) const HOUR: Duration = Duration::from_secs(3600);

//! What becomes of a request between us and the site that it is for.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use forbear_core::{
    hint::{self, Reading},
    outcome::{self, ExitFault, Outcome, Processed},
    time::Timestamp,
};
use forbear_zoo::{Answer, Facts, Fault, Origin, Ruling, SplitMix64, Verdict};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::{Exit, Fleet};
use crate::world::EPOCH;

/// What comes back.
#[derive(Clone, Debug)]
pub(super) struct Back {
    pub(super) outcome: Outcome,
    pub(super) reading: Option<Box<Reading>>,
    /// The wait that an honest reader takes from the answer, where it was a refusal.
    pub(super) told: Option<Duration>,
    /// After the moment at which it was ruled.
    pub(super) after: Duration,
}

impl Back {
    /// Nobody waits for it any more.
    pub(super) fn no_answer() -> Back {
        Back::plain(Outcome::NO_ANSWER, Duration::ZERO)
    }

    fn plain(outcome: Outcome, after: Duration) -> Back {
        Back { outcome, reading: None, told: None, after }
    }
}

/// How a request sets out.
pub(super) enum SetOut {
    /// It reaches the site after this.
    Goes(Duration),
    /// It never does.
    Ends(Back),
}

/// The world outside: sites, exits and the wire between.
#[derive(Debug)]
pub(super) struct Outside {
    sites: Vec<Origin>,
    /// The limiters that exits have themselves.
    limits: Vec<Option<Origin>>,
}

impl Outside {
    pub(super) fn new(fleet: &Fleet) -> Outside {
        let epoch = EPOCH.since(Timestamp::ZERO);
        let limits = fleet.exits.iter().map(|exit| match exit {
            Exit::Limits(spec) => Some(spec.build(epoch)),
            _ => None,
        });
        Outside {
            sites: fleet.sites.iter().map(|site| site.spec.build(epoch)).collect(),
            limits: limits.collect(),
        }
    }

    /// A request to `site` is sent `since` the start, by an exit or directly.
    pub(super) fn set_out(
        &mut self,
        fleet: &Fleet,
        (site, exit): (u32, Option<u32>),
        since: Duration,
        chance: &mut SplitMix64,
    ) -> SetOut {
        let half = fleet.sites[site as usize].latency.round_trip / 2;
        let fault = |fault| Outcome::Exit { fault, processed: Processed::No };
        let mut way = half;
        if let Some(exit) = exit {
            let ends = |outcome, after| SetOut::Ends(Back::plain(outcome, after));
            match &fleet.exits[exit as usize] {
                Exit::Dead => return ends(Outcome::EXIT_BROKEN, half),
                Exit::Down { from, span } if (*from..*from + *span).contains(&since) => {
                    return ends(Outcome::EXIT_BROKEN, half);
                }
                Exit::Silent => return ends(fault(ExitFault::Silent), fleet.timeout),
                Exit::RejectsUs => return ends(Outcome::EXIT_REJECTS_US, half),
                Exit::NoWay { site: shut } if *shut == site => {
                    return ends(fault(ExitFault::NoWay), 2 * half);
                }
                Exit::Slow(extra) => way += *extra / 2,
                Exit::Limits(_) => {
                    if let Some(back) = self.limited(exit, since, half) {
                        return SetOut::Ends(back);
                    }
                }
                _ => {}
            }
        }
        let (wire, roll) = (fleet.wire, chance.next_f64());
        let ends = |outcome| SetOut::Ends(Back::plain(outcome, 2 * way));
        if roll < wire.refused {
            return ends(Outcome::Fault { processed: Processed::No, passing: true });
        }
        if roll < wire.refused + wire.not_taken {
            return ends(Outcome::NotTaken);
        }
        SetOut::Goes(way)
    }

    /// What the exit itself says, where it lets nothing pass.
    fn limited(&mut self, exit: u32, since: Duration, half: Duration) -> Option<Back> {
        let limiter = self.limits[exit as usize].as_mut()?;
        let ruling = limiter.rule(since, &Facts::get("/"));
        limiter.left(since, &ruling);
        if ruling.verdict != Verdict::Refused {
            return None;
        }
        let wait = limiter.words(since, &ruling).told;
        let outcome = Outcome::Exit { fault: ExitFault::Limited { wait }, processed: Processed::No };
        Some(Back { told: wait, ..Back::plain(outcome, 2 * half) })
    }

    /// A request reaches the site. The ruling is to be given back when the server is done with it.
    pub(super) fn arrives(
        &mut self,
        fleet: &Fleet,
        (site, exit): (u32, Option<u32>),
        since: Duration,
        chance: &mut SplitMix64,
    ) -> (Back, Ruling) {
        let latency = &fleet.sites[site as usize].latency;
        let mut back = latency.round_trip / 2;
        let of_exit = exit.map(|exit| &fleet.exits[exit as usize]);
        if let Some(Exit::Slow(extra)) = of_exit {
            back += *extra / 2;
        }
        let address = exit
            .map_or(Ipv4Addr::LOCALHOST, |exit| Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 0, 0, 0)) + exit));
        let facts = Facts::get("/").client(IpAddr::V4(address));
        let origin = &mut self.sites[site as usize];
        let ruling = origin.rule(since, &facts);
        let service = latency.sample(chance) + ruling.latency;
        let idle = ruling.verdict == Verdict::Refused;
        let at_site = if idle { Duration::ZERO } else { service };
        // Whoever is unwanted here is told so before anything else.
        let unwanted = match of_exit {
            Some(Exit::Burnt { site: shut }) if *shut == site => Some(429),
            Some(Exit::Unwanted { site: shut }) if *shut == site => Some(403),
            _ => None,
        };
        let wall = EPOCH.plus(since + at_site + back);
        let now = ahead(wall, fleet.clock_ahead_ms);
        let answered = match unwanted {
            Some(status) => (status, Answer::refused(status)),
            None => (ruling.status, origin.words(since, &ruling)),
        };
        let (roll, wire) = (chance.next_f64(), fleet.wire);
        let broken = match ruling.verdict {
            Verdict::Fault(Fault::Reset | Fault::Truncated) => Some(Duration::ZERO),
            Verdict::Fault(Fault::Stall(time)) if at_site + back + time > fleet.timeout => {
                Some(fleet.timeout)
            }
            _ if roll < wire.lost => Some(fleet.timeout),
            _ if roll < wire.lost + wire.reset => Some(Duration::ZERO),
            _ => None,
        };
        if let Some(silence) = broken.filter(|_| unwanted.is_none()) {
            return (Back::plain(Outcome::NO_ANSWER, at_site + back + silence), ruling);
        }
        let mut after = at_site + back;
        if let Verdict::Fault(Fault::Stall(time)) = ruling.verdict {
            after += time;
        }
        let (status, answer) = answered;
        let headers = head(&answer);
        let reading = hint::read(&hint::Response { status, headers: &headers, body: None }, None, now);
        let outcome = outcome::of_response(status, &reading, false);
        let told = answer.told.filter(|_| matches!(outcome, Outcome::Refused(_)));
        (Back { outcome, reading: Some(Box::new(reading)), told, after }, ruling)
    }

    /// The server of `site` is done with a request.
    pub(super) fn left(&mut self, site: u32, since: Duration, ruling: &Ruling) {
        self.sites[site as usize].left(since, ruling);
    }
}

fn ahead(at: Timestamp, ms: i64) -> Timestamp {
    let by = Duration::from_millis(ms.unsigned_abs());
    if ms < 0 { Timestamp::ZERO.plus(at.since(Timestamp::ZERO).saturating_sub(by)) } else { at.plus(by) }
}

fn head(answer: &Answer) -> HeaderMap {
    let fields = answer.headers.iter().filter_map(|(name, value)| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, HeaderValue::from_str(value).ok()?))
    });
    fields.collect()
}

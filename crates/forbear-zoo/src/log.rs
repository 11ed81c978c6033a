//! Who sent what, when: the log of a server, and the questions that tests ask of it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use crate::answer::{Account, ScopeId, Verdict};

/// One request as it arrived, and what became of it. Times are counted from the start of the server.
#[derive(Clone, Debug)]
pub struct Hit {
    /// When its head had been read.
    pub at: Duration,
    /// The method, as sent.
    pub method: String,
    /// Path and query, as sent.
    pub path: String,
    /// Who asked, if it carried credentials.
    pub account: Option<Account>,
    /// The address that it came from.
    pub client: IpAddr,
    /// The connection, counted from 1 in the order of acceptance.
    pub connection: u64,
    /// Served, refused or broken.
    pub verdict: Verdict,
    /// The status of the answer.
    pub status: u16,
    /// The shortest wait that an honest reader takes from the answer; see [`Answer::told`](crate::Answer::told).
    pub told: Option<Duration>,
    /// When the limiter would truly have admitted it.
    pub wait: Option<Duration>,
    /// Requests in flight at its arrival, without itself.
    pub in_flight: u32,
    /// When the answer was handed to the connection: no client has read any of it before.
    pub answered: Option<Duration>,
    /// When the last byte of the answer was handed to the connection, or the connection ended: no client has seen the end of
    /// it before. Until then the request counts as in flight.
    pub finished: Option<Duration>,
    /// When the last byte of the answer had been written, or the connection had ended.
    pub sent: Option<Duration>,
    /// Whether the answer was written to its last byte: neither cut short on purpose nor by a client that had left.
    pub delivered: bool,
    /// The counters that it fell under.
    pub scopes: Vec<ScopeId>,
    /// The counter that refused it.
    pub refused_by: Option<ScopeId>,
}

impl Hit {
    /// The end of the wait that its answer told: counted from when the answer was handed over, for a client that reads it at
    /// once may also come back at once when it ends.
    #[must_use]
    pub fn told_until(&self) -> Option<Duration> {
        Some(self.answered?.saturating_add(self.told?))
    }

    /// Whether it is a refusal that told a wait to somebody.
    fn pauses(&self) -> bool {
        self.verdict == Verdict::Refused && self.delivered && self.told.is_some_and(|told| !told.is_zero())
    }

    /// Whether it was in flight at `time`.
    fn in_flight_at(&self, time: Duration) -> bool {
        self.at <= time && self.finished.is_none_or(|finished| time < finished)
    }
}

/// A told pause of one scope: refusals whose told times overlap are one.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Pause {
    /// The scope that refused.
    pub scope: ScopeId,
    /// When the first of its refusals had been fully sent.
    pub from: Duration,
    /// When the last told time ends.
    pub until: Duration,
    /// How many refusals told it.
    pub refusals: usize,
}

/// A request sent into a pause; see [`Log::sent_into_pause`].
#[derive(Clone, Copy, Debug)]
pub struct Intrusion<'a> {
    /// The request.
    pub hit: &'a Hit,
    /// The refusal that it should have known of.
    pub refusal: &'a Hit,
    /// How much of the told time was left when it arrived.
    pub left: Duration,
}

/// The first request after a pause; see [`Log::probes`].
#[derive(Clone, Copy, Debug)]
pub struct Probe<'a> {
    /// The request.
    pub hit: &'a Hit,
    /// The pause that it ended.
    pub pause: Pause,
    /// How long after the pause it arrived.
    pub late: Duration,
    /// How many other requests of the scope were in flight when it arrived, or arrived while it was. Zero if it was alone.
    pub company: usize,
}

/// Everything that a server saw, in the order of arrival.
///
/// It holds the first [`ServerOptions::hits_max`](crate::ServerOptions::hits_max) hits; later ones are only counted, in
/// [`Log::dropped`], and no other question sees them.
#[derive(Clone, Debug, Default)]
pub struct Log {
    hits: Vec<Hit>,
    dropped: u64,
}

impl Log {
    /// A log of these hits, for a simulation or a test that has no server. They must be in the order of arrival.
    #[must_use]
    pub fn from_hits(hits: Vec<Hit>) -> Log {
        Log { hits, dropped: 0 }
    }

    /// Every hit, in the order of arrival.
    #[must_use]
    pub fn hits(&self) -> &[Hit] {
        &self.hits
    }

    /// Hits that came when the log was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Hits that were let through; whether the client waited for the answer is in [`Hit::delivered`].
    pub fn served(&self) -> impl Iterator<Item = &Hit> {
        self.hits.iter().filter(|hit| hit.verdict == Verdict::Served)
    }

    /// Hits that a limit refused.
    pub fn refused(&self) -> impl Iterator<Item = &Hit> {
        self.hits.iter().filter(|hit| hit.verdict == Verdict::Refused)
    }

    /// Hits that ended in a fault.
    pub fn faults(&self) -> impl Iterator<Item = &Hit> {
        self.hits.iter().filter(|hit| matches!(hit.verdict, Verdict::Fault(_)))
    }

    /// Hits of one path, its query included.
    pub fn of<'a>(&'a self, path: &'a str) -> impl Iterator<Item = &'a Hit> {
        self.hits.iter().filter(move |hit| hit.path == path)
    }

    /// Requests that arrived in a told pause and should have known of it.
    ///
    /// That is: the request fell under the scope of an earlier refusal which told a wait; that refusal had been delivered, and
    /// fully sent for more than `grace` (what was on the wire already is nobody's fault); and its told time, counted from when
    /// it was handed to the connection, had not ended. One request counts once, with the refusal that leaves the most time.
    ///
    /// A single probe that another URL's very long wait allows is counted here as well; tell it by `refusal.told`.
    #[must_use]
    pub fn sent_into_pause(&self, grace: Duration) -> Vec<Intrusion<'_>> {
        self.intrusions(grace, Hit::pauses, |hit| hit.refused_by.into_iter().collect())
    }

    /// The same for budgets: requests that arrived after a *served* answer had said that nothing remains, and before the reset
    /// that it told.
    #[must_use]
    pub fn sent_past_empty_budget(&self, grace: Duration) -> Vec<Intrusion<'_>> {
        let tells = |hit: &Hit| hit.verdict == Verdict::Served && hit.delivered && hit.told.is_some();
        self.intrusions(grace, tells, |hit| hit.scopes.clone())
    }

    fn intrusions(
        &self,
        grace: Duration,
        tells: impl Fn(&Hit) -> bool,
        scopes: impl Fn(&Hit) -> Vec<ScopeId>,
    ) -> Vec<Intrusion<'_>> {
        // Refusals by the time from which they are known, and for each scope the one that lasts longest so far.
        let mut telling: Vec<(Duration, &Hit)> = self
            .hits
            .iter()
            .filter(|hit| tells(hit))
            .filter_map(|hit| Some((hit.sent? + grace, hit)))
            .collect();
        telling.sort_by_key(|(known, _)| *known);
        let mut telling = telling.into_iter().peekable();
        let mut latest: BTreeMap<ScopeId, &Hit> = BTreeMap::new();
        let mut found = Vec::new();
        for hit in &self.hits {
            while let Some((_, refusal)) = telling.next_if(|(known, _)| *known < hit.at) {
                for scope in scopes(refusal) {
                    let longest = latest.entry(scope).or_insert(refusal);
                    if longest.told_until() < refusal.told_until() {
                        *longest = refusal;
                    }
                }
            }
            let refusals = hit.scopes.iter().filter_map(|scope| latest.get(scope).copied());
            let Some(refusal) = refusals.max_by_key(|refusal| refusal.told_until()) else { continue };
            let left = refusal.told_until().unwrap_or_default().saturating_sub(hit.at);
            if !left.is_zero() {
                found.push(Intrusion { hit, refusal, left });
            }
        }
        found
    }

    /// Every told pause, by its end. Refusals of one scope whose told times overlap are one pause.
    #[must_use]
    pub fn pauses(&self) -> Vec<Pause> {
        let mut open: BTreeMap<ScopeId, Pause> = BTreeMap::new();
        let mut ended = Vec::new();
        let mut refusals: Vec<(&Hit, ScopeId, Duration, Duration)> = self
            .hits
            .iter()
            .filter(|hit| hit.pauses())
            .filter_map(|hit| Some((hit, hit.refused_by?, hit.sent?, hit.told_until()?)))
            .collect();
        refusals.sort_by_key(|(_, _, sent, _)| *sent);
        for (hit, scope, from, until) in refusals {
            match open.get_mut(&scope) {
                // By arrival, not by sending: a refusal on its way when the pause ended still belongs to it.
                Some(pause) if hit.at < pause.until => {
                    pause.until = pause.until.max(until);
                    pause.refusals += 1;
                }
                _ => ended.extend(open.insert(scope, Pause { scope, from, until, refusals: 1 })),
            }
        }
        ended.extend(open.into_values());
        ended.sort_by_key(|pause| (pause.until, pause.scope));
        ended
    }

    /// The first request of a scope that arrived at or after the end of each of its pauses, and how alone it was. A pause after
    /// which nothing came has none.
    #[must_use]
    pub fn probes(&self) -> Vec<Probe<'_>> {
        let pauses = self.pauses();
        pauses.into_iter().filter_map(|pause| self.probe_of(pause)).collect()
    }

    fn probe_of(&self, pause: Pause) -> Option<Probe<'_>> {
        let mine = |hit: &&Hit| hit.scopes.contains(&pause.scope);
        let first = self.hits.partition_point(|hit| hit.at < pause.until);
        let index = first + self.hits[first..].iter().position(|hit| mine(&hit))?;
        let hit = &self.hits[index];
        let before = self.hits[..index].iter().filter(mine).filter(|other| other.in_flight_at(hit.at));
        let after = self.hits[index + 1..].iter().take_while(|other| hit.in_flight_at(other.at)).filter(mine);
        let company = before.count() + after.count();
        Some(Probe { hit, pause, late: hit.at - pause.until, company })
    }

    /// The most arrivals in any stretch of `window`, which holds its start and not its end.
    #[must_use]
    pub fn peak(&self, window: Duration) -> usize {
        peak(self.hits.iter(), window)
    }

    /// The most requests in flight at once.
    #[must_use]
    pub fn max_in_flight(&self) -> u32 {
        self.hits.iter().map(|hit| hit.in_flight + 1).max().unwrap_or(0)
    }

    /// How many different paths were asked for, queries included.
    #[must_use]
    pub fn distinct_paths(&self) -> usize {
        self.hits.iter().map(|hit| hit.path.as_str()).collect::<BTreeSet<_>>().len()
    }

    /// How many connections carried a request.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.hits.iter().map(|hit| hit.connection).collect::<BTreeSet<_>>().len()
    }

    /// The times between one arrival and the next.
    pub fn gaps(&self) -> impl Iterator<Item = Duration> {
        self.hits.windows(2).map(|pair| pair[1].at - pair[0].at)
    }

    /// Writes a hit down, unless there are `hits_max` already; returns its place.
    pub(crate) fn push(&mut self, hit: Hit, hits_max: usize) -> Option<usize> {
        if self.hits.len() >= hits_max {
            self.dropped += 1;
            return None;
        }
        self.hits.push(hit);
        Some(self.hits.len() - 1)
    }

    pub(crate) fn hit_mut(&mut self, index: usize) -> Option<&mut Hit> {
        self.hits.get_mut(index)
    }
}

/// The most of `hits` (in the order of arrival) in any stretch of `window`, which holds its start and not its end: for a part
/// of a log, such as the served ones or those of one account.
pub fn peak<'a>(hits: impl Iterator<Item = &'a Hit>, window: Duration) -> usize {
    let mut recent = std::collections::VecDeque::new();
    let mut most = 0;
    for hit in hits {
        while recent.front().is_some_and(|first| hit.at - *first >= window) {
            recent.pop_front();
        }
        recent.push_back(hit.at);
        most = most.max(recent.len());
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    /// A served request of scope 1, answered 100 ms later.
    fn hit(at: u64) -> Hit {
        Hit {
            at: ms(at),
            method: "GET".to_owned(),
            path: "/".to_owned(),
            account: None,
            client: IpAddr::from([127, 0, 0, 1]),
            connection: 1,
            verdict: Verdict::Served,
            status: 200,
            told: None,
            wait: None,
            in_flight: 0,
            answered: Some(ms(at + 90)),
            finished: Some(ms(at + 90)),
            sent: Some(ms(at + 100)),
            delivered: true,
            scopes: vec![ScopeId(1)],
            refused_by: None,
        }
    }

    fn refused(at: u64, told: u64) -> Hit {
        let told = Some(ms(told));
        Hit { verdict: Verdict::Refused, status: 429, told, refused_by: Some(ScopeId(1)), ..hit(at) }
    }

    #[test]
    fn p1_only_what_could_have_known_counts_as_sent_into_a_pause() {
        // The refusal is known from 100 ms (plus grace) on and lasts until 1090 ms.
        for (at, grace, expected) in
            [(50, 0, 0), (100, 0, 0), (101, 0, 1), (101, 50, 0), (151, 50, 1), (1_089, 0, 1), (1_090, 0, 0)]
        {
            let log = Log::from_hits(vec![refused(0, 1_000), hit(at)]);
            assert_eq!(log.sent_into_pause(ms(grace)).len(), expected, "{at} {grace}");
        }
    }

    #[test]
    fn p2_the_longest_told_time_counts_and_only_in_its_scope() {
        let mut elsewhere = hit(2_000);
        elsewhere.scopes = vec![ScopeId(2)];
        let log =
            Log::from_hits(vec![refused(0, 5_000), refused(10, 200), hit(1_500), elsewhere, hit(5_500)]);
        let into = log.sent_into_pause(Duration::ZERO);
        assert_eq!(into.len(), 1);
        assert_eq!((into[0].hit.at, into[0].refusal.at, into[0].left), (ms(1_500), ms(0), ms(3_590)));
    }

    #[test]
    fn refusals_that_tell_nothing_make_no_pause() {
        let mut silent = refused(0, 0);
        assert!(Log::from_hits(vec![silent.clone(), hit(200)]).sent_into_pause(Duration::ZERO).is_empty());
        silent.told = None;
        let log = Log::from_hits(vec![silent, hit(200)]);
        assert!(log.sent_into_pause(Duration::ZERO).is_empty() && log.pauses().is_empty());
        let unread = Hit { delivered: false, ..refused(0, 1_000) };
        let log = Log::from_hits(vec![unread, hit(200)]);
        assert!(log.sent_into_pause(Duration::ZERO).is_empty() && log.pauses().is_empty());
    }

    #[test]
    fn h4_an_empty_budget_is_no_refusal_but_a_promise_all_the_same() {
        let mut last = hit(0);
        last.told = Some(ms(1_000));
        let log = Log::from_hits(vec![last, hit(500), hit(1_200)]);
        assert!(log.sent_into_pause(Duration::ZERO).is_empty());
        assert_eq!(log.sent_past_empty_budget(Duration::ZERO).len(), 1);
    }

    #[test]
    fn p3_overlapping_refusals_are_one_pause() {
        // Together with the first, into its pause, just before its end, and after it.
        let log = Log::from_hits(vec![
            refused(0, 1_000),
            refused(20, 1_500),
            refused(1_000, 200),
            refused(1_609, 500),
            refused(3_000, 1_000),
        ]);
        let first = Pause { scope: ScopeId(1), from: ms(100), until: ms(2_199), refusals: 4 };
        let second = Pause { scope: ScopeId(1), from: ms(3_100), until: ms(4_090), refusals: 1 };
        assert_eq!(log.pauses(), [first, second]);
    }

    #[test]
    fn b1_a_probe_is_alone_or_not() {
        for (others, company) in [
            (vec![], 0),
            (vec![hit(1_250)], 0),             // after its answer
            (vec![hit(1_150)], 1),             // before its answer
            (vec![hit(1_100), hit(1_189)], 2), // at the same moment, and in the last one
        ] {
            let mut hits = vec![refused(0, 1_000), hit(1_100)];
            hits.extend(others);
            let log = Log::from_hits(hits);
            let probes = log.probes();
            assert_eq!(probes.len(), 1);
            assert_eq!((probes[0].late, probes[0].company), (ms(10), company));
        }
        let mut straggler = hit(500);
        straggler.finished = Some(ms(1_150));
        assert_eq!(Log::from_hits(vec![refused(0, 1_000), straggler, hit(1_100)]).probes()[0].company, 1);
        assert!(Log::from_hits(vec![refused(0, 1_000), hit(500)]).probes().is_empty(), "nothing came after");
    }

    #[test]
    fn peaks_gaps_and_counts() {
        let log = Log::from_hits([0, 100, 999, 1_000, 1_001].map(hit).to_vec());
        assert_eq!((log.peak(S), log.peak(ms(2)), log.peak(ms(1))), (4, 2, 1));
        assert_eq!(log.gaps().collect::<Vec<_>>(), [ms(100), ms(899), ms(1), ms(1)]);
        assert_eq!((log.distinct_paths(), log.connections(), log.max_in_flight()), (1, 1, 1));
        assert_eq!(Log::default().max_in_flight(), 0);
    }

    #[test]
    fn c4_a_full_log_says_what_it_dropped() {
        let mut log = Log::default();
        for at in 0..5 {
            assert_eq!(log.push(hit(at), 3).is_some(), at < 3);
        }
        assert_eq!((log.hits().len(), log.dropped()), (3, 2));
    }
}

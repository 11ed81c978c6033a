//! The job against a model of a few lines: whatever is done in whatever order, every item is where it should be.

mod queue_support;

use std::collections::BTreeMap;

use forbear_store::queue::{inspect::JobFile, *};
use proptest::prelude::*;
use queue_support::*;

/// One step. Numbers pick among what is there.
#[derive(Clone, Debug)]
enum Op {
    Import { lanes: Vec<(u8, i8, Option<u8>)> },
    Claim { lane: u8, max: u8 },
    Finish { pick: u8, ending: u8 },
    Park { pick: u8, until: u8 },
    Release { pick: u8, attempts: u8 },
    Wake { s: u8 },
    Credentials { account: u8 },
    Flush,
    Reopen,
}

fn op() -> impl Strategy<Value = Op> {
    let new = (0..3u8, -1..2i8, prop::option::weighted(0.2, 0..40u8));
    prop_oneof![
        3 => prop::collection::vec(new, 1..6).prop_map(|lanes| Op::Import { lanes }),
        6 => (0..3u8, 0..6u8).prop_map(|(lane, max)| Op::Claim { lane, max }),
        6 => (any::<u8>(), 0..3u8).prop_map(|(pick, ending)| Op::Finish { pick, ending }),
        3 => (any::<u8>(), 0..44u8).prop_map(|(pick, until)| Op::Park { pick, until }),
        3 => (any::<u8>(), 0..3u8).prop_map(|(pick, attempts)| Op::Release { pick, attempts }),
        2 => (0..40u8).prop_map(|s| Op::Wake { s }),
        1 => (0..2u8).prop_map(|account| Op::Credentials { account }),
        2 => Just(Op::Flush),
        1 => Just(Op::Reopen),
    ]
}

#[derive(Clone, Debug, PartialEq)]
enum State {
    Pending,
    Parked(Until),
    Leased,
    Ended(Ending),
}

#[derive(Clone, Debug)]
struct Modelled {
    lane: u8,
    rank: i8,
    state: State,
    attempts: u32,
    /// Given back in this run: comes before the others.
    returned: bool,
}

type Model = BTreeMap<u64, Modelled>;

fn until(n: u8) -> Until {
    match n {
        40 | 41 => Until::NextRun,
        42 | 43 => Until::Credentials((n - 42).to_string()),
        s => Until::Time(at(s.into())),
    }
}

fn pick<T: Clone>(from: &[T], n: u8) -> Option<(usize, T)> {
    let index = usize::from(n) % from.len().max(1);
    from.get(index).map(|t| (index, t.clone()))
}

fn count(model: &Model, wanted: impl Fn(&State) -> bool) -> u64 {
    model.values().filter(|m| wanted(&m.state)).count() as u64
}

async fn check_counts(job: &Job, model: &Model) -> Result<(), TestCaseError> {
    job.flush().await.expect("flushed");
    let c = job.counts();
    prop_assert_eq!(c.imported, model.len() as u64);
    prop_assert_eq!(c.pending, count(model, |s| *s == State::Pending));
    prop_assert_eq!(c.leased, count(model, |s| *s == State::Leased));
    prop_assert_eq!(c.parked, count(model, |s| matches!(s, State::Parked(_))));
    prop_assert_eq!(c.done, count(model, |s| *s == State::Ended(Ending::Done)));
    prop_assert_eq!(c.failed, count(model, |s| *s == State::Ended(Ending::Failed)));
    prop_assert_eq!(c.unknown, count(model, |s| *s == State::Ended(Ending::Unknown)));
    let due = model.values().filter_map(|m| match m.state {
        State::Parked(Until::Time(at)) => Some(at),
        _ => None,
    });
    prop_assert_eq!(job.next_due(), due.min());
    let lanes = job.ready_lanes(None, 10).await.expect("lanes");
    for lane in 0..3 {
        let pending = model.values().filter(|m| m.lane == lane && m.state == State::Pending).count() as u64;
        let listed = lanes.iter().find(|l| *l.key == *lane.to_string()).map_or(0, |l| l.pending);
        prop_assert_eq!(listed, pending, "lane {}", lane);
    }
    Ok(())
}

async fn run(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let place = Place::new().await;
    let mut job = place.open().await;
    let mut model = Model::new();
    let mut hand: Vec<Item> = Vec::new();
    let mut line = 0;
    for op in ops {
        match op {
            Op::Import { lanes } => {
                let mut items = Vec::new();
                for (lane, priority, not_before) in lanes {
                    line += 1;
                    let mut new = item(line, &lane.to_string());
                    new.request.priority = priority.into();
                    new.not_before = not_before.map(|s| at(s.into()));
                    let state = new.not_before.map_or(State::Pending, |at| State::Parked(Until::Time(at)));
                    items.push(new);
                    model.insert(
                        line,
                        Modelled { lane, rank: -priority, state, attempts: 0, returned: false },
                    );
                }
                job.import(batch(items)).expect("imported");
                job.flush().await.expect("flushed");
            }
            Op::Claim { lane, max } => {
                let lanes = job.ready_lanes(None, 10).await.expect("lanes");
                let pending: Vec<u64> = model
                    .iter()
                    .filter(|(_, m)| m.lane == lane && m.state == State::Pending)
                    .map(|(l, _)| *l)
                    .collect();
                let Some(id) = lanes.iter().find(|l| *l.key == *lane.to_string()).map(|l| l.id) else {
                    prop_assert!(pending.is_empty());
                    continue;
                };
                let items = job.claim(id, max.into()).await.expect("claimed");
                prop_assert_eq!(items.len(), pending.len().min(max.into()));
                let mut order = Vec::new();
                for item in &items {
                    let m = model.get_mut(&item.lease.seq().0).expect("known");
                    prop_assert!(m.lane == lane && m.state == State::Pending, "{:?}", m);
                    prop_assert_eq!(item.counters.attempts, m.attempts);
                    order.push((!m.returned, if m.returned { 0 } else { m.rank }, item.lease.seq().0));
                    m.state = State::Leased;
                    m.returned = false;
                }
                let fresh: Vec<_> = order.iter().filter(|o| o.0).collect();
                prop_assert!(fresh.is_sorted() && order.is_sorted_by_key(|o| o.0), "{:?}", order);
                hand.extend(items);
            }
            Op::Finish { pick: n, ending } => {
                let Some((index, item)) = pick(&hand, n) else { continue };
                let ending = [Ending::Done, Ending::Failed, Ending::Unknown][usize::from(ending)];
                job.finish(end(&item, ending)).await.expect("finished");
                model.get_mut(&item.lease.seq().0).expect("known").state = State::Ended(ending);
                hand.swap_remove(index);
                prop_assert!(job.finish(end(&item, ending)).await.is_err(), "ended twice");
            }
            Op::Park { pick: n, until: kind } => {
                let Some((index, mut item)) = pick(&hand, n) else { continue };
                item.counters.attempts += 1;
                let m = model.get_mut(&item.lease.seq().0).expect("known");
                m.attempts = item.counters.attempts;
                m.state = State::Parked(until(kind));
                job.park(item.lease, until(kind), "told", item.counters).expect("parked");
                hand.swap_remove(index);
            }
            Op::Release { pick: n, attempts } => {
                let Some((index, mut item)) = pick(&hand, n) else { continue };
                item.counters.attempts += u32::from(attempts);
                let m = model.get_mut(&item.lease.seq().0).expect("known");
                (m.attempts, m.state, m.returned) = (item.counters.attempts, State::Pending, true);
                job.release(item).expect("released");
                hand.swap_remove(index);
            }
            Op::Wake { s } => {
                let now = at(s.into());
                let due = |m: &Modelled| matches!(m.state, State::Parked(Until::Time(at)) if at <= now);
                let woken = job.wake_due(now, 1000).await.expect("woken");
                prop_assert_eq!(woken.items, model.values().filter(|m| due(m)).count() as u64);
                model.values_mut().filter(|m| due(m)).for_each(|m| m.state = State::Pending);
            }
            Op::Credentials { account } => {
                let waits = State::Parked(Until::Credentials(account.to_string()));
                let woken = job.credentials_changed(account.to_string()).await.expect("woken");
                prop_assert_eq!(woken, count(&model, |s| *s == waits));
                model.values_mut().filter(|m| m.state == waits).for_each(|m| m.state = State::Pending);
            }
            Op::Flush => check_counts(&job, &model).await?,
            Op::Reopen => {
                job.close().await.expect("closed");
                hand.clear();
                for m in model.values_mut() {
                    m.returned = false;
                    if matches!(m.state, State::Leased | State::Parked(Until::NextRun)) {
                        m.state = State::Pending;
                    }
                }
                job = place.open().await;
                prop_assert_eq!(place.told(), []);
            }
        }
    }
    check_counts(&job, &model).await?;
    job.close().await.expect("closed");
    let records = place.records().await;
    prop_assert_eq!(records.len() as u64, count(&model, |s| matches!(s, State::Ended(_))));
    prop_assert!(JobFile::open(place.job()).expect("opens").is_consistent().expect("readable"));
    Ok(())
}

proptest! {
    // Each case syncs a disk some dozens of times. `FORBEAR_CASES` asks for more.
    #![proptest_config(ProptestConfig {
        cases: std::env::var("FORBEAR_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(48),
        ..ProptestConfig::default()
    })]

    #[test]
    fn j2_every_item_is_where_the_model_says(ops in prop::collection::vec(op(), 1..60)) {
        block_on(run(ops))?;
    }
}

//! What many processes come to on one scope: a configured rate is used up and shared.

use std::time::Duration;

use forbear_store::gate::Drift;

use super::{
    MS, Ran,
    plan::{HOUR, Plan, Trouble},
    play,
    watch::LEASE,
};

const S: Duration = Duration::from_secs(1);

pub(super) fn plan(spec: &str, members: usize, workers: u32, pages: u32) -> Plan {
    let drift = |n: usize| Drift { offset_us: n as u64 * 1_000_003, ppm: (n as i64 % 9 - 4) * 20 };
    Plan {
        spec: spec.parse().unwrap(),
        members: (0..members).map(drift).collect(),
        workers,
        pages,
        round_trip: 30 * MS,
        service: 40 * MS,
        delay: MS,
        rate: None,
        cap: 64,
        troubles: Vec::new(),
        lasts: HOUR,
        seed: 7,
    }
}

impl Ran {
    pub(super) fn starts(&self, from: Duration, until: Duration) -> usize {
        self.log.iter().filter(|(at, _)| (from..until).contains(at)).count()
    }

    pub(super) fn refused(&self, from: Duration, until: Duration) -> usize {
        self.refusals.iter().filter(|at| (from..until).contains(at)).count()
    }
}

/// A rate of 2/s for many processes, at a server that allows no more; two thirds of the time later it is shut for 20 s.
fn use_up_and_share(members: usize, minutes: u32) {
    let minute = Duration::from_secs(60);
    let (end, shut) = (minutes * minute, minutes * minute * 2 / 3);
    let spec = format!(
        "token-bucket:rate=2/s,burst=2,hint=seconds + maintenance:from={}s,for=20s,hint=seconds",
        shut.as_secs()
    );
    let plan = Plan { rate: Some("2/s".parse().unwrap()), ..plan(&spec, members, 2, 120 * minutes) };
    let ran = play(&plan).unwrap();
    let mut most = 0;
    for (i, (from, _)) in ran.log.iter().enumerate() {
        most = most.max(ran.log[i..].iter().take_while(|(at, _)| *at < *from + 10 * S).count());
    }
    assert!(most <= 21, "{most} starts in ten seconds");
    let measured = (shut - 20 * S).min(10 * minute);
    let used = ran.starts(10 * S, 10 * S + measured) as f64 / (2.0 * measured.as_secs_f64());
    assert!((0.97..=1.0).contains(&used), "{:.2} % of the limit", 100.0 * used);
    // The one pause: what was on the wire as it began, and one probe, or two, until it is over.
    let in_pause = ran.starts(shut + S, shut + 19 * S);
    assert!(in_pause <= 3 && ran.probes <= 3, "{in_pause} starts, {} probes in all", ran.probes);
    let refused = ran.refused(Duration::ZERO, end);
    assert!(refused * 100 <= ran.log.len(), "{refused} of {} refused", ran.log.len());
    let mut shares = vec![0; members];
    ran.log.iter().filter(|(at, _)| *at < end).for_each(|(_, member)| shares[*member] += 1);
    shares.sort_unstable();
    let (least, most) = (shares[0], shares[members - 1]);
    assert!(most <= 2 * least, "starts of a member: {shares:?}");
    eprintln!(
        "{members} members, {minutes} min: {:.2} % of the limit, {refused} refused of {}, shares {least} to {most}",
        100.0 * used,
        ran.log.len()
    );
}

/// Twelve processes for five minutes, and in a campaign (`FORBEAR_ROUNDS`) 64 for half an hour.
#[test]
fn c1_many_processes_use_up_one_rate_and_share_it() {
    let (members, minutes) = if std::env::var("FORBEAR_ROUNDS").is_ok() { (64, 30) } else { (12, 5) };
    use_up_and_share(members, minutes);
}

/// A turn comes every twenty seconds, and nobody queues for a slot that is further away than ten.
#[test]
fn c1_more_processes_than_slots_to_queue_for_each_have_their_turn() {
    use_up_and_share(40, 5);
}

#[test]
fn b1_after_a_killed_probe_the_next_one_comes_within_the_lease_and_a_second() {
    let troubles = vec![(2 * S, Trouble::KillTheProbe)];
    let ran = play(&Plan { troubles, ..super::closed_for_four_seconds() }).unwrap();
    let waited = ran.probes_at[1] - ran.probes_at[0];
    assert!(waited >= LEASE && waited <= LEASE + S, "{waited:?}");
}

//! What two processes did to one gate, made into one gate. No rule is here: what was counted is summed, deadlines are the
//! later ones, and of two other changes the one that the store has stays.

use forbear_core::{gate::State, time::Timestamp};

/// `theirs`, with what was done to `base` to make `mine` of it. Slots are left as they are in `theirs`.
pub(super) fn merge(base: &State, mine: &State, theirs: &State) -> State {
    let mut out = theirs.clone();
    merge_pause(base, mine, theirs, &mut out);
    macro_rules! keep_newer {
        ($($field:ident)+) => {
            $(if theirs.$field == base.$field {
                out.$field = mine.$field;
            })+
        };
    }
    keep_newer!(
        blocked_in_row overloads_in_row unauthorised unauthorised_item circuit_refusals circuit_incidents
        round_trip_us stated_rate budget_left budget_low budget_resets cost_left cost_resets last_cut_ms retry_refilled_s
    );
    // The pace and the cap each are one thing, and never half of one and half of another.
    if pace(theirs) == pace(base) {
        (out.rate, out.bad_rate, out.wire_cap) = (mine.rate, mine.bad_rate, mine.wire_cap);
        out.credit = if pace(mine) == pace(base) {
            (theirs.credit + mine.credit - base.credit).max(0.0) // each start of each uses up a part of it
        } else {
            mine.credit
        };
        (out.linear_ms, out.linear_goal, out.linear_learns) =
            (mine.linear_ms, mine.linear_goal, mine.linear_learns);
        out.stepped_ms = mine.stepped_ms;
    }
    if (theirs.pad_ms, theirs.pad_good) == (base.pad_ms, base.pad_good) {
        (out.pad_ms, out.pad_good) = (mine.pad_ms, mine.pad_good);
    }
    if cap(theirs) == cap(base) {
        (out.cap, out.cap_ceiling, out.cap_good) = (mine.cap, mine.cap_ceiling, mine.cap_good);
        (out.cap_patience, out.cap_passed) = (mine.cap_patience, mine.cap_passed);
        out.cap_grown_ms = mine.cap_grown_ms;
    }
    // What was counted since a count began anew belongs to the new one.
    if theirs.opened_at == base.opened_at {
        out.accepted = sum(base.accepted, mine.accepted, theirs.accepted);
    }
    out.diary.add(&base.diary, &mine.diary);
    if theirs.diary.first_wait_ms == base.diary.first_wait_ms {
        out.diary.first_wait_ms = mine.diary.first_wait_ms;
    }
    out.cap_successes = sum(base.cap_successes, mine.cap_successes, theirs.cap_successes);
    out.retry_tokens = (theirs.retry_tokens + mine.retry_tokens - base.retry_tokens).max(0.0);
    out.largest_cost = theirs.largest_cost.max(mine.largest_cost);
    out.last_refusal_s = theirs.last_refusal_s.max(mine.last_refusal_s);
    out.last_used_s = theirs.last_used_s.max(mine.last_used_s);
    out
}

/// `theirs`, from a store that has lost what it had, with the pause that `mine` remembers (P2) and no slot given twice.
pub(super) fn reassert(mine: &State, theirs: &State) -> State {
    let mut out = theirs.clone();
    if is_longer(mine, theirs) {
        take_pause(mine, &mut out);
    }
    out.probe_last = mine.probe_last.max(theirs.probe_last);
    out.incidents = mine.incidents.max(theirs.incidents);
    later_slots(mine, &mut out);
    out
}

/// `mine`, with the pause of `theirs` that is about to be written, where it is longer and not over here already.
pub(super) fn shut_by(theirs: &State, mine: &State) -> Option<State> {
    let over = mine.opened_at > theirs.closed_at || !mine.shut && mine.closed_at >= theirs.closed_at;
    if over || !is_longer(theirs, mine) {
        return None;
    }
    let mut out = mine.clone();
    take_pause(theirs, &mut out);
    Some(out)
}

/// Slots of `out` are no earlier than those of `other`.
pub(super) fn later_slots(other: &State, out: &mut State) {
    out.clocks.iter_mut().zip(other.clocks).for_each(|(clock, other)| *clock = (*clock).max(other));
    out.slot_ns = out.slot_ns.max(other.slot_ns);
}

/// Whether a change is one that others wait for, so that it cannot wait itself.
pub(super) fn is_loud(before: &State, after: &State) -> bool {
    pause(before) != pause(after) || probe(before) != probe(after) || before.incidents != after.incidents
}

fn merge_pause(base: &State, mine: &State, theirs: &State, out: &mut State) {
    if !is_loud(base, mine) {
        return;
    }
    if !is_loud(base, theirs) || is_longer(mine, theirs) {
        take_pause(mine, out);
    }
    out.level = mine.level.max(theirs.level);
    out.cap_doubled = mine.cap_doubled.max(theirs.cap_doubled);
    if !is_loud(base, theirs) {
        (out.level, out.cap_doubled) = (mine.level, mine.cap_doubled);
    }
    out.closed_at = mine.closed_at.max(theirs.closed_at);
    out.incidents = sum(base.incidents, mine.incidents, theirs.incidents);
    out.probe_last = mine.probe_last.max(theirs.probe_last);
}

fn is_longer(mine: &State, theirs: &State) -> bool {
    mine.shut && (!theirs.shut || mine.paused_until > theirs.paused_until)
}

fn take_pause(mine: &State, out: &mut State) {
    (out.shut, out.resumes, out.cause) = (mine.shut, mine.resumes, mine.cause);
    (out.level, out.cap_doubled) = (mine.level, mine.cap_doubled);
    (out.paused_until, out.beyond_told_ms) = (mine.paused_until, mine.beyond_told_ms);
    (out.closed_at, out.opened_at) = (mine.closed_at, mine.opened_at);
    out.early_probe_at = mine.early_probe_at;
    // A longer pause ends no probe that was let out after it was last heard of (B1).
    if mine.probe_last >= out.probe_last {
        (out.probe_held, out.probe_until, out.probe_early) =
            (mine.probe_held, mine.probe_until, mine.probe_early);
    }
    out.accepted = mine.accepted;
    (out.diary.met, out.diary.failed_probes) = (mine.diary.met, mine.diary.failed_probes);
}

fn pause(s: &State) -> (bool, bool, u8, u8, [Timestamp; 4]) {
    (s.shut, s.resumes, s.level, s.cap_doubled, [s.paused_until, s.closed_at, s.opened_at, s.early_probe_at])
}

fn probe(s: &State) -> (u32, u32, Timestamp, bool) {
    (s.probe_last, s.probe_held, s.probe_until, s.probe_early)
}

fn pace(s: &State) -> (Option<f32>, Option<f32>, u16, u32, f32, u32) {
    (s.rate, s.bad_rate, s.wire_cap, s.linear_ms, s.linear_goal, s.stepped_ms)
}

fn cap(s: &State) -> (u16, u16, u16, u8, bool) {
    (s.cap, s.cap_ceiling, s.cap_good, s.cap_patience, s.cap_passed)
}

fn sum(base: u32, mine: u32, theirs: u32) -> u32 {
    // A count that was begun anew adds what it has.
    theirs.saturating_add(if mine >= base { mine - base } else { mine })
}

#[cfg(test)]
mod tests {
    use forbear_core::{gate::Gate, policy::ScopePolicy};

    use super::*;

    #[test]
    fn p1_a_notice_shuts_what_it_is_about_and_revives_no_pause() {
        let at = Timestamp::from_secs;
        let open = Gate::new(&ScopePolicy::default()).to_state();
        let told = State { shut: true, closed_at: at(100), paused_until: at(120), ..open.clone() };
        let shut = shut_by(&told, &open).expect("nothing is known of it");
        assert_eq!((shut.shut, shut.paused_until, shut.incidents), (true, at(120), open.incidents));
        let longer = State { paused_until: at(130), ..told.clone() };
        assert!(shut_by(&longer, &told).is_some() && shut_by(&told, &longer).is_none(), "P2: the longer one");
        let probed = State { closed_at: at(100), opened_at: at(110), ..open.clone() };
        let cleared = State { closed_at: at(100), ..open };
        assert_eq!((shut_by(&told, &probed), shut_by(&told, &cleared)), (None, None), "it is over here");
    }

    #[test]
    fn b1_a_longer_pause_leaves_the_probe_that_another_member_has() {
        let at = Timestamp::from_secs;
        let open = Gate::new(&ScopePolicy::default()).to_state();
        let shut = State { shut: true, closed_at: at(100), paused_until: at(120), ..open };
        let probes = State { probe_last: 1, probe_held: 1, probe_until: at(136), ..shut.clone() };
        let longer = State { paused_until: at(123), ..shut.clone() };
        let merged = merge(&shut, &longer, &probes);
        assert_eq!((merged.paused_until, merged.probe_held, merged.probe_until), (at(123), 1, at(136)));
        let ended = State { probe_held: 0, paused_until: at(140), ..probes.clone() };
        assert_eq!(merge(&probes, &ended, &probes).probe_held, 0, "its own probe's end is news");
    }
}

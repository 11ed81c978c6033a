//! A fleet's run in the numbers of a [`Report`], so that it can stand beside a run of another kind.

use forbear_core::outcome::Outcome;

use super::{Fleet, Seen, Summary, run_seen};
use crate::{report::Report, world::Played};

/// Plays a fleet, whatever comes of it, and counts what it sent. What its gates did is not among the numbers, since they are many. Of
/// a run that was over before its work, which breaks no promise here, there is no summary.
///
/// ```
/// use forbear_sim::fleet::{self, Exit, Fleet, Site};
///
/// let spec = "token-bucket:rate=5/s,burst=5,scope=client,hint=seconds".parse()?;
/// let fleet = Fleet { sites: vec![Site::new(spec, 40)], exits: vec![Exit::Good; 2], ..Fleet::default() };
/// let (played, _) = fleet::observe(&fleet);
/// assert_eq!((played.report.done, played.broken), (40, None));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use]
pub fn observe(fleet: &Fleet) -> (Played, Option<Summary>) {
    let mut seen: Vec<Seen> = Vec::new();
    let ended = run_seen(fleet, &mut |request| seen.push(*request));
    seen.sort_by_key(|request| request.sent);
    let mut report = Report::new(fleet.run_for);
    for request in &seen {
        let (served, refused) = match request.outcome {
            Outcome::Success => (true, false),
            Outcome::Refused(_) => (false, true),
            _ => (false, false),
        };
        report.sent(request.sent);
        report.arrived(request.sent, served, refused);
        report.done += u64::from(served);
        report.faults += u64::from(!served && !refused);
    }
    let (summary, broken) = match ended {
        Ok(summary) => (Some(summary), None),
        Err(broken) => (None, Some(broken).filter(|broken| !broken.is_about_progress())),
    };
    report.took = summary.as_ref().map_or(fleet.run_for, |summary| summary.took);
    (Played { report, broken }, summary)
}

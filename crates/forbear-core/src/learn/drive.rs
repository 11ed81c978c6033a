//! A client for tests: it drives a limiter, and keeps what it has seen.

use super::history::{History, Seen};

/// Goes at each of these paces, and at a little more with each start, until it is refused; then probes each second until one is let
/// through. `after` each pace the history is shown. Returns it with the moments of the last refused and of the first passing probe.
pub(super) fn drive(
    paces: &[f64],
    climb: f64,
    mut admits: impl FnMut(f64) -> bool,
    mut after: impl FnMut(&History),
) -> (History, Vec<(f64, f64)>) {
    let (mut history, mut edges, mut now) = (History::new(), Vec::new(), 0.0);
    for pace in paces {
        let mut rate = *pace;
        for _ in 0..100_000 {
            rate *= 1.0 + climb / rate;
            now += 1.0 / rate;
            history.started(now, 1.0);
            if admits(now) {
                continue;
            }
            history.refused(now, true);
            history.keep(Seen { at: now, probe: false, told: -1.0 });
            loop {
                let failed = now;
                now += 1.0;
                history.probed(now);
                if admits(now) {
                    edges.push((failed, now));
                    break;
                }
                history.refused(now, false);
                history.keep(Seen { at: now, probe: true, told: -1.0 });
            }
            break;
        }
        after(&history);
    }
    (history, edges)
}

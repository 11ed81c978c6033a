//! The circuit: many refusals in a row, over several incidents, stop a scope for long (X1).
//!
//! It is a counter on top of the gate's pause, not a second state machine: *tripped* is a pause with a reason.

use std::time::Duration;

/// When a scope trips.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CircuitPolicy {
    /// Refused responses in a row (default 25).
    pub refusals: u32,
    /// Over at least this many incidents, so that one burst in flight trips nothing (default 3).
    pub incidents: u32,
    /// How long the scope then stays shut (default 600 s).
    pub pause: Duration,
}

impl Default for CircuitPolicy {
    fn default() -> CircuitPolicy {
        CircuitPolicy { refusals: 25, incidents: 3, pause: Duration::from_secs(600) }
    }
}

/// Refusals and incidents without a success between.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Circuit {
    pub(crate) refusals: u16,
    pub(crate) incidents: u16,
}

impl Circuit {
    /// Counts a refused response; true when the scope trips with it, and the count begins anew.
    pub fn refused(&mut self, new_incident: bool, policy: &CircuitPolicy) -> bool {
        self.refusals = self.refusals.saturating_add(1);
        self.incidents = self.incidents.saturating_add(u16::from(new_incident));
        let trips =
            u32::from(self.refusals) >= policy.refusals && u32::from(self.incidents) >= policy.incidents;
        if trips {
            *self = Circuit::default();
        }
        trips
    }

    /// A success ends the row.
    pub fn succeeded(&mut self) {
        *self = Circuit::default();
    }

    /// Refusals in a row so far.
    #[must_use]
    pub fn refusals(&self) -> u32 {
        u32::from(self.refusals)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x1_trips_after_25_in_a_row_over_3_incidents() {
        let policy = CircuitPolicy::default();
        let mut circuit = Circuit::default();
        assert!(!(0..100).any(|i| circuit.refused(i == 0, &policy)), "one burst is one incident");
        circuit.succeeded();
        let trips: Vec<bool> = (0..25).map(|i| circuit.refused(i % 8 == 0, &policy)).collect();
        assert_eq!(trips.iter().position(|t| *t), Some(24));
        assert!(!circuit.refused(true, &policy), "the count begins anew");
    }
}

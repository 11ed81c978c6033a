//! What went through each exit, kept with the job: the sum of all its runs, by the exit's name.
//!
//! A run tells what it counted since its own beginning, again and again. What is new in it is added to the table, in one
//! transaction with whatever else is written then: so a kill costs what was counted since, and nothing is added twice.

use hashbrown::HashMap;

/// What went through an exit.
///
/// ```
/// use forbear_store::queue::ExitRow;
///
/// let row = ExitRow { requests: 3, done: 2, faults: 1, ..ExitRow::new("http://203.0.113.7:8080", "ok") };
/// assert_eq!((row.refused, row.cost), (0, None));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct ExitRow {
    /// The exit's name, without credentials.
    pub name: String,
    /// The last known state in a word: `ok`, `unproven`, `failing` or `out`; a later version may know others.
    pub state: String,
    /// Requests sent.
    pub requests: u64,
    /// Requests that were served.
    pub done: u64,
    /// Requests that were refused for a limit.
    pub refused: u64,
    /// Requests that were told that they are unwanted.
    pub blocked: u64,
    /// Faults of the exit itself.
    pub faults: u64,
    /// Bytes of bodies.
    pub bytes: u64,
    /// What that cost, where a price is known; in the currency of the price.
    pub cost: Option<f64>,
}

impl ExitRow {
    /// An exit through which nothing has gone.
    #[must_use]
    pub fn new(name: impl Into<String>, state: impl Into<String>) -> ExitRow {
        let (requests, done, refused, blocked, faults, bytes) = (0, 0, 0, 0, 0, 0);
        let (name, state) = (name.into(), state.into());
        ExitRow { name, state, requests, done, refused, blocked, faults, bytes, cost: None }
    }

    /// Adds what went through another, whose name and state do not count.
    pub fn add(&mut self, other: &ExitRow) {
        let numbers = [
            (&mut self.requests, other.requests),
            (&mut self.done, other.done),
            (&mut self.refused, other.refused),
            (&mut self.blocked, other.blocked),
            (&mut self.faults, other.faults),
            (&mut self.bytes, other.bytes),
        ];
        for (sum, n) in numbers {
            *sum = sum.saturating_add(n);
        }
        if let Some(cost) = other.cost {
            *self.cost.get_or_insert(0.0) += cost;
        }
    }

    /// What is new since `before`, which was told of the same exit.
    fn since(&self, before: &ExitRow) -> ExitRow {
        ExitRow {
            name: self.name.clone(),
            state: self.state.clone(),
            requests: self.requests.saturating_sub(before.requests),
            done: self.done.saturating_sub(before.done),
            refused: self.refused.saturating_sub(before.refused),
            blocked: self.blocked.saturating_sub(before.blocked),
            faults: self.faults.saturating_sub(before.faults),
            bytes: self.bytes.saturating_sub(before.bytes),
            cost: self.cost.map(|cost| cost - before.cost.unwrap_or(0.0)),
        }
    }
}

/// What the run has told so far.
#[derive(Debug, Default)]
pub(crate) struct ToldExits(HashMap<String, ExitRow>);

impl ToldExits {
    /// Takes in what the run has counted, and gives what is new in it.
    pub(crate) fn changes(&mut self, rows: Vec<ExitRow>) -> Vec<ExitRow> {
        let mut changes = Vec::new();
        for row in rows {
            let full = self.0.len() >= EXITS_MAX;
            match self.0.get_mut(&row.name) {
                Some(told) if *told == row => {}
                Some(told) => {
                    changes.push(row.since(told));
                    *told = row;
                }
                None if full => {}
                None => {
                    changes.push(row.clone());
                    self.0.insert(row.name.clone(), row);
                }
            }
        }
        changes
    }
}

/// Exits that a job keeps. Those that come after so many are left out.
pub(crate) const EXITS_MAX: usize = 100_000;

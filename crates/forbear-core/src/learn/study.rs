//! The search for an explanation, apart from the scope that it is for: it takes a thousand times as long as a decision.

use super::{Due, model::Model};

/// What is to be looked for. Whoever holds the scope's gate takes this out, lets the gate go, and looks.
#[derive(Clone, Debug)]
pub struct Study {
    model: Box<Model>,
    due: Due,
}

/// What a [`Study`] has found.
#[derive(Clone, Debug)]
pub struct Findings(Study);

impl Study {
    pub(super) fn new(model: &Model, due: Due) -> Study {
        Study { model: Box::new(model.clone()), due }
    }

    /// Looks. Takes some milliseconds, and up to some ten where many incidents are to be explained.
    #[must_use]
    pub fn run(mut self) -> Findings {
        self.model.search(&self.due.it, self.due.probe);
        Findings(self)
    }
}

impl Findings {
    pub(super) fn answers(&self, due: &Due) -> bool {
        self.0.due == *due
    }

    pub(super) fn into_model(self) -> Model {
        *self.0.model
    }
}

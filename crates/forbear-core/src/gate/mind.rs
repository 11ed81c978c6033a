//! Where a gate learns: with a learner of its own, or in a diary for one that is somewhere else.

use super::diary::Diary;
use crate::learn::Learner;

/// One place for both, since a gate must stay small and never has the two.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mind(Option<Box<Kind>>);

#[derive(Clone, Debug, PartialEq)]
#[allow(clippy::large_enum_variant, reason = "a gate with a diary lives for one step")]
enum Kind {
    Learns(Learner),
    /// Nobody keeps the gate from step to step.
    Writes(Diary),
}

impl Mind {
    pub(super) const NOBODY: Mind = Mind(None);

    pub(super) fn learns(learner: Learner) -> Mind {
        Mind(Some(Box::new(Kind::Learns(learner))))
    }

    pub(super) fn writes(diary: Diary) -> Mind {
        Mind(Some(Box::new(Kind::Writes(diary))))
    }

    pub(super) fn take(&mut self) -> Mind {
        Mind(self.0.take())
    }

    #[inline]
    pub(super) fn learner(&self) -> Option<&Learner> {
        match self.0.as_deref() {
            Some(Kind::Learns(learner)) => Some(learner),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn learner_mut(&mut self) -> Option<&mut Learner> {
        match self.0.as_deref_mut() {
            Some(Kind::Learns(learner)) => Some(learner),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn diary(&self) -> Option<&Diary> {
        match self.0.as_deref() {
            Some(Kind::Writes(diary)) => Some(diary),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn diary_mut(&mut self) -> Option<&mut Diary> {
        match self.0.as_deref_mut() {
            Some(Kind::Writes(diary)) => Some(diary),
            _ => None,
        }
    }
}

//! `forbear explain`: what a response says about limits, and what would be done.

use crate::{
    args::ExplainArgs,
    exit::{Exit, Failure},
};

/// Placeholder until the reader of hints stands.
pub(crate) fn run(_args: &ExplainArgs) -> Result<Exit, Failure> {
    Err(Failure::internal("`forbear explain` is not part of this build"))
}

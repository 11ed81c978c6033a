//! `forbear job`.

use crate::{
    args::JobArgs,
    exit::{Exit, Failure},
};

/// Says that this build lacks it.
pub(crate) async fn run(_args: JobArgs) -> Result<Exit, Failure> {
    Err(Failure::internal("`forbear job` is not part of this build"))
}

//! `forbear demo`.

use crate::{
    args::DemoArgs,
    exit::{Exit, Failure},
};

/// Says that this build lacks it.
pub(crate) async fn run(_args: DemoArgs) -> Result<Exit, Failure> {
    Err(Failure::internal("`forbear demo` is not part of this build"))
}

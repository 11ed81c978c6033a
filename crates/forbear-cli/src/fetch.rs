//! `forbear fetch`.

use crate::{
    args::FetchArgs,
    exit::{Exit, Failure},
};

/// Reads the configuration, then says that this build lacks the rest.
pub(crate) async fn run(args: FetchArgs) -> Result<Exit, Failure> {
    args.settings.sources(args.beside())?.load()?;
    Err(Failure::internal("`forbear fetch` is not part of this build"))
}

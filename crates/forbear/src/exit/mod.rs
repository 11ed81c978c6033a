//! Ways out: proxies as they are given, read once (E6), and a pool of them for any HTTP client.
//!
//! An exit is direct, or a proxy together with its credentials (S2). [`ExitUrl`] reads one, [`read_list`] a file of them,
//! [`EnvProxies`] the variables of the environment. [`ExitPool`] says by which exit a request goes, and what its answer
//! means; the rules are those of [`forbear_core::exit`], of which everything that a caller needs is here too.

mod env;
mod handle;
mod list;
mod members;
mod pool;
mod secrets;
mod url;

pub use forbear_core::{
    backoff::{Backoff, Jitter},
    exit::{
        ExitChange, ExitId, ExitPolicy, Health, Rotate, Sticky, Tally, Usable, answered_by, of_connect,
        of_socks_reply,
    },
    outcome::{ExitFault, Outcome, Processed, Refusal},
    pace::Rates,
    policy::{ItemPolicy, ScopePolicy},
    scope::{Combination, ScopePlan},
    verdict::{FailReason, History, Verdict, Way, verdict},
};

pub use crate::item::{Item, Received};
pub use env::{EnvError, EnvProxies, Environment};
pub use handle::{Exit, Report};
pub use list::{ENTRIES_MAX, Entry, EntryError, GivenBy, LIST_BYTES_MAX, ListError, read_list};
pub(crate) use list::{PRICE_MAX, is_price, without_repeats};
pub use members::ExitRow;
pub(crate) use members::{Asker, Leave, Members, Names};
pub use pool::{ExitError, ExitPool, Offer, PoolOptions};
pub use secrets::ExitSecrets;
pub use url::{EXIT_URL_BYTES_MAX, ExitScheme, ExitUrl, ExitUrlError, SESSION_BYTES_MAX};

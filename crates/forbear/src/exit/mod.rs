//! Ways out: proxies as they are given, read once (E6).
//!
//! An exit is direct, or a proxy together with its credentials (S2). [`ExitUrl`] reads one, [`read_list`] a file of them,
//! [`EnvProxies`] the variables of the environment.

mod env;
mod list;
mod secrets;
mod url;

pub use env::{EnvError, EnvProxies, Environment};
pub use list::{ENTRIES_MAX, Entry, EntryError, GivenBy, LIST_BYTES_MAX, ListError, read_list};
pub(crate) use list::{PRICE_MAX, is_price, without_repeats};
pub use secrets::ExitSecrets;
pub use url::{EXIT_URL_BYTES_MAX, ExitScheme, ExitUrl, ExitUrlError, SESSION_BYTES_MAX};

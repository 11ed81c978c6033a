//! Ways out: proxies as they are given, read once (E6).
//!
//! An exit is direct, or a proxy together with its credentials (S2).

mod url;

pub use url::{EXIT_URL_BYTES_MAX, ExitScheme, ExitUrl, ExitUrlError, SESSION_BYTES_MAX};

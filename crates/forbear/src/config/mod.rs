//! What a run is told: policy, file and flags, made into one checked [`Settings`].
//!
//! Flags beat the file, the file beats the policy, the policy beats the defaults. Files are walked as `toml` parses them, with
//! the place of every key and value, so that all mistakes are found at once. Errors are rendered here and not by a library
//! that prints source text: a line is only shown after everything that may be secret in it is masked (K1).

mod cost;
mod error;
mod exits;
mod given;
mod host;
mod keys;
mod load;
mod plain;
mod secret;
mod settings;
mod source;
mod suggest;
mod tables;
#[cfg(test)]
mod tests;
mod words;

pub use cost::{CostSettings, Pointer, PointerError};
pub use error::{ConfigError, Problem};
pub use exits::{ExitSettings, Rotate, Sticky};
pub use given::Given;
pub use host::{Endpoint, Group, HostPattern, HostPatternError, HostSettings, PathPattern, PathPatternError};
pub use load::{Config, Flag, Origin, Sources, Value, policy_names};
pub use plain::{PlainFlag, PlainKey, read_plain};
pub use secret::{Secret, SecretHeader};
pub use settings::{Pace, SecretNames, Settings, SettingsError};
pub use words::{WordsError, parse_duration, parse_size, show_duration, show_size};

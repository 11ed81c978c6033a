//! What a run is told: policy, file and flags, made into one checked [`Settings`].
//!
//! Flags beat the file, the file beats the policy, the policy beats the defaults.

mod error;
mod given;
mod host;
mod keys;
mod load;
mod secret;
mod settings;
mod source;
mod suggest;
#[cfg(test)]
mod tests;
mod words;

pub use error::{ConfigError, Problem};
pub use host::{Endpoint, Group, HostPattern, HostPatternError, HostSettings, PathPattern, PathPatternError};
pub use load::{Config, Flag, Origin, Sources, Value, policy_names};
pub use secret::{Secret, SecretHeader};
pub use settings::{Pace, SecretNames, Settings, SettingsError};
pub use words::{WordsError, parse_duration, parse_size, show_duration, show_size};

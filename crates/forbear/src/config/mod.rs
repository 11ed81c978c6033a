//! What a run is told: policy, file and flags, made into one checked [`Settings`].
//!
//! Flags beat the file, the file beats the policy, the policy beats the defaults.

mod host;
mod scope;
mod secret;
mod settings;
mod words;

pub use host::{Endpoint, Group, HostPattern, HostPatternError, HostSettings, PathPattern, PathPatternError};
pub use scope::{Scope, ScopeError};
pub use secret::{Secret, SecretHeader};
pub use settings::{
    Backoff, BackoffForm, Circuit, Jitter, OnNoHint, Pace, Pad, Reopen, SecretNames, Settings, SettingsError,
};
pub use words::{WordsError, parse_duration, parse_size, show_duration, show_size};

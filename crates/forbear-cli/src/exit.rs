//! How a command ends: statuses, errors for people, a pipe that nobody reads any more.

use std::{fmt, io, process::ExitCode};

/// The status of a command.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Exit {
    /// A bug.
    Internal,
    /// The command line or the configuration cannot be used.
    Usage,
    /// All that was asked for is done.
    Done,
    /// Some items failed.
    SomeFailed,
    /// Work is left: parked, stalled, or out of time.
    WorkLeft,
    /// Work is left, and no exit can be used.
    NoWayOut,
    /// A store cannot be reached.
    StoreUnreachable,
    /// Interrupted; can be resumed.
    Interrupted,
}

/// Why a command could not do its work, for people.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
}

impl Exit {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self.status())
    }

    pub(crate) fn status(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Internal => 1,
            Exit::Usage => 2,
            Exit::SomeFailed => 3,
            Exit::WorkLeft => 4,
            Exit::NoWayOut => 5,
            Exit::StoreUnreachable => 6,
            Exit::Interrupted => 130,
        }
    }
}

impl Failure {
    /// Something that should not happen.
    pub(crate) fn internal(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Internal, message: message.to_string() }
    }

    /// An error with all its causes.
    pub(crate) fn of(error: &dyn std::error::Error, exit: Exit) -> Failure {
        let mut message = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let words = cause.to_string();
            if !message.contains(&words) {
                message = format!("{message}: {words}");
            }
            source = cause.source();
        }
        Failure { exit, message }
    }

    /// With this status.
    pub(crate) fn with(exit: Exit, message: impl fmt::Display) -> Failure {
        Failure { exit, message: message.to_string() }
    }

    /// The command line or the configuration is at fault.
    pub(crate) fn usage(message: impl fmt::Display) -> Failure {
        Failure { exit: Exit::Usage, message: message.to_string() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl From<forbear::config::ConfigError> for Failure {
    fn from(e: forbear::config::ConfigError) -> Failure {
        Failure::usage(e)
    }
}

/// What came of writing data to stdout. A reader that has gone (`| head`) is a clean stop, not a failure.
pub(crate) fn written(result: io::Result<()>) -> Result<Exit, Failure> {
    match result {
        Ok(()) => Ok(Exit::Done),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(Exit::Done),
        Err(e) => Err(Failure::internal(format!("cannot write to stdout: {e}"))),
    }
}

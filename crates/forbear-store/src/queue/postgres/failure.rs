//! What an error of the server means: whether it may pass, and what to do about it.

use std::{error::Error as _, io};

use tokio_postgres::{Error, error::SqlState};

/// Whether the connection is gone or the server is, so that trying again may help.
pub(crate) fn is_lost(error: &Error) -> bool {
    if error.is_closed() {
        return true;
    }
    match error.code() {
        Some(code) => {
            // Connection exceptions, "the database system is starting up", too many connections; and what comes by chance of
            // two transactions, which the next try does not meet again.
            code.code().starts_with("08")
                || code.code().starts_with("57P")
                || matches!(
                    *code,
                    SqlState::TOO_MANY_CONNECTIONS
                        | SqlState::T_R_DEADLOCK_DETECTED
                        | SqlState::T_R_SERIALIZATION_FAILURE
                        | SqlState::READ_ONLY_SQL_TRANSACTION
                        | SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT
                )
        }
        None => {
            let mut cause = error.source();
            while let Some(inner) = cause {
                if inner.is::<io::Error>() {
                    return true;
                }
                cause = inner.source();
            }
            // A time-out while connecting has no cause.
            let text = error.to_string();
            text.contains("connecting to server")
                || text.contains("timeout")
                || text.contains("communicating")
        }
    }
}

/// Whether the server is there and does not let us in: nobody has done anything yet, and trying again helps nothing.
pub(crate) fn is_refused(error: &Error) -> bool {
    match error.code() {
        Some(code) => matches!(
            *code,
            SqlState::INVALID_PASSWORD
                | SqlState::INVALID_AUTHORIZATION_SPECIFICATION
                | SqlState::INVALID_CATALOG_NAME
        ),
        None => refusal(error).is_some(),
    }
}

/// What whoever reads the error may do about it.
pub(crate) fn remedy(error: &Error) -> Option<&'static str> {
    let Some(code) = error.code() else {
        return refusal(error).or(is_lost(error).then_some("look whether PostgreSQL runs there"));
    };
    Some(match *code {
        SqlState::INVALID_PASSWORD => "look at user and password in its address",
        SqlState::INVALID_AUTHORIZATION_SPECIFICATION => {
            "look at user and sslmode in its address, and at the server's pg_hba.conf"
        }
        SqlState::INVALID_CATALOG_NAME => "look at the database in its address, or make it by `createdb`",
        SqlState::INSUFFICIENT_PRIVILEGE => {
            "its user must be allowed to make schemas in the database (GRANT CREATE ON DATABASE), and to use those of \
             forbear that another user has made"
        }
        SqlState::TOO_MANY_CONNECTIONS => "raise the server's max_connections, or run fewer processes",
        SqlState::DISK_FULL => "make room on the server's disk",
        _ => return None,
    })
}

/// The same for what goes wrong before there is a session. The client tells these apart by their words alone.
fn refusal(error: &Error) -> Option<&'static str> {
    let text = error.to_string();
    let says = |words: &str| text.starts_with(words);
    if says("error performing TLS handshake") {
        Some("look at sslmode and sslrootcert in its address, and whether the server has TLS on")
    } else if says("invalid configuration") {
        Some("the server asks for a password: put it into the address, or into `queue` of the configuration")
    } else if says("authentication error") {
        Some("look at user and password in its address")
    } else {
        None
    }
}

//! What a shared store must be able to do: compare and set several values at once, and call out.

use std::{future::Future, io, time::Duration};

use forbear_core::time::Timestamp;

use super::clock::{self, Tick};

/// One key of a compare-and-set.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// The scope's key.
    pub(crate) key: String,
    /// The value must begin with this; empty: there must be none.
    pub(crate) expect: Vec<u8>,
    /// What it becomes; empty: it stays as it is.
    pub(crate) value: Vec<u8>,
    /// How long the store keeps it.
    pub(crate) keep: Duration,
}

/// What came of a compare-and-set.
#[derive(Debug)]
pub(crate) struct Reply {
    /// The store's time; none from a part of it whose clock is not the store's.
    pub(crate) time: Option<Timestamp>,
    /// None: all was as expected, and all is written. Else nothing is written, and this is what is there.
    pub(crate) found: Option<Vec<Option<Vec<u8>>>>,
}

/// Some of what a store has: keys with their values, and where to go on.
pub(crate) type Page = (Vec<(String, Vec<u8>)>, Option<String>);

/// What a store calls out.
#[derive(Debug)]
pub(crate) enum Push {
    /// A value that somebody has written, or is about to ([`Record::is_notice`](super::record::Record::is_notice)).
    Value(String, Vec<u8>),
    /// Something may have been written that was not called.
    Missed,
    /// It can call no more.
    Gone(LinkError),
}

/// Why a store did not answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// There is no connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It answered with an error: its code, which holds no data, and what that means.
    #[error("{}", answer(.0))]
    Answer(String),
    /// It did not answer in time.
    #[error("the store does not answer")]
    Hung,
}

/// The way to a store.
pub(crate) trait Link: Send + Sync + 'static {
    /// Compares all and sets all, or nothing; with `tell`, everybody who listens is called. The keys lie in one place. Without any
    /// the store tells its time.
    fn swap(&self, writes: &[Write], tell: bool) -> impl Future<Output = Result<Reply, LinkError>> + Send;

    /// Calls everybody who listens, and writes nothing.
    fn call(&self, write: &Write) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Some of the keys that it has, from `cursor` on. A key that changes meanwhile may come twice.
    fn page(&self, cursor: Option<&str>) -> impl Future<Output = Result<Page, LinkError>> + Send;

    /// Connects anew, after a failure.
    fn reconnect(&self) -> impl Future<Output = Result<(), LinkError>> + Send;

    /// Where a key lies: what lies in two places cannot be written at once.
    fn place(&self, _key: &str) -> String {
        String::new()
    }

    /// The member's monotonic clock.
    fn tick(&self) -> Tick {
        clock::of_the_machine()
    }

    /// For how long the member's machine has been suspended, which that clock does not count, in microseconds.
    fn suspended(&self) -> Tick {
        clock::suspended()
    }
}

/// What an answer of a store means, and what to do about it.
fn answer(code: &str) -> String {
    let meaning = match code {
        "READONLY" => "it is a replica that takes no writes; name the primary",
        "LOADING" => "it is still loading its data",
        "OOM" => "its memory is full; raise its maxmemory, or let old keys expire sooner",
        "MISCONF" => "it cannot save to its disk, and so takes no writes",
        "WRONGPASS" | "AUTHENTICATION" => "it refuses this user or password",
        "NOAUTH" => "it wants a password",
        "NOPERM" => {
            "this user may not do what is needed: EVAL, EVALSHA, SCRIPT LOAD, GET, SET, PUBLISH and SUBSCRIBE"
        }
        "NOSCRIPT" => "it forgets the script again and again",
        "BUSY" => "a script of somebody else keeps it busy",
        "CLUSTERDOWN" => "the cluster is not complete",
        "MOVED" | "ASK" | "CROSSSLOT" => "it is part of a cluster; name it as redis+cluster://",
        "NOREPLICAS" => "too few of its replicas are there, and so it takes no writes",
        _ => return format!("the store answered {code}"),
    };
    format!("the store answered {code}: {meaning}")
}

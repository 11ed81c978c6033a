//! What can be wrong with a line, and with the whole input. Never a value: it may be a secret (K1).

use std::{io, path::PathBuf};

use forbear_store::queue::QueueError;

use super::{
    json::FIELDS,
    read::{JSON_LINE_BYTES_MAX, URL_LINE_BYTES_MAX},
};
use crate::client::{TargetError, URL_BYTES_MAX};

/// Why a line is no item. The text says what to do about it.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum LineError {
    /// Its URL is none that can be fetched.
    #[error("{}", target_text(*.0))]
    Url(#[from] TargetError),
    /// A line of JSON that is none.
    #[error("not valid JSON: {what} at character {column}")]
    Json {
        /// What is wrong, in the parser's words.
        what: String,
        /// Where, from 1.
        column: usize,
    },
    /// A whole list in one line.
    #[error("a JSON list; write one object a line, as `jq -c '.[]'` does")]
    List,
    /// No `url`.
    #[error("no field `url`; every item needs one")]
    NoUrl,
    /// A field that does not exist.
    #[error("unknown field `{0}`; known are {FIELDS}")]
    UnknownField(String),
    /// The same field again.
    #[error("field `{0}` is there twice; leave one out")]
    TwiceField(&'static str),
    /// A field with a value that it cannot have.
    #[error("field `{field}` must be {must}")]
    Field {
        /// Which.
        field: &'static str,
        /// What it must be.
        must: &'static str,
    },
    /// Both `body` and `body_base64`.
    #[error("both `body` and `body_base64`; leave one out")]
    TwoBodies,
    /// A header's name or value that HTTP does not allow. The name where it is one.
    #[error("header {0}")]
    Header(String),
    /// Longer than a line may be.
    #[error("the line is too long: more than {}", if *json { bytes(JSON_LINE_BYTES_MAX) } else { bytes(URL_LINE_BYTES_MAX) })]
    TooLong {
        /// Whether it is a line of JSON.
        json: bool,
    },
}

/// Why the input cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// It cannot be opened or read.
    #[error("cannot read {}", path.display())]
    Io {
        /// The file, or `-`.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A directory.
    #[error("{} is a directory; name a file of URLs, or `-` for standard input", path.display())]
    Directory {
        /// It.
        path: PathBuf,
    },
    /// Text, but not in UTF-8.
    #[error("{} is UTF-16; convert it first: iconv -f UTF-16 -t UTF-8", path.display())]
    Utf16 {
        /// The file, or `-`.
        path: PathBuf,
    },
    /// Compressed.
    #[error("{} is compressed; unpack it on the way: zcat FILE | forbear fetch -", path.display())]
    Compressed {
        /// The file, or `-`.
        path: PathBuf,
    },
    /// Not the input that the job was made from (J3).
    #[error(
        "{} is not the input that this job was made from ({was}); give that one, or another -o and --job for this one",
        path.display()
    )]
    OtherInput {
        /// What was given now.
        path: PathBuf,
        /// What the job was made from.
        was: String,
    },
    /// The job cannot take it.
    #[error(transparent)]
    Job(#[from] QueueError),
    /// The importer's thread ended by a bug of its own.
    #[error("the importer died; please report this")]
    Died,
}

fn target_text(error: TargetError) -> String {
    let remedy = match error {
        TargetError::NotAbsolute => "begin it with http:// or https://",
        TargetError::Scheme => "no other is fetched",
        TargetError::Host => "look at what stands between `//` and the path",
        TargetError::Port => "it is a number from 1 to 65535",
        TargetError::TooLong => "few servers take a tenth of that",
    };
    format!("{error}; {remedy}")
}

fn bytes(n: usize) -> String {
    format!("{} MiB", n >> 20)
}

const _: () = assert!(URL_BYTES_MAX <= URL_LINE_BYTES_MAX);

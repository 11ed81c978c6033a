//! What goes in: lines of URLs or of JSON, made into the items of a job.
//!
//! A line that begins with `{` is JSON, every other a URL; a file may mix them. Blank lines and those that begin with `#`
//! are nothing. A line that is no item is kept as a failed one (J5). `docs/reference/input.md` has the fields.

mod error;
mod import;
mod json;
mod lanes;
mod line;
mod read;
mod when;

pub use error::{ImportError, LineError};
pub use import::{ImportEvent, ImportEvents, ImportProgress, Imported, Importer, Source, scan};
pub use line::{BadInput, ItemSpec, Line, parse_line};
pub use read::{JSON_LINE_BYTES_MAX, URL_LINE_BYTES_MAX};

//! One line of input.

use std::{borrow::Cow, fmt};

use forbear_core::time::Timestamp;
use forbear_store::queue::Request;

use super::{error::LineError, json};
use crate::{client::Target, secrets::Redactor};

/// What a line is.
#[derive(Debug)]
pub enum Line {
    /// Blank, or a comment.
    Nothing,
    /// An item.
    Item(Box<ItemSpec>),
    /// Neither.
    Bad(BadInput),
}

/// An item as its line describes it.
///
/// Printed, it shows no more than its id: headers, body and query may hold secrets (K1).
#[derive(Clone)]
pub struct ItemSpec {
    /// The input's own id, in the form of [`NewItem::id`](forbear_store::queue::NewItem::id).
    pub id: Option<String>,
    /// What is to be sent.
    pub request: Request,
    /// Not before this moment.
    pub not_before: Option<Timestamp>,
    /// Where to: its URL, read.
    pub target: Target,
}

impl fmt::Debug for ItemSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ItemSpec")
            .field("id", &self.id)
            .field("request", &self.request)
            .finish_non_exhaustive()
    }
}

/// A line that is no item.
#[derive(Clone)]
pub struct BadInput {
    /// Why.
    pub error: LineError,
    /// What stands for its URL, with all its secrets.
    url: Option<String>,
}

impl BadInput {
    pub(super) fn new(error: LineError, url: Option<String>) -> BadInput {
        BadInput { error, url }
    }

    /// What may be shown as its URL. Nothing, where the line does not look like one: it may be a line of a file of
    /// passwords, given by mistake (K1).
    #[must_use]
    pub fn shown_url(&self, redactor: &Redactor) -> Option<String> {
        /// So much tells which line it was.
        const CHARS_MAX: usize = 2000;
        let url = self.url.as_deref()?;
        let shown = match Target::parse(url) {
            Ok(_) => redactor.url(url),
            Err(_) if !looks_like_a_url(url) => return None,
            Err(_) => redactor.not_a_url(url),
        };
        Some(match shown.char_indices().nth(CHARS_MAX) {
            Some((end, _)) => format!("{}…", &shown[..end]),
            None => shown.into_owned(),
        })
    }
}

impl fmt::Debug for BadInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BadInput").field("error", &self.error).finish_non_exhaustive()
    }
}

/// Reads one line, its end included or not.
///
/// Bytes that are not UTF-8 are kept in a URL as an escape each, so a Latin-1 list goes out byte for byte.
#[must_use]
pub fn parse_line(line: &[u8]) -> Line {
    let line = line.trim_ascii();
    match line.first() {
        None | Some(b'#') => Line::Nothing,
        Some(b'{') => match json::parse(line) {
            Ok(fields) => item(fields),
            Err((error, url)) => Line::Bad(BadInput { error, url }),
        },
        Some(b'[') => Line::Bad(BadInput { error: LineError::List, url: None }),
        Some(_) => item(json::Fields { request: Request::get(to_text(line)), ..json::Fields::default() }),
    }
}

fn item(fields: json::Fields) -> Line {
    let json::Fields { id, request, not_before } = fields;
    match Target::parse(&request.url) {
        Ok(target) => Line::Item(Box::new(ItemSpec { id, request, not_before, target })),
        Err(error) => Line::Bad(BadInput { error: error.into(), url: Some(request.url) }),
    }
}

/// The line as text: what is not UTF-8 becomes an escape for each byte.
fn to_text(line: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(line) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(line.len() + 16);
    for chunk in line.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    Cow::Owned(text)
}

/// Whether a text that cannot be fetched is a URL all the same. `user:password` is none.
fn looks_like_a_url(text: &str) -> bool {
    const WITHOUT_SLASHES: [&str; 9] =
        ["about", "blob", "data", "file", "javascript", "mailto", "tel", "unix", "urn"];
    let Some((scheme, rest)) = text.split_once(':') else { return false };
    let word = scheme.starts_with(|c: char| c.is_ascii_alphabetic())
        && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
    word && (rest.starts_with("//") || WITHOUT_SLASHES.iter().any(|known| known.eq_ignore_ascii_case(scheme)))
}

//! A list of exits: one a line, each with what is to be known of it.

use std::{
    collections::HashMap,
    fmt, fs,
    io::{self, Read},
    path::Path,
    str,
    sync::Arc,
};

use super::{ExitUrl, ExitUrlError};

/// More exits than this no list may have.
pub const ENTRIES_MAX: usize = 100_000;

/// A list of exits is no larger, in bytes.
pub const LIST_BYTES_MAX: u64 = 32 << 20;

/// No price is higher: more is a slip of the keyboard.
pub(crate) const PRICE_MAX: f64 = 1e6;

/// An exit as somebody gave it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Entry {
    /// The proxy.
    pub url: ExitUrl,
    /// Whether one address stands for many: each request, or each session, may leave by another one. Such an exit is not
    /// judged as one address (E4).
    pub gateway: bool,
    /// What a gigabyte (10^9 bytes) through it costs, in whatever currency.
    pub price_per_gb: Option<f64>,
    /// What a request through it costs, in the same currency.
    pub price_per_request: Option<f64>,
    /// Who gave it.
    pub from: GivenBy,
}

/// Who gave an exit.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum GivenBy {
    /// The command line, by the flag of this number, from 1.
    Flag(usize),
    /// A line of a file, from 1.
    Line(Arc<Path>, usize),
    /// A variable of the environment, or a program that uses this library.
    Other,
}

/// Why a line is no entry. Holds no part of the line (K1).
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EntryError {
    /// The exit itself.
    #[error(transparent)]
    Url(#[from] ExitUrlError),
    /// Something else after the exit.
    #[error("after the exit only gateway, price_per_gb=N and price_per_request=N may stand")]
    Word,
    /// A price that is none.
    #[error("a price is a number from 0 to 1000000")]
    Price,
    /// A word that stands twice.
    #[error("a word stands twice")]
    Twice,
    /// An `@` behind a word or a comment: the exit would be cut in the wrong place.
    #[error(
        "cannot tell where the exit ends; write spaces in a password as %20, and comments on lines of their own"
    )]
    Ambiguous,
}

/// Why a list cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ListError {
    /// The file cannot be read.
    #[error("cannot be read: {0}")]
    Io(#[from] io::Error),
    /// Larger than [`LIST_BYTES_MAX`].
    #[error("larger than 32 MiB, so hardly a list of exits")]
    TooLarge,
    /// More than [`ENTRIES_MAX`].
    #[error("more than {ENTRIES_MAX} exits")]
    TooMany,
    /// Not text.
    #[error("line {line} is not UTF-8")]
    NotUtf8 {
        /// The line, from 1.
        line: usize,
    },
    /// Nothing in it.
    #[error("there is no exit in it")]
    Empty,
    /// Lines that are no entries, the first few of them.
    #[error("{}", lines_text(.0))]
    Lines(Vec<(usize, EntryError)>),
}

impl Entry {
    /// An exit that is one address and costs nothing.
    #[must_use]
    pub fn new(url: ExitUrl, from: GivenBy) -> Entry {
        Entry { url, gateway: false, price_per_gb: None, price_per_request: None, from }
    }

    /// Reads a line: an exit, then any of the words `gateway`, `price_per_gb=N` and `price_per_request=N`, then perhaps a
    /// comment. `None` for an empty line and for one that is all comment.
    ///
    /// The exit ends at the first white space behind its last `@`, or at the first white space if it has none.
    ///
    /// # Errors
    /// What is wrong with the line; never a part of the line (K1).
    pub fn parse(line: &str, from: GivenBy) -> Result<Option<Entry>, EntryError> {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            return Ok(None);
        }
        let at = line.rfind('@').unwrap_or(0);
        if line[..at].split_whitespace().skip(1).any(ends_the_exit) {
            return Err(EntryError::Ambiguous);
        }
        let end = line[at..].find(char::is_whitespace).map_or(line.len(), |end| at + end);
        let (url, words) = line.split_at(end);
        let mut entry = Entry::new(ExitUrl::parse(url)?, from);
        for word in words.split_whitespace().take_while(|word| !word.starts_with('#')) {
            entry.word(word)?;
        }
        Ok(Some(entry))
    }

    fn word(&mut self, word: &str) -> Result<(), EntryError> {
        let price = match word.split_once('=') {
            None if word == GATEWAY && self.gateway => return Err(EntryError::Twice),
            None if word == GATEWAY => {
                self.gateway = true;
                return Ok(());
            }
            Some((PER_GB, text)) => (&mut self.price_per_gb, text),
            Some((PER_REQUEST, text)) => (&mut self.price_per_request, text),
            _ => return Err(EntryError::Word),
        };
        let (place, text) = price;
        let found = text.parse().ok().filter(|found| is_price(*found)).ok_or(EntryError::Price)?;
        if place.replace(found).is_some() { Err(EntryError::Twice) } else { Ok(()) }
    }
}

pub(crate) fn is_price(found: f64) -> bool {
    (0.0..=PRICE_MAX).contains(&found)
}

const GATEWAY: &str = "gateway";
const PER_GB: &str = "price_per_gb";
const PER_REQUEST: &str = "price_per_request";

/// A word of a list that cannot belong to a password by chance.
fn ends_the_exit(word: &str) -> bool {
    word.starts_with('#')
        || [GATEWAY, PER_GB, PER_REQUEST].contains(&word.split('=').next().unwrap_or_default())
}

/// Reads a file of exits, one a line. Empty lines, lines that begin with `#`, a byte order mark and CRLF do no harm.
///
/// # Errors
/// All that is wrong with the file; of bad lines the first ten.
pub fn read_list(path: &Path) -> Result<Vec<Entry>, ListError> {
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(LIST_BYTES_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIST_BYTES_MAX {
        return Err(ListError::TooLarge);
    }
    let text = str::from_utf8(&bytes).map_err(|error| {
        let good = &bytes[..error.valid_up_to()];
        ListError::NotUtf8 { line: good.iter().filter(|byte| **byte == b'\n').count() + 1 }
    })?;
    parse_list(text, path)
}

fn parse_list(text: &str, path: &Path) -> Result<Vec<Entry>, ListError> {
    let path: Arc<Path> = path.into();
    let (mut entries, mut wrong) = (Vec::new(), Vec::new());
    for (index, line) in text.strip_prefix('\u{feff}').unwrap_or(text).split('\n').enumerate() {
        match Entry::parse(line, GivenBy::Line(path.clone(), index + 1)) {
            Ok(None) => {}
            Ok(Some(_)) if entries.len() == ENTRIES_MAX => return Err(ListError::TooMany),
            Ok(Some(entry)) => entries.push(entry),
            Err(error) => wrong.push((index + 1, error)),
        }
        if wrong.len() == WRONG_MAX {
            break;
        }
    }
    match (wrong.is_empty(), entries.is_empty()) {
        (false, _) => Err(ListError::Lines(wrong)),
        (true, true) => Err(ListError::Empty),
        (true, false) => Ok(entries),
    }
}

/// More bad lines are noise.
const WRONG_MAX: usize = 10;

fn lines_text(lines: &[(usize, EntryError)]) -> String {
    lines.iter().map(|(line, error)| format!("line {line}: {error}")).collect::<Vec<_>>().join("\n")
}

/// Drops entries whose exit stands earlier in the list, and gives them back, each with the one that it repeats.
pub(crate) fn without_repeats(entries: Vec<Entry>) -> (Vec<Entry>, Vec<(GivenBy, GivenBy)>) {
    let mut seen: HashMap<ExitUrl, usize> = HashMap::with_capacity(entries.len());
    let mut kept: Vec<Entry> = Vec::with_capacity(entries.len());
    let mut repeats = Vec::new();
    for entry in entries {
        match seen.get(&entry.url) {
            Some(first) => repeats.push((entry.from, kept[*first].from.clone())),
            None => {
                seen.insert(entry.url.clone(), kept.len());
                kept.push(entry);
            }
        }
    }
    (kept, repeats)
}

impl From<ExitUrl> for Entry {
    fn from(url: ExitUrl) -> Entry {
        Entry::new(url, GivenBy::Other)
    }
}

impl fmt::Display for GivenBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            GivenBy::Flag(nth) => write!(f, "--proxy number {nth}"),
            GivenBy::Line(path, line) => write!(f, "{}:{line}", path.display()),
            GivenBy::Other => f.write_str("neither flag nor file"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(text: &str) -> Result<Vec<Entry>, ListError> {
        parse_list(text, Path::new("proxies.txt"))
    }

    #[test]
    fn e6_a_list_has_one_exit_a_line() {
        let text = "\u{feff}# bought in May\r\n\r\nhttp://u:p#1@a:1\r\n  b:2:u:p  \r\n\t# more\nsocks5://c\n";
        let entries = list(text).unwrap();
        let shown: Vec<_> = entries.iter().map(|e| format!("{} {}", e.from, e.url)).collect();
        assert_eq!(
            shown,
            ["proxies.txt:3 http://a:1", "proxies.txt:4 http://b:2", "proxies.txt:6 socks5://c:1080"]
        );
        assert_eq!(entries[0].url.credentials(), Some((&b"u"[..], &b"p#1"[..])));
        assert_eq!(entries[1].url.credentials(), Some((&b"u"[..], &b"p"[..])));
        assert!(entries.iter().all(|e| !e.gateway && e.price_per_gb.is_none()));
    }

    #[test]
    fn e6_words_follow_the_exit() {
        for (line, password, gateway, per_gb, per_request) in [
            ("u:p@h gateway", "p", true, None, None),
            ("u:p@h\tprice_per_gb=5", "p", false, Some(5.0), None),
            ("u:p@h price_per_request=0.001 gateway price_per_gb=.5", "p", true, Some(0.5), Some(0.001)),
            ("u:p@h gateway # ours, price_per_gb=9", "p", true, None, None),
            ("u:sp ace@h gateway", "sp ace", true, None, None),
            ("h:80:u:p gateway", "p", true, None, None),
        ] {
            let entry = Entry::parse(line, GivenBy::Flag(1)).unwrap().unwrap();
            let found = (entry.gateway, entry.price_per_gb, entry.price_per_request);
            assert_eq!(found, (gateway, per_gb, per_request), "{line}");
            assert_eq!(entry.url.credentials().unwrap().1, password.as_bytes(), "{line}");
        }
    }

    #[test]
    fn e6_what_is_no_entry_is_refused_with_its_line() {
        for (line, error) in [
            ("u:p@h fast", EntryError::Word),
            ("u:p@h gateway=1", EntryError::Word),
            ("u:p@h Gateway", EntryError::Word),
            ("u:p@h price_per_gb", EntryError::Word),
            ("u:p@h price=1", EntryError::Word),
            ("u:p@h gateway gateway", EntryError::Twice),
            ("u:p@h price_per_gb=1 price_per_gb=1", EntryError::Twice),
            ("u:p@h price_per_gb=", EntryError::Price),
            ("u:p@h price_per_gb=-1", EntryError::Price),
            ("u:p@h price_per_gb=nan", EntryError::Price),
            ("u:p@h price_per_gb=inf", EntryError::Price),
            ("u:p@h price_per_gb=1e7", EntryError::Price),
            // An address in a comment must not become the proxy that the password is sent to.
            ("http://u:p@h:1 # ask me@example.com", EntryError::Ambiguous),
            ("http://u:p@h:1 gateway me@example.com", EntryError::Ambiguous),
            ("h:80:u:p price_per_gb=1 x@y", EntryError::Ambiguous),
            ("socks4://u:p@h", EntryError::Url(ExitUrlError::Scheme)),
            ("h:80:u:sp ace", EntryError::Word),
        ] {
            let found = list(&format!("a:1\n\n{line}\n"));
            assert!(matches!(&found, Err(ListError::Lines(l)) if *l == [(3, error)]), "{line}: {found:?}");
        }
        let found = list("u:p@h x\na:1\nu:p@h y\n").unwrap_err().to_string();
        assert!(found.starts_with("line 1: ") && found.contains("\nline 3: "), "{found}");
    }

    #[test]
    fn c4_a_list_is_bounded() {
        assert!(matches!(list("# nothing\n\n"), Err(ListError::Empty)));
        assert!(matches!(list(&"h\n".repeat(ENTRIES_MAX)), Ok(entries) if entries.len() == ENTRIES_MAX));
        assert!(matches!(list(&"h\n".repeat(ENTRIES_MAX + 1)), Err(ListError::TooMany)));
        assert!(
            matches!(list(&"h x\n".repeat(99)), Err(ListError::Lines(lines)) if lines.len() == WRONG_MAX)
        );
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("list");
        fs::File::create(&path).unwrap().set_len(LIST_BYTES_MAX + 1).unwrap();
        assert!(matches!(read_list(&path), Err(ListError::TooLarge)));
        fs::write(&path, b"a:1\nu:p\xff@h\n").unwrap();
        assert!(matches!(read_list(&path), Err(ListError::NotUtf8 { line: 2 })));
        assert!(matches!(read_list(&dir.path().join("none")), Err(ListError::Io(_))));
    }

    #[test]
    fn s2_the_same_exit_twice_counts_once() {
        let entries = list("http://u:p@h:80\nu:q@h\nh:80:u:p\nHTTP://u:%70@H gateway\n").unwrap();
        let (kept, repeats) = without_repeats(entries);
        assert_eq!(kept.len(), 2);
        let repeats: Vec<_> = repeats.iter().map(|(twice, first)| format!("{twice} {first}")).collect();
        assert_eq!(repeats, ["proxies.txt:3 proxies.txt:1", "proxies.txt:4 proxies.txt:1"]);
    }

    #[test]
    fn k1_no_error_of_a_list_holds_a_part_of_it() {
        for line in [
            "http://u:S3cr3t@h S3cr3t",
            "http://u:S3cr3t@h price_per_gb=S3cr3t",
            "S3cr3t://u:S3cr3t@h",
            "http://u:S3cr3t@h/S3cr3t",
            "h:S3cr3t:u:S3cr3t",
            "http://u:S3cr3t@h:S3cr3t",
            "u:S3cr3t@S3cr3t S3cr3t@S3cr3t S3cr3t",
        ] {
            let error = list(line).unwrap_err();
            assert!(!format!("{error} {error:?}").contains("S3cr3t"), "{line}: {error:?}");
        }
        let entries = list("http://us3r:S3cr3t@h").unwrap();
        assert!(!format!("{entries:?}").contains("S3cr3t") && !format!("{entries:?}").contains("us3r"));
    }
}

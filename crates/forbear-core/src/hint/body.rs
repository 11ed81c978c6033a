//! Finding a few fields in a body (H2) without reading it whole into memory.
//!
//! Not `serde_json`: what arrives here is a *prefix* of a body (K4), often cut in the middle of a value, and of it a
//! handful of scalars are wanted. This scanner walks the text once, keeps what it has found when the text ends or goes
//! wrong, allocates for the wanted fields only, and hands numbers over as they were written.

/// As much of a body as is looked at.
pub(crate) const BODY_MAX: usize = 64 * 1024;
/// Deeper documents are left: error envelopes of known services nest five deep.
const DEPTH_MAX: usize = 32;
/// Wanted fields that are kept; a body made of nothing but `"code"` must not fill memory.
const FOUND_MAX: usize = 64;

/// A scalar under a wanted key.
#[derive(Debug)]
pub(crate) struct Found<'a> {
    /// The keys from the root, joined with dots; arrays leave no trace: `error.details.retryDelay`.
    pub(crate) path: String,
    /// The last key.
    pub(crate) key: &'a [u8],
    /// A string without its quotes (escapes are left as written), or a number or word as written.
    pub(crate) text: &'a [u8],
}

/// Collects the scalars whose key is `wanted` from a JSON text, as far as it can be read.
pub(crate) fn find<'a>(body: &'a [u8], wanted: impl Fn(&[u8]) -> bool) -> Vec<Found<'a>> {
    let body = &body[..body.len().min(BODY_MAX)];
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let mut found = Vec::new();
    let mut scan = Scan { rest: body, open: Vec::new() };
    if matches!(scan.peek(), Some(b'{' | b'[')) {
        let _cut_short = scan.walk(&wanted, &mut found);
    }
    found
}

/// A container whose end has not been seen. An object's key is the one being read.
#[derive(Clone, Copy)]
enum Open<'a> {
    Object(&'a [u8]),
    Array,
}

struct Scan<'a> {
    rest: &'a [u8],
    open: Vec<Open<'a>>,
}

impl<'a> Scan<'a> {
    /// `None` when the text ended early or is no JSON; what was found until then stands.
    fn walk(&mut self, wanted: &impl Fn(&[u8]) -> bool, found: &mut Vec<Found<'a>>) -> Option<()> {
        loop {
            let ended = match self.peek()? {
                b'{' => self.enter(Open::Object(b""))?,
                b'[' => self.enter(Open::Array)?,
                b'"' => {
                    let text = self.string()?;
                    self.keep(text, wanted, found)?;
                    true
                }
                _ => {
                    let text = self.word()?;
                    self.keep(text, wanted, found)?;
                    true
                }
            };
            if ended && !self.leave()? {
                return Some(());
            }
        }
    }

    /// The next byte that is not white space.
    fn peek(&mut self) -> Option<u8> {
        let skip = self.rest.iter().take_while(|b| b.is_ascii_whitespace()).count();
        self.rest = &self.rest[skip..];
        self.rest.first().copied()
    }

    /// Opens a container. True if it was empty, and so is closed again.
    fn enter(&mut self, what: Open<'a>) -> Option<bool> {
        if self.open.len() == DEPTH_MAX {
            return None;
        }
        self.rest = &self.rest[1..];
        let end = if matches!(what, Open::Array) { b']' } else { b'}' };
        if self.peek()? == end {
            self.rest = &self.rest[1..];
            return Some(true);
        }
        self.open.push(what);
        if matches!(what, Open::Object(_)) {
            self.key()?;
        }
        Some(false)
    }

    /// Goes on after a value: to the next member, or out of the containers that end here. False at the end of the text.
    fn leave(&mut self) -> Option<bool> {
        while let Some(last) = self.open.last().copied() {
            let byte = self.peek()?;
            self.rest = &self.rest[1..];
            match (byte, last) {
                (b',', Open::Object(_)) => return self.key().map(|()| true),
                (b',', Open::Array) => return Some(true),
                (b'}', Open::Object(_)) | (b']', Open::Array) => {
                    self.open.pop();
                }
                _ => return None,
            }
        }
        Some(false)
    }

    fn key(&mut self) -> Option<()> {
        if self.peek()? != b'"' {
            return None;
        }
        let key = self.string()?;
        if self.peek()? != b':' {
            return None;
        }
        self.rest = &self.rest[1..];
        *self.open.last_mut()? = Open::Object(key);
        Some(())
    }

    /// From the opening quote; returns what is between the quotes.
    fn string(&mut self) -> Option<&'a [u8]> {
        let text = &self.rest[1..];
        let mut at = 0;
        loop {
            match *text.get(at)? {
                b'"' => break,
                b'\\' => at += 2,
                _ => at += 1,
            }
        }
        self.rest = &text[at + 1..];
        Some(&text[..at])
    }

    /// A number, `true`, `false` or `null`. A word that the text's end may have cut is not trusted.
    fn word(&mut self) -> Option<&'a [u8]> {
        let len =
            self.rest.iter().position(|b| matches!(b, b',' | b'}' | b']') || b.is_ascii_whitespace())?;
        let (word, rest) = self.rest.split_at(len);
        self.rest = rest;
        (!word.is_empty()).then_some(word)
    }

    /// Keeps a scalar if its key is wanted. `None` once enough has been found.
    fn keep(
        &self,
        text: &'a [u8],
        wanted: &impl Fn(&[u8]) -> bool,
        found: &mut Vec<Found<'a>>,
    ) -> Option<()> {
        let keys =
            || self.open.iter().filter_map(|o| if let Open::Object(key) = o { Some(*key) } else { None });
        let Some(key) = keys().next_back() else { return Some(()) };
        if !wanted(key) {
            return Some(());
        }
        if found.len() == FOUND_MAX {
            return None;
        }
        let path = keys().map(String::from_utf8_lossy).collect::<Vec<_>>().join(".");
        found.push(Found { path, key, text });
        Some(())
    }
}

/// The text after the first occurrence of `needle`, letter case aside.
pub(crate) fn after<'a>(body: &'a [u8], needle: &str) -> Option<&'a [u8]> {
    let needle = needle.as_bytes();
    let first = needle.first()?.to_ascii_lowercase();
    let body = &body[..body.len().min(BODY_MAX)];
    let last = body.len().checked_sub(needle.len())?;
    (0..=last)
        .find(|at| {
            body[*at].to_ascii_lowercase() == first
                && body[*at..*at + needle.len()].eq_ignore_ascii_case(needle)
        })
        .map(|at| &body[at + needle.len()..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(body: &str) -> Vec<String> {
        find(body.as_bytes(), |_| true)
            .iter()
            .map(|f| format!("{}={}", f.path, String::from_utf8_lossy(f.text)))
            .collect()
    }

    #[test]
    fn h2_fields_are_found_with_their_paths() {
        assert_eq!(
            all(r#"{"a":1.50,"b":{"c":"x\"y","d":[{"e":true},null,"s"]},"f":{},"g":[]}"#),
            ["a=1.50", r#"b.c=x\"y"#, "b.d.e=true", "b.d=null", "b.d=s"]
        );
        assert_eq!(all(r#" [{"k": "v"} , {"k":"w"}] "#), ["k=v", "k=w"]);
        assert_eq!(all("\u{feff}{\"a\":1}"), ["a=1"]);
    }

    #[test]
    fn h2_a_cut_body_gives_what_it_still_has() {
        assert_eq!(all(r#"{"a":1,"b":"un"#), ["a=1"]);
        assert_eq!(all(r#"{"a":1,"b":12"#), ["a=1"]);
        assert_eq!(all(r#"{"a":1,"b""#), ["a=1"]);
        assert_eq!(all(r#"{"a":1,"b":"x\"#), ["a=1"]);
    }

    #[test]
    fn h2_what_is_no_json_has_no_fields() {
        for body in ["", "<html>", "\"a\"", "12", "{", "[", "{a:1}", "{\"a\" 1}", "]", "{]", "{\"a\":}"] {
            assert_eq!(all(body), [""; 0], "{body:?}");
        }
    }

    #[test]
    fn k4_depth_and_number_of_fields_are_bounded() {
        let deep = "[".repeat(100_000);
        assert!(all(&deep).is_empty());
        let wide = format!("{{{}\"z\":1}}", "\"code\":1,".repeat(1000));
        assert_eq!(all(&wide).len(), FOUND_MAX);
    }

    #[test]
    fn h2_sentences_are_found_whatever_their_case() {
        assert_eq!(after(b"Please TRY again in 20ms.", "try again in "), Some(&b"20ms."[..]));
        assert_eq!(after(b"short", "much longer than that"), None);
    }
}

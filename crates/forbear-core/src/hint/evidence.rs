//! What decided a reading, kept for records and people (H5), with nothing in it that looks like a credential (K1).

use std::borrow::Cow;

use super::Kind;

/// Bytes of a raw value that are kept.
pub const VALUE_MAX: usize = 120;

/// Runs of at least this many token characters, with letters and digits mixed, are taken for a credential.
const SECRET_MIN: usize = 20;

/// The field that decided, its raw value, and why in a line.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Evidence {
    field: Cow<'static, str>,
    value: String,
    reason: &'static str,
}

impl Evidence {
    pub(crate) fn new(field: &str, raw: &[u8], reason: &'static str) -> Evidence {
        Evidence { field: Cow::Owned(printable(field.as_bytes())), value: printable(raw), reason }
    }

    pub(crate) fn of_reason(reason: &'static str) -> Evidence {
        Evidence { reason, ..Evidence::default() }
    }

    pub(crate) fn of_status(kind: Kind) -> Evidence {
        Evidence::of_reason(match kind {
            Kind::ProxyAuth => "the proxy rejects our credentials; waiting does not cure that",
            Kind::Challenge => "a challenge for browsers; waiting does not cure that",
            _ => "the origin rejects our credentials; waiting does not cure that",
        })
    }

    /// The header's name in lower case, or `body:` and the path of the field; empty if the status alone decided.
    #[must_use]
    pub fn field(&self) -> &str {
        &self.field
    }

    /// The raw value, cut to [`VALUE_MAX`] bytes, printable, and with `***` for what looks like a credential.
    #[must_use]
    pub fn value(&self) -> &str {
        &self.value
    }

    /// Why, in a line for people.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        self.reason
    }
}

/// Cuts, redacts and makes printable. Redacting comes before cutting, or half a token would escape it.
fn printable(raw: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = &raw[..raw.len().min(4 * VALUE_MAX)];
    let mut after_scheme = false;
    while let Some(first) = rest.first() {
        let len = rest.iter().take_while(|b| is_token(**b)).count();
        if len == 0 {
            text.push(if first.is_ascii_graphic() || *first == b' ' { char::from(*first) } else { '.' });
            // `key=`, `token: ` and `Bearer ` announce what follows.
            after_scheme &= matches!(first, b' ' | b'=' | b':' | b'"' | b'\'');
            rest = &rest[1..];
            continue;
        }
        let (word, tail) = rest.split_at(len);
        if after_scheme || is_secret(word) {
            text.push_str("***");
        } else {
            text.push_str(&String::from_utf8_lossy(word));
        }
        after_scheme = announces(word);
        rest = tail;
    }
    if text.len() > VALUE_MAX {
        text.truncate(VALUE_MAX); // all ASCII
    }
    text
}

/// The characters of tokens in any common alphabet. A dash or a colon would take dates for tokens.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.' | b'+' | b'/' | b'~')
}

fn is_secret(word: &[u8]) -> bool {
    let digits = word.iter().filter(|b| b.is_ascii_digit()).count();
    let letters = word.iter().filter(|b| b.is_ascii_alphabetic()).count();
    let prefixed = [
        &b"sk-"[..],
        b"sk_",
        b"pk_",
        b"rk_",
        b"ghp_",
        b"gho_",
        b"ghs_",
        b"github_pat_",
        b"xox",
        b"eyJ",
        b"AKIA",
    ]
    .iter()
    .any(|p| word.starts_with(p));
    // Words with dashes, such as policy names, have few digits; a date has few letters.
    (prefixed && word.len() >= 12) || (word.len() >= SECRET_MIN && digits >= 3 && letters >= 6)
}

fn announces(word: &[u8]) -> bool {
    const WORDS: [&str; 12] = [
        "bearer",
        "basic",
        "digest",
        "token",
        "password",
        "passwd",
        "secret",
        "authorization",
        "apikey",
        "api_key",
        "api-key",
        "pk",
    ];
    WORDS.iter().any(|w| word.eq_ignore_ascii_case(w.as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn h5_values_are_kept_as_they_were() {
        for raw in [
            "120",
            "Sun, 29 Nov 2026 13:05:00 GMT",
            "2026-11-29T13:05:00.243057Z",
            "\"default\";r=0;t=30",
            "limit=10, remaining=0, reset=5",
            "60:transaction:key, 2700:default;error;security:organization",
            "jira-quota-global-based",
        ] {
            assert_eq!(printable(raw.as_bytes()), raw);
        }
    }

    #[test]
    fn h5_credentials_and_control_bytes_are_not() {
        for (raw, expected) in [
            ("Bearer abc", "Bearer ***"),
            ("token=abc;r=0", "token=***;r=0"),
            ("key sk-proj-a1b2c3d4e5f6", "key ***"),
            ("a\u{7}b\u{ff}", "a.b.."),
            ("q=10;pk=:c2RmakxK:", "q=10;pk=:***:"),
            ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", "***"),
            ("x 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b", "x ***"),
        ] {
            assert_eq!(printable(raw.as_bytes()), expected);
        }
        assert_eq!(printable(&[b'9'; 400]).len(), VALUE_MAX);
        let long = format!("{} sk-live-{}", "9".repeat(VALUE_MAX - 6), "a1".repeat(20));
        assert!(!printable(long.as_bytes()).contains("sk-"), "cut after redacting");
    }
}

//! Values that cannot be printed (K1).

use std::fmt;

/// A text that no formatter shows: `Debug` gives `***`, and there is no `Display`.
#[derive(Clone, Eq, PartialEq)]
pub struct Secret(String);

impl Secret {
    /// Takes the text in; from here it comes out by [`expose`](Secret::expose) alone.
    #[must_use]
    pub fn new(text: String) -> Secret {
        Secret(text)
    }

    /// The text itself, for the wire and for nothing else.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// A header that a host's requests carry. Its name may be shown, its value never.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SecretHeader {
    /// The header's name, lower-case.
    pub name: http::HeaderName,
    /// The value; already known to be a legal one.
    pub value: Secret,
}

impl SecretHeader {
    /// The value for the wire, marked sensitive so that HTTP/2 does not index it and `Debug` does not show it.
    ///
    /// # Panics
    /// Never: a value that is no legal header value is refused when the settings are read.
    #[must_use]
    pub fn to_value(&self) -> http::HeaderValue {
        let mut value =
            http::HeaderValue::from_bytes(self.value.expose().as_bytes()).expect("checked when it was read");
        value.set_sensitive(true);
        value
    }
}

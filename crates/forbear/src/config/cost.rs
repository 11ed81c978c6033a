//! What requests cost of a limit (`[cost]`, C1): the estimate before, and where the real cost is read after.

use std::{fmt, num::NonZeroU32, str::FromStr};

use http::HeaderName;

use super::{given::Given, keys::Key};

/// How the cost of a request is reckoned, at the top level or for one host; what a host leaves out is as at the top level.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct CostSettings {
    /// What a request is taken to cost, where neither its item nor its body says. Default 1.
    pub estimate: Option<NonZeroU32>,
    /// Where the request's JSON body says what it may cost, instead of `estimate`: the sum of the numbers that are there
    /// (`/max_tokens`). Default: nowhere.
    pub request: Option<Vec<Pointer>>,
    /// What each byte of the request's body adds to the estimate. Default 0; a token is about four bytes of English.
    pub per_byte: Option<f64>,
    /// The header of a response that tells the real cost. Default none.
    pub header: Option<HeaderName>,
    /// Where a response's JSON body tells the real cost: the sum of the numbers that are there. Default: nowhere.
    pub body: Option<Vec<Pointer>>,
    /// What the told number is multiplied by. Default 1.
    pub factor: Option<f64>,
}

impl CostSettings {
    /// Puts what `other` says over what stands here.
    #[must_use]
    pub fn under(&self, other: &CostSettings) -> CostSettings {
        CostSettings {
            estimate: other.estimate.or(self.estimate),
            request: other.request.clone().or_else(|| self.request.clone()),
            per_byte: other.per_byte.or(self.per_byte),
            header: other.header.clone().or_else(|| self.header.clone()),
            body: other.body.clone().or_else(|| self.body.clone()),
            factor: other.factor.or(self.factor),
        }
    }
}

/// A place in a JSON text ([RFC 6901]): `/usage/total_tokens`.
///
/// ```
/// use forbear::config::Pointer;
/// assert!("/usage/total_tokens".parse::<Pointer>().is_ok());
/// assert!("usage.total_tokens".parse::<Pointer>().is_err());
/// ```
///
/// [RFC 6901]: https://www.rfc-editor.org/rfc/rfc6901
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pointer(String);

/// Why a text is no [`Pointer`].
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PointerError {
    /// Section 3: every part has a slash in front.
    #[error("a JSON pointer begins with `/`, like \"/usage/total_tokens\"")]
    NoSlash,
    /// Section 3: `~` stands only in `~0` and `~1`.
    #[error("in a JSON pointer `~` is written `~0`, and `/` in a name `~1`")]
    Escape,
    /// Nobody needs so long a one.
    #[error("a JSON pointer of more than {POINTER_MAX} bytes")]
    TooLong,
}

impl Pointer {
    /// As it was written, which is what `serde_json` takes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Pointer, PointerError> {
        if text.len() > POINTER_MAX {
            return Err(PointerError::TooLong);
        }
        if !text.starts_with('/') {
            return Err(PointerError::NoSlash);
        }
        let mut escapes = text.split('~').skip(1);
        if escapes.any(|rest| !rest.starts_with(['0', '1'])) {
            return Err(PointerError::Escape);
        }
        Ok(Pointer(text.to_owned()))
    }
}

impl fmt::Display for Pointer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The keys of `[cost]` and of `[hosts."NAME".cost]`.
pub(super) static COST: &[Key<CostSettings>] = &[
    Key {
        name: "estimate",
        takes: "a count from 1",
        set: |c, g| {
            c.estimate = Some(g.large_count("a request that costs nothing is not paced")?);
            Ok(())
        },
        show: |c| c.estimate.map(|n| n.to_string()),
    },
    Key {
        name: "request",
        takes: "a JSON pointer or several, like \"/max_tokens\"",
        set: |c, g| {
            c.request = Some(pointers(g)?);
            Ok(())
        },
        show: |c| c.request.as_deref().map(shown),
    },
    Key {
        name: "per_byte",
        takes: "a number from 0 to 1000000",
        set: |c, g| {
            c.per_byte = Some(within(g, 0.0)?);
            Ok(())
        },
        show: |c| c.per_byte.map(|n| n.to_string()),
    },
    Key {
        name: "header",
        takes: "a header's name",
        set: |c, g| {
            let name = g.free_text()?;
            c.header =
                Some(HeaderName::from_bytes(name.as_bytes()).map_err(|_| "not a header's name".to_owned())?);
            Ok(())
        },
        show: |c| c.header.as_ref().map(ToString::to_string),
    },
    Key {
        name: "body",
        takes: "a JSON pointer or several, like \"/usage/total_tokens\"",
        set: |c, g| {
            c.body = Some(pointers(g)?);
            Ok(())
        },
        show: |c| c.body.as_deref().map(shown),
    },
    Key {
        name: "factor",
        takes: "a number above 0, up to 1000000",
        set: |c, g| {
            let factor = within(g, f64::MIN_POSITIVE)?;
            c.factor = Some(factor);
            Ok(())
        },
        show: |c| c.factor.map(|n| n.to_string()),
    },
];

/// One pointer, or a list of them.
fn pointers(given: Given<'_>) -> Result<Vec<Pointer>, String> {
    let texts = match given.free_text() {
        Ok(one) => vec![one],
        Err(_) => given.texts()?.into_iter().map(str::to_owned).collect(),
    };
    if texts.is_empty() || texts.len() > POINTERS_MAX {
        return Err(format!("from one to {POINTERS_MAX} pointers"));
    }
    texts.iter().map(|text| text.parse()).collect::<Result<_, PointerError>>().map_err(|e| e.to_string())
}

fn within(given: Given<'_>, least: f64) -> Result<f64, String> {
    let number = given.float()?;
    if (least..=NUMBER_MAX).contains(&number) {
        Ok(number)
    } else {
        Err(format!(
            "must be {} and at most {NUMBER_MAX}",
            if least > 0.0 { "above 0" } else { "at least 0" }
        ))
    }
}

fn shown(pointers: &[Pointer]) -> String {
    pointers.iter().map(Pointer::as_str).collect::<Vec<_>>().join(", ")
}

const POINTER_MAX: usize = 256;
/// Input, output, cached, thinking: a bill has few lines.
const POINTERS_MAX: usize = 8;
const NUMBER_MAX: f64 = 1_000_000.0;

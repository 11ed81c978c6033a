//! What one limit counts: combinations of origin, account, endpoint and group (S1).

use std::{fmt, str::FromStr};

/// One combination that a limit may count, such as `origin+account`.
///
/// A request belongs to it if it has every part: without an account it has no `origin+account`. `account` or `group`
/// alone counts over all origins.
///
/// ```
/// use forbear::config::Scope;
/// let scope: Scope = "account+origin".parse().unwrap();
/// assert_eq!(scope.to_string(), "origin+account");
/// assert!(scope.origin() && scope.account() && !scope.endpoint());
/// assert!("endpoint".parse::<Scope>().is_err()); // an endpoint of which origin?
/// ```
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Scope(u8);

/// Why a text is no [`Scope`].
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ScopeError {
    /// A part that is none of the four words.
    #[error("`{0}` is no part of a scope; use `origin`, `account`, `endpoint`, `group`, joined by `+`")]
    UnknownPart(String),
    /// The same part twice.
    #[error("`{0}` stands twice in one scope; once is enough")]
    Repeated(String),
    /// An endpoint is a path pattern *of* something.
    #[error("`endpoint` alone counts nothing; write `origin+endpoint` or `group+endpoint`")]
    EndpointAlone,
    /// An origin lies inside its group, so the pair is just the origin.
    #[error("an origin is part of its group; write `origin` or `group`, not both in one scope")]
    OriginInGroup,
}

impl Scope {
    /// The origin alone: the widest scope of a request to one server, and where a limit of unknown scope falls (S3).
    pub const ORIGIN: Scope = Scope(ORIGIN);
    /// The origin, apart for each account.
    pub const ORIGIN_ACCOUNT: Scope = Scope(ORIGIN | ACCOUNT);
    /// The origin, apart for each of its endpoints.
    pub const ORIGIN_ENDPOINT: Scope = Scope(ORIGIN | ENDPOINT);
    /// All origins of a group together.
    pub const GROUP: Scope = Scope(GROUP);
    /// An account over all origins.
    pub const ACCOUNT: Scope = Scope(ACCOUNT);

    /// Whether origins are counted apart.
    #[must_use]
    pub const fn origin(self) -> bool {
        self.0 & ORIGIN != 0
    }

    /// Whether accounts are counted apart.
    #[must_use]
    pub const fn account(self) -> bool {
        self.0 & ACCOUNT != 0
    }

    /// Whether endpoints are counted apart.
    #[must_use]
    pub const fn endpoint(self) -> bool {
        self.0 & ENDPOINT != 0
    }

    /// Whether the origins of a group are counted together.
    #[must_use]
    pub const fn group(self) -> bool {
        self.0 & GROUP != 0
    }
}

impl FromStr for Scope {
    type Err = ScopeError;

    fn from_str(text: &str) -> Result<Scope, ScopeError> {
        let mut bits = 0;
        for part in text.split('+').map(str::trim) {
            let (_, bit) = PARTS
                .iter()
                .find(|(name, _)| *name == part)
                .ok_or(ScopeError::UnknownPart(part.to_owned()))?;
            if bits & bit != 0 {
                return Err(ScopeError::Repeated(part.to_owned()));
            }
            bits |= bit;
        }
        if bits & ENDPOINT != 0 && bits & (ORIGIN | GROUP) == 0 {
            return Err(ScopeError::EndpointAlone);
        }
        if bits & ORIGIN != 0 && bits & GROUP != 0 {
            return Err(ScopeError::OriginInGroup);
        }
        Ok(Scope(bits))
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> =
            PARTS.iter().filter(|(_, bit)| self.0 & bit != 0).map(|(name, _)| *name).collect();
        f.write_str(&names.join("+"))
    }
}

const ORIGIN: u8 = 1;
const GROUP: u8 = 2;
const ACCOUNT: u8 = 4;
const ENDPOINT: u8 = 8;
/// In the order in which they are written.
const PARTS: [(&str, u8); 4] =
    [("origin", ORIGIN), ("group", GROUP), ("account", ACCOUNT), ("endpoint", ENDPOINT)];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s1_scopes_are_combinations_of_four_words() {
        for (text, expected) in [
            ("origin", Ok("origin")),
            ("account + origin", Ok("origin+account")),
            ("endpoint+account+origin", Ok("origin+account+endpoint")),
            ("group+endpoint", Ok("group+endpoint")),
            ("account", Ok("account")),
            ("group+account", Ok("group+account")),
            ("", Err(ScopeError::UnknownPart(String::new()))),
            ("host", Err(ScopeError::UnknownPart("host".into()))),
            ("origin+", Err(ScopeError::UnknownPart(String::new()))),
            ("origin+origin", Err(ScopeError::Repeated("origin".into()))),
            ("endpoint", Err(ScopeError::EndpointAlone)),
            ("account+endpoint", Err(ScopeError::EndpointAlone)),
            ("group+origin", Err(ScopeError::OriginInGroup)),
        ] {
            assert_eq!(text.parse::<Scope>().map(|s| s.to_string()), expected.map(str::to_owned), "{text}");
        }
    }

    #[test]
    fn s1_the_named_scopes_are_what_they_say() {
        for (scope, text) in [
            (Scope::ORIGIN, "origin"),
            (Scope::ORIGIN_ACCOUNT, "origin+account"),
            (Scope::ORIGIN_ENDPOINT, "origin+endpoint"),
            (Scope::GROUP, "group"),
            (Scope::ACCOUNT, "account"),
        ] {
            assert_eq!(text.parse(), Ok(scope));
        }
    }
}

//! What must not be shown, and who somebody is without saying what they know (K1).
//!
//! A secret is known by its name: of a query parameter, of a header, or as the user name of a URL. The names that always
//! count are [`SECRET_QUERY`] and those that [`is_secret`] knows; `[secrets]` adds to them.

use std::borrow::Cow;

use base64::Engine as _;
use http::HeaderName;

use crate::{
    client::is_secret,
    config::{SecretHeader, SecretNames},
};

/// Names of query parameters whose values are never shown, besides those in `[secrets]`.
///
/// Compared without regard to case, escapes, and whether words are joined by `_`, `-` or nothing. They are whole names, not
/// parts of names: `page_token` tells one page from the next, and a record that hid it could not be told from another.
pub const SECRET_QUERY: [&str; 25] = [
    "access_key",
    "access_token",
    "api_key",
    "api_token",
    "app_key",
    "app_secret",
    "auth",
    "auth_token",
    "authorization",
    "client_secret",
    "id_token",
    "jwt",
    "key",
    "passwd",
    "password",
    "pwd",
    "refresh_token",
    "secret",
    "session_token",
    "sig",
    "signature",
    "token",
    "x_amz_security_token",
    "x_amz_signature",
    "x_goog_signature",
];

/// What stands in place of a secret.
pub const HIDDEN: &str = "***";

/// Hides the values of secret names. Cheap to ask; build it once a run.
///
/// ```
/// use forbear::{config::SecretNames, secrets::Redactor};
/// let redactor = Redactor::new(&SecretNames::default());
/// assert_eq!(redactor.url("http://me:pw@h/a?q=1&api_key=s3cret#top"), "http://h/a?q=1&api_key=***#top");
/// ```
#[derive(Clone, Debug)]
pub struct Redactor {
    /// Folded by [`fold`], sorted.
    query: Vec<Vec<u8>>,
    headers: Vec<HeaderName>,
}

impl Redactor {
    /// A redactor for the built-in names and `names`.
    #[must_use]
    pub fn new(names: &SecretNames) -> Redactor {
        let mut query: Vec<Vec<u8>> = SECRET_QUERY
            .iter()
            .copied()
            .chain(names.query.iter().map(String::as_str))
            .map(|name| fold(name).collect())
            .collect();
        query.sort_unstable();
        query.dedup();
        Redactor { query, headers: names.headers.clone() }
    }

    /// Whether the value of this header is a secret.
    ///
    /// Headers that tell how many tokens of a budget are left (`x-ratelimit-remaining-tokens`) are none.
    #[must_use]
    pub fn is_secret_header(&self, name: &HeaderName) -> bool {
        let name_text = name.as_str();
        // Most of what servers send. A search in each of them would take longer than the rest of a record.
        let usual = matches!(
            name_text,
            "accept-ranges"
                | "age"
                | "alt-svc"
                | "cache-control"
                | "connection"
                | "content-encoding"
                | "content-language"
                | "content-length"
                | "content-type"
                | "date"
                | "etag"
                | "expires"
                | "keep-alive"
                | "last-modified"
                | "link"
                | "location"
                | "retry-after"
                | "server"
                | "strict-transport-security"
                | "transfer-encoding"
                | "vary"
                | "via"
                | "x-content-type-options"
                | "x-frame-options"
                | "x-powered-by"
        );
        let of_a_limit = || ["ratelimit", "rate-limit"].iter().any(|part| name_text.contains(part));
        let built_in = !usual && is_secret(name) && !of_a_limit();
        built_in || self.headers.contains(name)
    }

    /// Whether the value of this query parameter is a secret. `name` is as it stands in a URL, escapes included.
    #[must_use]
    pub fn is_secret_query(&self, name: &str) -> bool {
        self.query.binary_search_by(|known| known.iter().copied().cmp(fold(name))).is_ok()
    }

    /// A URL, absolute or not, as it may be shown: without user name and password, and with the values of secret
    /// parameters hidden, in the query and in the fragment. All else stays byte for byte.
    #[must_use]
    pub fn url<'a>(&self, url: &'a str) -> Cow<'a, str> {
        let authority = match authority_of(url) {
            Some((start, end)) => url[start..end].rfind('@').map(|at| (start, start + at + 1)),
            None => None,
        };
        self.hide(url, authority)
    }

    /// A text that was to be a URL and is none. Where nothing can be relied on, everything before the last `@` goes.
    #[must_use]
    pub fn not_a_url<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let Some(at) = text.rfind('@') else { return self.hide(text, None) };
        let start = text.find("://").map(|colon| colon + 3).filter(|start| *start <= at).unwrap_or(0);
        self.hide(text, Some((start, at + 1)))
    }

    /// A text, such as an error's, with every URL in it as [`url`](Redactor::url) shows it.
    #[must_use]
    pub fn text<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if !text.contains("://") && !text.contains('?') {
            return Cow::Borrowed(text);
        }
        let mut out = String::new();
        let mut copied = 0;
        for (start, word) in words(text) {
            if let Cow::Owned(shown) = self.url(word) {
                out.push_str(&text[copied..start]);
                out.push_str(&shown);
                copied = start + word.len();
            }
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }

    /// The value of a header of an answer as it may be shown. A value that is no text is read as Latin-1.
    #[must_use]
    pub fn header<'a>(&self, name: &HeaderName, value: &'a [u8]) -> Cow<'a, str> {
        if self.is_secret_header(name) {
            return Cow::Borrowed(HIDDEN);
        }
        let shown = match std::str::from_utf8(value) {
            Ok(text) => Cow::Borrowed(text),
            Err(_) => Cow::Owned(value.iter().copied().map(char::from).collect::<String>()),
        };
        let is_url = *name == http::header::LOCATION || *name == http::header::CONTENT_LOCATION;
        let redacted = if is_url { self.url(&shown) } else { self.text(&shown) };
        match redacted {
            Cow::Borrowed(_) => shown,
            Cow::Owned(text) => Cow::Owned(text),
        }
    }

    /// `text` without the bytes of `cut` and without the values of secret parameters.
    fn hide<'a>(&self, text: &'a str, cut: Option<(usize, usize)>) -> Cow<'a, str> {
        let mut out = String::new();
        let mut copied = 0;
        if let Some((start, end)) = cut {
            out.push_str(&text[..start]);
            copied = end;
        }
        let mut at = copied + text[copied..].find(['?', '#']).unwrap_or(text.len() - copied);
        while at < text.len() {
            let start = at + 1;
            let end = text[start..].find(['&', ';', '#', '?']).map_or(text.len(), |n| start + n);
            if let Some(equals) = text[start..end].find('=').map(|n| start + n)
                && equals + 1 < end
                && self.is_secret_query(&text[start..equals])
            {
                out.push_str(&text[copied..=equals]);
                out.push_str(HIDDEN);
                copied = end;
            }
            at = end;
        }
        if copied == 0 {
            return Cow::Borrowed(text);
        }
        out.push_str(&text[copied..]);
        Cow::Owned(out)
    }
}

/// Start and end of what stands between `//` and the path. Tabs and line breaks count as parts of it, as browsers have
/// it, and so does a backslash: what is doubtful is looked at for an `@`.
fn authority_of(url: &str) -> Option<(usize, usize)> {
    let scheme = url.find(':').filter(|colon| {
        url[..*colon].bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b) || b <= b' ')
    });
    let rest = scheme.map_or(0, |colon| colon + 1);
    let start = rest + url[rest..].strip_prefix("//").map(|_| 2)?;
    let end = url[start..].find(['/', '?', '#']).map_or(url.len(), |n| start + n);
    Some((start, end))
}

/// The parts of a text that could be a URL, with their places: no white space, quotes or brackets within.
fn words(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let stop = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>' | '(' | ')' | '`' | ',');
    text.split(stop)
        .map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word))
        .filter(|w| !w.1.is_empty())
}

/// A name with its escapes undone, lower-case, and without what joins its words.
fn fold(name: &str) -> impl Iterator<Item = u8> {
    unescaped(name)
        .filter(|byte| !matches!(byte, b'_' | b'-' | b'+' | b' '))
        .map(|byte| byte.to_ascii_lowercase())
}

/// The bytes that a text with escapes stands for.
fn unescaped(text: &str) -> impl Iterator<Item = u8> {
    let mut rest = text.as_bytes();
    std::iter::from_fn(move || {
        let digit = |at: usize| rest.get(at).and_then(|&b| char::from(b).to_digit(16));
        let (byte, len) = match (rest.first()?, digit(1), digit(2)) {
            (b'%', Some(high), Some(low)) => ((high * 16 + low) as u8, 3),
            (byte, ..) => (*byte, 1),
        };
        rest = &rest[len..];
        Some(byte)
    })
}

/// Tells accounts apart without keeping a credential.
///
/// An account is the name that an item gives, else a keyed hash of `Authorization` and of what stands under the names of
/// `[secrets]`. Cookies take no part, nor do built-in secret names: a signature differs from URL to URL, and every URL
/// would be somebody else's.
#[derive(Clone)]
pub struct Accounts {
    key: [u8; 32],
    /// Folded as by the redactor.
    query: Vec<Vec<u8>>,
    headers: Vec<HeaderName>,
}

impl Accounts {
    /// For a job's key, [`Job::account_key`](forbear_store::queue::Job::account_key).
    #[must_use]
    pub fn new(key: [u8; 32], names: &SecretNames) -> Accounts {
        let query = names.query.iter().map(|name| fold(name).collect()).collect();
        Accounts { key, query, headers: names.headers.clone() }
    }

    /// The account of a request: `given` as it is, else `~` and 16 hexadecimal digits for its credentials, else none.
    ///
    /// `headers` are the item's own; `of_host` are those that the configuration adds, unless the item has its own of that
    /// name. A user name in the URL counts as `Authorization`, unless there is one.
    #[must_use]
    pub fn of(
        &self,
        given: Option<&str>,
        url: &str,
        headers: &[(String, String)],
        of_host: &[SecretHeader],
    ) -> Option<String> {
        if let Some(given) = given {
            return Some(given.to_owned());
        }
        let mut credentials: Vec<(String, Cow<'_, [u8]>)> = Vec::new();
        let own = |name: &HeaderName| headers.iter().any(|(own, _)| name.as_str().eq_ignore_ascii_case(own));
        let counts = |name: &str| {
            name.eq_ignore_ascii_case("authorization")
                || self.headers.iter().any(|h| h.as_str().eq_ignore_ascii_case(name))
        };
        for (name, value) in headers.iter().filter(|(name, _)| counts(name)) {
            credentials.push((name.to_ascii_lowercase(), value.as_bytes().into()));
        }
        for header in of_host.iter().filter(|h| counts(h.name.as_str()) && !own(&h.name)) {
            credentials.push((header.name.as_str().to_owned(), header.value.expose().as_bytes().into()));
        }
        if !credentials.iter().any(|(name, _)| name == "authorization")
            && let Some(value) = basic(url)
        {
            credentials.push(("authorization".to_owned(), value.into_bytes().into()));
        }
        if !self.query.is_empty() {
            self.query_credentials(url, &mut credentials);
        }
        if credentials.is_empty() {
            return None;
        }
        credentials.sort();
        Some(self.hash(&credentials))
    }

    /// A keyed hash of all that the configuration adds to the requests of a host: another one means other credentials.
    #[must_use]
    pub fn configured(&self, of_host: &[SecretHeader]) -> String {
        let header =
            |h: &SecretHeader| (h.name.as_str().to_owned(), h.value.expose().as_bytes().to_owned().into());
        let mut headers: Vec<(String, Cow<'_, [u8]>)> = of_host.iter().map(header).collect();
        headers.sort();
        self.hash(&headers)
    }

    /// Whether a URL alone, without headers, can name an account.
    #[must_use]
    pub fn look_at_queries(&self) -> bool {
        !self.query.is_empty()
    }

    fn query_credentials<'a>(&self, url: &'a str, credentials: &mut Vec<(String, Cow<'a, [u8]>)>) {
        let url = url.split('#').next().unwrap_or_default();
        let Some((_, query)) = url.split_once('?') else { return };
        for (name, value) in query.split(['&', ';']).filter_map(|pair| pair.split_once('=')) {
            let name: Vec<u8> = fold(name).collect();
            if self.query.contains(&name) {
                let name = format!("?{}", String::from_utf8_lossy(&name));
                credentials.push((name, value.as_bytes().into()));
            }
        }
    }

    fn hash(&self, credentials: &[(String, Cow<'_, [u8]>)]) -> String {
        let mut hasher = blake3::Hasher::new_keyed(&self.key);
        for (name, value) in credentials {
            // Lengths first, so that no two lists of parts make one text.
            hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes());
            hasher.update(&(value.len() as u64).to_le_bytes()).update(value);
        }
        let digits = hasher.finalize().to_hex();
        format!("~{}", &digits[..16])
    }
}

impl std::fmt::Debug for Accounts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Accounts").field("headers", &self.headers).finish_non_exhaustive()
    }
}

/// The `Authorization` that a URL's user name and password become on the wire ([RFC 7617]).
///
/// [RFC 7617]: https://www.rfc-editor.org/rfc/rfc7617
fn basic(url: &str) -> Option<String> {
    let (start, end) = authority_of(url)?;
    let (userinfo, _) = url[start..end].rsplit_once('@').filter(|(userinfo, _)| !userinfo.is_empty())?;
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    let plain: Vec<u8> = unescaped(user).chain([b':']).chain(unescaped(password)).collect();
    Some(format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(plain)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn redactor() -> Redactor {
        Redactor::new(&SecretNames {
            query: vec!["Sitzung".into()],
            headers: vec![HeaderName::from_static("x-tenant")],
        })
    }

    #[test]
    fn k1_urls_are_shown_without_their_secrets() {
        for (url, shown) in [
            ("http://h/a?q=1", "http://h/a?q=1"),
            ("http://h/a b?x", "http://h/a b?x"),
            ("http://u:p@h/", "http://h/"),
            ("http://u:p@ss@h/@user/a@b", "http://h/@user/a@b"),
            ("//u:p@h/", "//h/"),
            ("http://h/?key=1&KEY=2&k=3", "http://h/?key=***&KEY=***&k=3"),
            ("http://h/?a=1;apikey=2#access_token=3&x=4", "http://h/?a=1;apikey=***#access_token=***&x=4"),
            ("/cb?x-amz-Signature=ab&X-Amz-Date=1", "/cb?x-amz-Signature=***&X-Amz-Date=1"),
            ("http://h/?%74oken=s&to%6Ben=s", "http://h/?%74oken=***&to%6Ben=***"),
            ("http://h/?token=&page_token=7", "http://h/?token=&page_token=7"),
            ("http://h/?token=a=b", "http://h/?token=***"),
            ("http://h/?x=1?token=s", "http://h/?x=1?token=***"),
            ("http://h/?sitzung=s", "http://h/?sitzung=***"),
            ("http://u:p@h/?token=s", "http://h/?token=***"),
            ("http://h/?ü=1&tokén=2", "http://h/?ü=1&tokén=2"),
            ("", ""),
        ] {
            assert_eq!(redactor().url(url), shown, "{url}");
        }
    }

    #[test]
    fn k1_what_is_no_url_shows_no_more() {
        for (text, shown) in [
            ("http://u:pa/ss@h/", "http://h/"),
            ("u:p@h/x?token=s", "h/x?token=***"),
            ("http:/u:p@h", "h"),
            ("ftp://u:p@h/x", "ftp://h/x"),
            ("nonsense://h/no", "nonsense://h/no"),
            ("@://", "://"),
        ] {
            assert_eq!(redactor().not_a_url(text), shown, "{text}");
        }
    }

    #[test]
    fn k1_urls_within_a_text_lose_their_secrets() {
        for (text, shown) in [
            ("cannot connect", "cannot connect"),
            ("error for url (http://u:p@h/?token=s): late", "error for url (http://h/?token=***): late"),
            ("see \"https://h/?sig=1\", not ü /a?key=2", "see \"https://h/?sig=***\", not ü /a?key=***"),
            ("what? nothing", "what? nothing"),
        ] {
            assert_eq!(redactor().text(text), shown, "{text}");
        }
    }

    #[test]
    fn k1_headers_are_hidden_by_name() {
        for (name, value, shown) in [
            ("set-cookie", &b"a=b"[..], "***"),
            ("x-auth-token", b"s", "***"),
            ("x-tenant", b"s", "***"),
            ("x-ratelimit-remaining-tokens", b"17", "17"),
            ("anthropic-ratelimit-tokens-reset", b"2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
            ("server", b"n\xfcx", "nüx"),
            ("server", "nüx".as_bytes(), "nüx"),
            ("location", b"/cb?token=s", "/cb?token=***"),
            ("location", b"http://u:p@h/", "http://h/"),
            ("link", b"<http://h/?key=s&page=2>; rel=\"next\"", "<http://h/?key=***&page=2>; rel=\"next\""),
        ] {
            assert_eq!(redactor().header(&HeaderName::from_static(name), value), shown, "{name}");
        }
    }

    fn account(url: &str, headers: &[(&str, &str)]) -> Option<String> {
        let names =
            SecretNames { query: vec!["app".into()], headers: vec![HeaderName::from_static("x-key")] };
        let headers: Vec<_> = headers.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect();
        Accounts::new([7; 32], &names).of(None, url, &headers, &[])
    }

    #[test]
    fn k1_an_account_is_a_keyed_hash_of_the_credentials() {
        let one = account("http://h/", &[("Authorization", "Bearer 1")]).expect("an account");
        assert!(one.len() == 17 && one.starts_with('~') && !one.contains("Bearer"), "{one}");
        assert_eq!(
            account("http://h/x?y", &[("authorization", "Bearer 1"), ("Cookie", "c=1")]),
            Some(one.clone())
        );
        assert_ne!(account("http://h/", &[("Authorization", "Bearer 2")]), Some(one.clone()));
        assert_ne!(account("http://h/", &[("X-Key", "Bearer 1")]), Some(one.clone()));
        let other = Accounts::new([8; 32], &SecretNames::default());
        assert_ne!(
            other.of(None, "http://h/", &[("Authorization".into(), "Bearer 1".into())], &[]),
            Some(one)
        );
    }

    #[test]
    fn k1_whoever_has_no_credentials_has_no_account() {
        for (url, headers) in [
            ("http://h/?token=s", &[("Cookie", "c=1")][..]),
            ("http://h/", &[("X-Other", "1")]),
            ("http://@h/", &[]),
            ("http://h/#app=1", &[]),
        ] {
            assert_eq!(account(url, headers), None, "{url}");
        }
    }

    #[test]
    fn s2_the_same_credentials_are_the_same_account() {
        let basic = account("http://h/", &[("Authorization", "Basic dTpw")]);
        assert!(basic.is_some());
        assert_eq!(account("http://u:p@h/", &[]), basic);
        assert_eq!(account("http://%75:%70@h/x", &[]), basic);
        assert_eq!(
            account("http://a:b@h/", &[("Authorization", "Basic dTpw")]),
            basic,
            "the header is what is sent"
        );
        assert_eq!(account("http://h/?APP=1&x=2", &[]), account("http://h/?x=3&app=1", &[]));
        assert_ne!(account("http://h/?app=1", &[]), account("http://h/?app=2", &[]));
    }

    #[test]
    fn s2_a_given_name_is_the_account() {
        let accounts = Accounts::new([7; 32], &SecretNames::default());
        let headers = [("Authorization".to_owned(), "Bearer 1".to_owned())];
        assert_eq!(accounts.of(Some("team-a"), "http://h/", &headers, &[]).as_deref(), Some("team-a"));
    }
}

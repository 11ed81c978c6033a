//! Where a request goes: a URL, read once, with one spelling for everything that is compared.
//!
//! The host is canonical (S2); path and query stay as they were written. Only what may not stand in a request line is
//! escaped: space, controls, quotes, angle brackets, and every byte beyond ASCII. No escape is ever rewritten, and
//! nobody's `%2e%2e` is resolved.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str;

use bytes::Bytes;
use http::uri::{Authority, PathAndQuery};
use http::{HeaderValue, Uri};

use super::headers::basic;

/// Longest URL that is accepted, in bytes as written. Servers refuse request lines far shorter (8 KiB is usual).
pub const URL_BYTES_MAX: usize = 32 * 1024;

/// The two schemes that exist here.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Scheme {
    /// Plain text.
    Http,
    /// Through TLS.
    Https,
}

impl Scheme {
    /// The scheme as it stands in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }

    /// The port that a URL need not name.
    pub fn default_port(self) -> u16 {
        match self {
            Scheme::Http => 80,
            Scheme::Https => 443,
        }
    }
}

/// A host in canonical form.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Host {
    /// A name: lower case, ASCII (IDN as `xn--`), without the trailing dot.
    Name(Box<str>),
    /// An address, whatever spelling the URL had for it (`127.1`, `0x7f000001`, `[0:0::1]`).
    Address(IpAddr),
}

/// Why a text is not a target.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// There is no scheme, so it is not known where to go.
    #[error("not an absolute URL")]
    NotAbsolute,
    /// A scheme other than `http` and `https`.
    #[error("the scheme is not http or https")]
    Scheme,
    /// No host, or one that cannot be.
    #[error("the host is missing or malformed")]
    Host,
    /// The port is no number from 1 to 65535.
    #[error("the port is malformed")]
    Port,
    /// Longer than [`URL_BYTES_MAX`].
    #[error("the URL is longer than {URL_BYTES_MAX} bytes")]
    TooLong,
}

/// A parsed `http` or `https` URL.
///
/// Cheap to clone. Credentials in the URL (`user:password@`) are taken out of the text when it is read; they are sent
/// as Basic authorization to this origin and shown nowhere, not by `Debug` either.
///
/// ```
/// use forbear::client::Target;
/// let target = Target::parse("HTTP://Example.COM.:080/a b%2Fc?q=é#part")?;
/// assert_eq!(target.as_str(), "http://example.com/a%20b%2Fc?q=%C3%A9");
/// assert_eq!(target.origin(), "http://example.com");
/// # Ok::<(), forbear::client::TargetError>(())
/// ```
#[derive(Clone, Eq, PartialEq)]
pub struct Target {
    text: Bytes, // ASCII; `scheme://authority/path?query`
    origin_len: usize,
    scheme: Scheme,
    host: Host,
    port: u16,
    credentials: Option<HeaderValue>,
}

impl Target {
    /// Reads an absolute URL. White space around it and a fragment are dropped.
    ///
    /// # Errors
    /// What is wrong with the text; never the text itself, which may hold secrets (K1).
    pub fn parse(text: &str) -> Result<Target, TargetError> {
        Target::parse_bytes(trim(text.as_bytes()))
    }

    /// The target that a `Location` names, seen from this one ([RFC 3986 section 5.2]). Credentials go along
    /// within the origin and never beyond it (K2); a location may bring its own.
    ///
    /// Bytes beyond ASCII become one escape each, so UTF-8 is escaped as UTF-8 and a lone Latin-1 byte as itself.
    ///
    /// [RFC 3986 section 5.2]: https://www.rfc-editor.org/rfc/rfc3986#section-5.2
    ///
    /// # Errors
    /// As [`Target::parse`]; another scheme than `http` and `https` above all.
    pub fn join(&self, location: &[u8]) -> Result<Target, TargetError> {
        let location = trim(location);
        if location.len() > URL_BYTES_MAX {
            return Err(TargetError::TooLong);
        }
        if let Some((scheme, rest)) = split_scheme(location) {
            // `http:path`, allowed by RFC 3986 section 5.2.2 for old programs, is ambiguous: refused with the host.
            return Ok(Target::assemble(scheme?, rest)?.inheriting(self));
        }
        if location.starts_with(b"//") {
            return Ok(Target::assemble(self.scheme, location)?.inheriting(self));
        }
        let reference = &location[..find(location, b"#")];
        let base = &self.text[self.origin_len..];
        let base_path = &base[..find(base, b"?")];
        let (path, query) = reference.split_at(find(reference, b"?"));
        let mut joined = Vec::with_capacity(base.len() + reference.len());
        match (path.first(), query.first()) {
            (None, None) => joined.extend_from_slice(base),
            (None, Some(_)) => joined.extend_from_slice(base_path),
            (Some(b'/'), _) => remove_dot_segments(path, &mut joined),
            (Some(_), _) => {
                let folder = base_path.iter().rposition(|&b| b == b'/').map_or(0, |slash| slash + 1);
                remove_dot_segments(&[&base_path[..folder], path].concat(), &mut joined);
            }
        }
        joined.extend_from_slice(query);
        self.with_path(&joined)
    }

    /// The whole URL in canonical form, without credentials and fragment.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.text).unwrap_or_default()
    }

    /// Scheme, host and port, the port only where it is not the scheme's own: `https://example.com`.
    pub fn origin(&self) -> &str {
        &self.as_str()[..self.origin_len]
    }

    /// The scheme.
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The host in canonical form.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Host as in a URL (IPv6 in brackets), and the port where it is not the scheme's own.
    pub fn authority(&self) -> &str {
        &self.origin()[self.scheme.as_str().len() + 3..]
    }

    /// The port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// What stands in the request line.
    pub fn path_and_query(&self) -> PathAndQuery {
        // It was checked when the target was made.
        PathAndQuery::from_maybe_shared(self.text.slice(self.origin_len..))
            .unwrap_or_else(|_| PathAndQuery::from_static("/"))
    }

    /// Whether the URL carried credentials of its own.
    pub fn has_credentials(&self) -> bool {
        self.credentials.is_some()
    }

    /// The `Authorization` value made of the URL's credentials, marked sensitive.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.credentials.as_ref()
    }

    /// The value of `Host`.
    pub(super) fn host_value(&self) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
        HeaderValue::from_maybe_shared(self.text.slice(self.scheme.as_str().len() + 3..self.origin_len))
    }

    /// The authority for an absolute URI, as HTTP/2 wants it.
    pub(super) fn uri_authority(&self) -> Result<Authority, http::uri::InvalidUri> {
        Authority::from_maybe_shared(self.text.slice(self.scheme.as_str().len() + 3..self.origin_len))
    }

    /// All of it as an absolute URI, as a proxy wants it ([RFC 9112 section 3.2.2]).
    ///
    /// [RFC 9112 section 3.2.2]: https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2
    pub(super) fn absolute_uri(&self) -> Result<Uri, http::uri::InvalidUri> {
        Uri::from_maybe_shared(self.text.clone())
    }

    /// Host as in a URL and port, also where it is the scheme's own: what `CONNECT` names.
    pub(super) fn host_and_port(&self) -> String {
        match &self.host {
            Host::Name(name) => format!("{name}:{}", self.port),
            Host::Address(address) => SocketAddr::new(*address, self.port).to_string(),
        }
    }

    /// The origin as a key that shares this target's memory.
    pub(super) fn origin_bytes(&self) -> Bytes {
        self.text.slice(..self.origin_len)
    }

    /// Takes over the credentials of `from` if the origin is the same and there are none of its own.
    fn inheriting(mut self, from: &Target) -> Target {
        if self.credentials.is_none() && self.origin() == from.origin() {
            self.credentials.clone_from(&from.credentials);
        }
        self
    }

    fn parse_bytes(text: &[u8]) -> Result<Target, TargetError> {
        if text.len() > URL_BYTES_MAX {
            return Err(TargetError::TooLong);
        }
        let (scheme, rest) = split_scheme(text).ok_or(TargetError::NotAbsolute)?;
        Target::assemble(scheme?, rest)
    }

    /// `rest` is what follows `scheme:`.
    fn assemble(scheme: Scheme, rest: &[u8]) -> Result<Target, TargetError> {
        let rest = rest.strip_prefix(b"//").ok_or(TargetError::Host)?;
        let (authority, path) = rest.split_at(find(rest, b"/?#"));
        // To browsers a backslash ends the authority, to RFC 3986 it is part of the user: `http://a\@b/` is a or b.
        if authority.contains(&b'\\') {
            return Err(TargetError::Host);
        }
        let (userinfo, host_port) = match authority.iter().rposition(|&b| b == b'@') {
            Some(at) => (Some(&authority[..at]), &authority[at + 1..]),
            None => (None, authority),
        };
        let (host, port) = split_port(host_port)?;
        let host = parse_host(host)?;
        let port = port.unwrap_or(scheme.default_port());

        let mut text = Vec::with_capacity(scheme.as_str().len() + rest.len() + 4);
        text.extend_from_slice(scheme.as_str().as_bytes());
        text.extend_from_slice(b"://");
        match &host {
            Host::Name(name) => text.extend_from_slice(name.as_bytes()),
            Host::Address(IpAddr::V4(v4)) => text.extend_from_slice(v4.to_string().as_bytes()),
            Host::Address(IpAddr::V6(v6)) => text.extend_from_slice(format!("[{v6}]").as_bytes()),
        }
        if port != scheme.default_port() {
            text.extend_from_slice(format!(":{port}").as_bytes());
        }
        let origin_len = text.len();
        let target = Target {
            text: text.into(),
            origin_len,
            scheme,
            host,
            port,
            credentials: userinfo.and_then(authorization),
        };
        target.with_path(path)
    }

    /// This origin with another path; `path` is raw, and may be empty or start with `?`.
    fn with_path(&self, path: &[u8]) -> Result<Target, TargetError> {
        let mut text = Vec::with_capacity(self.origin_len + path.len() + 16);
        text.extend_from_slice(&self.text[..self.origin_len]);
        if path.first() != Some(&b'/') {
            text.push(b'/');
        }
        let mut in_query = false;
        for &byte in path {
            match byte {
                b'#' => break,
                b'\t' | b'\r' | b'\n' => continue, // dropped wherever they stand, as every browser does
                b'?' => in_query = true,
                // Braces and the grave accent are let through in a query, where people write templates and JSON.
                b'{' | b'}' | b'`' if in_query => {}
                0..=b' ' | b'"' | b'<' | b'>' | b'`' | b'{' | b'}' | 0x7f.. => {
                    const HEX: &[u8; 16] = b"0123456789ABCDEF";
                    text.extend_from_slice(&[b'%', HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 15)]]);
                    continue;
                }
                _ => {}
            }
            text.push(byte);
        }
        Ok(Target { text: text.into(), ..self.clone() })
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.as_str())
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

fn trim(text: &[u8]) -> &[u8] {
    let start = text.iter().position(|&b| b > b' ').unwrap_or(text.len());
    let end = text.iter().rposition(|&b| b > b' ').map_or(start, |last| last + 1);
    &text[start..end]
}

/// The position of the first of `stops`, or the end.
fn find(text: &[u8], stops: &[u8]) -> usize {
    text.iter().position(|b| stops.contains(b)).unwrap_or(text.len())
}

/// Scheme and what follows the colon, if the text starts with a scheme at all ([RFC 3986 section 3.1]).
///
/// [RFC 3986 section 3.1]: https://www.rfc-editor.org/rfc/rfc3986#section-3.1
fn split_scheme(text: &[u8]) -> Option<(Result<Scheme, TargetError>, &[u8])> {
    let colon = find(text, b":/?#");
    if text.get(colon) != Some(&b':') || !text[0].is_ascii_alphabetic() {
        return None;
    }
    let name = &text[..colon];
    if !name.iter().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(b)) {
        return None;
    }
    let scheme = match () {
        () if name.eq_ignore_ascii_case(b"http") => Ok(Scheme::Http),
        () if name.eq_ignore_ascii_case(b"https") => Ok(Scheme::Https),
        () => Err(TargetError::Scheme),
    };
    Some((scheme, &text[colon + 1..]))
}

pub(crate) fn split_port(host_port: &[u8]) -> Result<(&[u8], Option<u16>), TargetError> {
    let host_end = match host_port.first() {
        Some(b'[') => find(host_port, b"]") + 1,
        _ => find(host_port, b":"),
    };
    if host_end >= host_port.len() {
        return Ok((host_port, None));
    }
    let (host, port) = host_port.split_at(host_end);
    let digits = port.strip_prefix(b":").ok_or(TargetError::Host)?;
    if digits.is_empty() {
        return Ok((host, None));
    }
    if !digits.iter().all(u8::is_ascii_digit) {
        return Err(TargetError::Port);
    }
    let port = digits.iter().try_fold(0u16, |sum, b| sum.checked_mul(10)?.checked_add(u16::from(b - b'0')));
    match port {
        None | Some(0) => Err(TargetError::Port),
        port => Ok((host, port)),
    }
}

/// [The host parser of the URL standard](https://url.spec.whatwg.org/#host-parsing), with DNS's own limit on length
/// (253 characters, [RFC 1035 section 2.3.4](https://www.rfc-editor.org/rfc/rfc1035#section-2.3.4)) on top.
pub(crate) fn parse_host(host: &[u8]) -> Result<Host, TargetError> {
    let host = str::from_utf8(host).map_err(|_| TargetError::Host)?;
    // Most hosts are canonical already, and this is asked for each request.
    if let Ok(v4) = host.parse() {
        return Ok(Host::Address(IpAddr::V4(v4)));
    }
    match url::Host::parse(host).map_err(|_| TargetError::Host)? {
        url::Host::Ipv4(v4) => Ok(Host::Address(IpAddr::V4(v4))),
        url::Host::Ipv6(v6) => Ok(Host::Address(IpAddr::V6(v6))),
        url::Host::Domain(name) => {
            let name = name.strip_suffix('.').unwrap_or(&name);
            let fits = name.len() <= 253 && name.split('.').all(|label| (1..=63).contains(&label.len()));
            if fits { Ok(Host::Name(name.into())) } else { Err(TargetError::Host) }
        }
    }
}

/// `user:password` of a URL as Basic credentials: escapes are decoded to the bytes they stand for.
fn authorization(userinfo: &[u8]) -> Option<HeaderValue> {
    if userinfo.is_empty() {
        return None;
    }
    let (user, password) = userinfo.split_at(find(userinfo, b":"));
    basic(&unescape(user), &unescape(password.strip_prefix(b":").unwrap_or_default()))
}

/// The bytes that a text with escapes stands for; a `%` that is no escape stands for itself.
pub(crate) fn unescape(text: &[u8]) -> Vec<u8> {
    let digit = |at: usize| text.get(at).and_then(|&b| char::from(b).to_digit(16));
    let mut plain = Vec::with_capacity(text.len());
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                plain.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                plain.push(byte);
                at += 1;
            }
        }
    }
    plain
}

/// [RFC 3986 section 5.2.4](https://www.rfc-editor.org/rfc/rfc3986#section-5.2.4), on an absolute path. Only literal
/// dots count: an escaped dot is the server's business.
fn remove_dot_segments(path: &[u8], out: &mut Vec<u8>) {
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut ends_in_folder = false;
    for segment in path.split(|&b| b == b'/').skip(1) {
        ends_in_folder = matches!(segment, b"." | b"..");
        match segment {
            b"." => {}
            b".." => {
                segments.pop();
            }
            _ => segments.push(segment),
        }
    }
    for segment in &segments {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    if ends_in_folder || segments.is_empty() {
        out.push(b'/');
    }
}

#[cfg(test)]
mod tests;

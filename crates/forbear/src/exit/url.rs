//! A proxy as it is written, with credentials that arrive byte for byte and are shown nowhere.
//!
//! One rule reads them all. An optional scheme ends at `://`. What follows is split at its last `@`: before it stand user
//! name and password, split at the first `:`; after it host and port. In both, an escape (`%` and two hexadecimal digits)
//! stands for its byte and a `%` that is none for itself; all else goes out as it is written, so `/`, `?`, `#`, `@`, `:` and
//! spaces need no escape in a password, and text beyond ASCII is UTF-8.
//!
//! Without an `@` it may also be `host:port:user:password`, as sellers of proxies list them. There nothing is an escape.
//! Where that form could be read in a second way it is refused: a wrong guess would show the password to a stranger.

use std::{fmt, net::IpAddr, ops::Range, str, sync::Arc};

use crate::{
    client::{Host, TargetError, parse_host, split_port, unescape},
    config::Secret,
};

/// The longest exit that is accepted, in bytes as written.
pub const EXIT_URL_BYTES_MAX: usize = 8 * 1024;

/// The longest session token, in bytes.
pub const SESSION_BYTES_MAX: usize = 32;

/// The most bytes of a user name, or of a password, that SOCKS 5 has room for ([RFC 1929 section 2]).
///
/// [RFC 1929 section 2]: https://www.rfc-editor.org/rfc/rfc1929#section-2
const SOCKS_BYTES_MAX: usize = 255;

/// Where the token stands in a user name.
const PLACE: &[u8] = b"{session}";

/// How a proxy is spoken to.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum ExitScheme {
    /// An HTTP proxy, in plain text. The default.
    Http,
    /// An HTTP proxy, through TLS.
    Https,
    /// SOCKS 5; names are looked up here.
    Socks5,
    /// SOCKS 5; names are looked up by the proxy.
    Socks5h,
}

impl ExitScheme {
    const ALL: [ExitScheme; 4] =
        [ExitScheme::Http, ExitScheme::Https, ExitScheme::Socks5, ExitScheme::Socks5h];

    /// The scheme as it stands in a URL.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            ExitScheme::Http => "http",
            ExitScheme::Https => "https",
            ExitScheme::Socks5 => "socks5",
            ExitScheme::Socks5h => "socks5h",
        }
    }

    /// The port of an exit that names none: the scheme's own, as Go, wget and Python's requests have it. curl differs, it
    /// takes 1080 for `http` too.
    #[must_use]
    pub fn default_port(self) -> u16 {
        match self {
            ExitScheme::Http => 80,
            ExitScheme::Https => 443,
            ExitScheme::Socks5 | ExitScheme::Socks5h => 1080,
        }
    }

    fn is_socks(self) -> bool {
        matches!(self, ExitScheme::Socks5 | ExitScheme::Socks5h)
    }
}

/// Why a text is no exit. Holds no part of the text (K1).
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ExitUrlError {
    /// Nothing there.
    #[error("an exit is expected, like http://user:password@host:8080")]
    Empty,
    /// Longer than [`EXIT_URL_BYTES_MAX`].
    #[error("the exit is longer than {EXIT_URL_BYTES_MAX} bytes")]
    TooLong,
    /// Another scheme than the four.
    #[error("the scheme is none of http, https, socks5, socks5h")]
    Scheme,
    /// No host, or one that cannot be.
    #[error("the host is missing or malformed; user name and password stand before the last `@`")]
    Host,
    /// The port is no number from 1 to 65535.
    #[error("the port is malformed")]
    Port,
    /// Something after the `/` that may follow the port.
    #[error("an exit has no path; only `/` may follow the port")]
    Path,
    /// The form `host:port:user:password` where it could also mean something else.
    #[error(
        "cannot tell which part is the host; write it as scheme://user:password@host:port, special characters as %XX"
    )]
    Ambiguous,
    /// A colon in a user name that goes out by Basic authorization, where it would move into the password
    /// ([RFC 7617 section 2](https://www.rfc-editor.org/rfc/rfc7617#section-2)).
    #[error("a user name with a colon cannot be sent to an HTTP proxy")]
    Colon,
    /// More than SOCKS 5 has room for.
    #[error("user name and password of a SOCKS proxy have at most 255 bytes each")]
    SocksLength,
}

/// A proxy with its credentials.
///
/// Two that differ in nothing but their credentials are two exits (S2). Cheap to clone; clones share the text. `Debug` and
/// `Display` show no credentials.
///
/// ```
/// use forbear::exit::{ExitScheme, ExitUrl};
/// let exit = ExitUrl::parse("SOCKS5H://me:p@ss%2Fword@Proxy.Example")?;
/// assert_eq!((exit.scheme(), exit.port()), (ExitScheme::Socks5h, 1080));
/// assert_eq!(exit.credentials(), Some((&b"me"[..], &b"p@ss/word"[..])));
/// assert_eq!(exit.to_string(), "socks5h://proxy.example:1080");
/// # Ok::<(), forbear::exit::ExitUrlError>(())
/// ```
#[derive(Clone, Eq, Hash, PartialEq)]
pub struct ExitUrl(Arc<Parts>);

#[derive(Clone, Eq, Hash, PartialEq)]
struct Parts {
    scheme: ExitScheme,
    host: Host,
    port: u16,
    credentials: Option<Credentials>,
}

/// As they go out. Not `Debug`: nothing may print them.
#[derive(Clone, Eq, Hash, PartialEq)]
struct Credentials {
    user: Box<[u8]>,
    password: Box<[u8]>,
}

impl ExitUrl {
    /// Reads an exit by the rule of this module. White space around it is dropped.
    ///
    /// # Errors
    /// What is wrong with the text; never a part of the text (K1).
    pub fn parse(text: &str) -> Result<ExitUrl, ExitUrlError> {
        let text = text.trim_matches(|c: char| c.is_ascii_whitespace() || c.is_ascii_control());
        if text.is_empty() {
            return Err(ExitUrlError::Empty);
        }
        if text.len() > EXIT_URL_BYTES_MAX {
            return Err(ExitUrlError::TooLong);
        }
        let (scheme, rest) = split_scheme(text)?;
        let (host_port, credentials) = match rest.rfind('@') {
            Some(at) => {
                let (userinfo, host_port) = (&rest[..at], &rest[at + 1..]);
                if looks_sold(userinfo) && !has_port(host_port) {
                    return Err(ExitUrlError::Ambiguous);
                }
                (host_port, written(userinfo))
            }
            None => match sold(rest)? {
                Some((end, credentials)) => (&rest[..end], Some(credentials)),
                None => (rest, None),
            },
        };
        let (host_port, path) =
            host_port.split_at(host_port.find(['/', '?', '#']).unwrap_or(host_port.len()));
        if !matches!(path, "" | "/") {
            return Err(ExitUrlError::Path);
        }
        let (host, port) = split_port(host_port.as_bytes()).map_err(part)?;
        let host = parse_host(host).map_err(part)?;
        let parts = Parts { scheme, host, port: port.unwrap_or(scheme.default_port()), credentials };
        parts.check()?;
        Ok(ExitUrl(Arc::new(parts)))
    }

    /// How it is spoken to.
    #[must_use]
    pub fn scheme(&self) -> ExitScheme {
        self.0.scheme
    }

    /// The proxy's host in canonical form.
    #[must_use]
    pub fn host(&self) -> &Host {
        &self.0.host
    }

    /// The proxy's port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.0.port
    }

    /// User name and password as they go out. They are secret: for the wire alone.
    #[must_use]
    pub fn credentials(&self) -> Option<(&[u8], &[u8])> {
        self.0.credentials.as_ref().map(|c| (&*c.user, &*c.password))
    }

    /// Whether the user name has a place for a session token, as in `{user}-sess-{session}`.
    #[must_use]
    pub fn has_session(&self) -> bool {
        self.0.credentials.as_ref().is_some_and(|c| places(&c.user).next().is_some())
    }

    /// The exit with `token` in the place for it (E4). Without such a place it is the same exit.
    ///
    /// A token is up to [`SESSION_BYTES_MAX`] letters and digits. A longer one is cut, so that it always has room.
    #[must_use]
    pub fn with_session(&self, token: &str) -> ExitUrl {
        let Some(credentials) = self.0.credentials.as_ref().filter(|_| self.has_session()) else {
            return self.clone();
        };
        let token = &token.as_bytes()[..token.len().min(SESSION_BYTES_MAX)];
        let user = with_token(&credentials.user, token).into();
        let credentials = Some(Credentials { user, password: credentials.password.clone() });
        let Parts { scheme, host, port, .. } = &*self.0;
        ExitUrl(Arc::new(Parts { scheme: *scheme, host: host.clone(), port: *port, credentials }))
    }

    /// The exit as HTTP clients take it, `scheme://user:password@host:port`. All but letters, digits and `-._~` is an escape in
    /// user name and password ([RFC 3986 section 3.2.1]), so every client reads the same bytes out of it. Some decode them as
    /// UTF-8; for bytes that are none give [`ExitUrl::credentials`] to the client.
    ///
    /// ```
    /// use forbear::exit::ExitUrl;
    /// let exit = ExitUrl::parse("socks5h://me:p@ss/w%C3%B6rd@proxy.example")?;
    /// assert_eq!(exit.to_secret().expose(), "socks5h://me:p%40ss%2Fw%C3%B6rd@proxy.example:1080");
    /// assert_eq!(format!("{:?}", exit.to_secret()), "***");
    /// # Ok::<(), forbear::exit::ExitUrlError>(())
    /// ```
    ///
    /// [RFC 3986 section 3.2.1]: https://www.rfc-editor.org/rfc/rfc3986#section-3.2.1
    #[must_use]
    pub fn to_secret(&self) -> Secret {
        let name = self.to_string();
        let Some((user, password)) = self.credentials() else { return Secret::new(name) };
        let host = name.find("://").map_or(0, |colon| colon + 3);
        let mut text = name[..host].to_owned();
        escape(user, &mut text);
        text.push(':');
        escape(password, &mut text);
        text.push('@');
        text.push_str(&name[host..]);
        Secret::new(text)
    }

    /// Scheme, host and port, which may be shown: `http://203.0.113.7:8080`. Not unique: exits that differ in their
    /// credentials share it.
    #[must_use]
    pub fn name(&self) -> String {
        self.to_string()
    }
}

impl Parts {
    /// What the protocol of the proxy has no way to say.
    fn check(&self) -> Result<(), ExitUrlError> {
        let Some(Credentials { user, password }) = &self.credentials else { return Ok(()) };
        if !self.scheme.is_socks() {
            return if user.contains(&b':') { Err(ExitUrlError::Colon) } else { Ok(()) };
        }
        let longest_user = user.len() + places(user).count() * (SESSION_BYTES_MAX - PLACE.len());
        if longest_user > SOCKS_BYTES_MAX || password.len() > SOCKS_BYTES_MAX {
            return Err(ExitUrlError::SocksLength);
        }
        Ok(())
    }
}

impl fmt::Display for ExitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Parts { scheme, host, port, .. } = &*self.0;
        let scheme = scheme.as_str();
        match host {
            Host::Name(name) => write!(f, "{scheme}://{name}:{port}"),
            Host::Address(IpAddr::V4(v4)) => write!(f, "{scheme}://{v4}:{port}"),
            Host::Address(IpAddr::V6(v6)) => write!(f, "{scheme}://[{v6}]:{port}"),
        }
    }
}

impl fmt::Debug for ExitUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hidden = if self.0.credentials.is_some() { ", ***" } else { "" };
        write!(f, "ExitUrl({self}{hidden})")
    }
}

impl str::FromStr for ExitUrl {
    type Err = ExitUrlError;

    fn from_str(text: &str) -> Result<ExitUrl, ExitUrlError> {
        ExitUrl::parse(text)
    }
}

/// The scheme, `http` where there is none, and what follows it. A password may hold `://`; then what stands before it is no
/// scheme, for it has a colon.
fn split_scheme(text: &str) -> Result<(ExitScheme, &str), ExitUrlError> {
    let is_scheme = |name: &str| {
        !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    };
    let Some((name, rest)) = text.split_once("://").filter(|(name, _)| is_scheme(name)) else {
        return Ok((ExitScheme::Http, text));
    };
    let known = ExitScheme::ALL.into_iter().find(|scheme| name.eq_ignore_ascii_case(scheme.as_str()));
    known.map(|scheme| (scheme, rest)).ok_or(ExitUrlError::Scheme)
}

/// `user:password`, with escapes.
fn written(userinfo: &str) -> Option<Credentials> {
    if userinfo.is_empty() {
        return None;
    }
    let (user, password) = userinfo.split_once(':').unwrap_or((userinfo, ""));
    Some(Credentials {
        user: unescape(user.as_bytes()).into(),
        password: unescape(password.as_bytes()).into(),
    })
}

/// The credentials of `host:port:user:password`, and where the port ends; `None` if it has another form.
fn sold(text: &str) -> Result<Option<(usize, Credentials)>, ExitUrlError> {
    let Some((end, after)) = host_and_port(text) else { return Ok(None) };
    let Some((user, password)) = after.split_once(':') else { return Ok(None) };
    // `user:password:host:port` is in use too; if the last part could be a port, nobody knows.
    let last = password.rsplit(':').next().unwrap_or_default();
    if user.is_empty() || is_port(last) {
        return Err(ExitUrlError::Ambiguous);
    }
    let credentials = Credentials { user: user.as_bytes().into(), password: password.as_bytes().into() };
    Ok(Some((end, credentials)))
}

/// Whether what stands before an `@` is the beginning of `host:port:user:password` rather than `user:password`.
fn looks_sold(userinfo: &str) -> bool {
    let Some((end, after)) = host_and_port(userinfo) else { return false };
    after.contains(':') && userinfo[..end].contains(['.', ']'])
}

/// Where the port ends in `host:port:…`, and what follows the colon after it.
fn host_and_port(text: &str) -> Option<(usize, &str)> {
    let host_end = if text.starts_with('[') { text.find(']')? + 1 } else { text.find(':')? };
    let after_host = text[host_end..].strip_prefix(':')?;
    let (port, after) = after_host.split_once(':')?;
    is_port(port).then_some((host_end + 1 + port.len(), after))
}

fn has_port(host_port: &str) -> bool {
    host_port.rsplit_once(':').is_some_and(|(_, port)| is_port(port.trim_end_matches('/')))
}

fn is_port(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|b| b.is_ascii_digit())
        && text.parse::<u16>().is_ok_and(|port| port > 0)
}

fn part(error: TargetError) -> ExitUrlError {
    match error {
        TargetError::Port => ExitUrlError::Port,
        _ => ExitUrlError::Host,
    }
}

/// Bytes as they may stand in the user information of any URL.
fn escape(bytes: &[u8], out: &mut String) {
    for byte in bytes {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(*byte))
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Where a token goes.
fn places(user: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut from = 0;
    std::iter::from_fn(move || {
        let at = from + user[from..].windows(PLACE.len()).position(|window| window == PLACE)?;
        from = at + PLACE.len();
        Some(at..from)
    })
}

fn with_token(user: &[u8], token: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(user.len() + SESSION_BYTES_MAX);
    let mut copied = 0;
    for place in places(user) {
        out.extend_from_slice(&user[copied..place.start]);
        out.extend_from_slice(token);
        copied = place.end;
    }
    out.extend_from_slice(&user[copied..]);
    out
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> (String, Option<(String, String)>) {
        let exit = ExitUrl::parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        (exit.name(), exit.credentials().map(|(user, password)| (shown(user), shown(password))))
    }

    #[test]
    fn e6_the_url_for_other_clients_is_read_back_byte_for_byte() {
        for text in [
            "http://u:p@h:1",
            "h:1",
            "socks5://u@h",
            "https://me-%00%FF:p@ss:w/o%25r#d \u{fc}@[::1]:8443",
            "a.example:8:us%er:p%41ss",
        ] {
            let exit = ExitUrl::parse(text).unwrap();
            let secret = exit.to_secret();
            assert_eq!(ExitUrl::parse(secret.expose()).unwrap(), exit, "{text}");
            assert!(url::Url::parse(secret.expose()).is_ok(), "{text}");
        }
    }

    #[test]
    fn e6_schemes_hosts_and_ports() {
        for (text, name) in [
            ("203.0.113.7:8080", "http://203.0.113.7:8080"),
            ("proxy.example", "http://proxy.example:80"),
            ("http://proxy.example", "http://proxy.example:80"),
            ("https://proxy.example", "https://proxy.example:443"),
            ("socks5://proxy.example", "socks5://proxy.example:1080"),
            ("socks5h://proxy.example/", "socks5h://proxy.example:1080"),
            ("SOCKS5H://PROXY.example.:1081/", "socks5h://proxy.example:1081"),
            ("HtTp://proxy.example:0080", "http://proxy.example:80"),
            ("http://[2001:DB8::0:1]:3128/", "http://[2001:db8::1]:3128"),
            ("[::1]:3128", "http://[::1]:3128"),
            ("[::1]", "http://[::1]:80"),
            ("http://bücher.example:1", "http://xn--bcher-kva.example:1"),
            ("  http://proxy.example:1\r\n", "http://proxy.example:1"),
            ("http://@proxy.example:1", "http://proxy.example:1"),
        ] {
            assert_eq!(read(text), (name.to_owned(), None), "{text}");
        }
    }

    #[test]
    fn e6_credentials_arrive_byte_for_byte() {
        for (userinfo, user, password) in [
            ("u:p", "u", "p"),
            ("u", "u", ""),
            ("u:", "u", ""),
            (":p", "", "p"),
            ("u:p@ss", "u", "p@ss"),
            ("u:p%40ss", "u", "p@ss"),
            ("u@corp.example:p@", "u@corp.example", "p@"),
            ("u:a:b:c", "u", "a:b:c"),
            ("u:a%3Ab", "u", "a:b"),
            ("u:sl/ash?q#f", "u", "sl/ash?q#f"),
            ("u:sl%2Fash%3fq%23f", "u", "sl/ash?q#f"),
            ("u:50%", "u", "50%"),
            ("u:50%25", "u", "50%"),
            ("u:a6%6qgx%zz", "u", "a6%6qgx%zz"),
            ("u:%ff%fe%00", "u", "\\xff\\xfe\\x00"),
            ("u:sp ace", "u", "sp ace"),
            ("u:a+b", "u", "a+b"),
            ("u:http://x", "u", "http://x"),
            ("jürgen:pä55€", "j\\xc3\\xbcrgen", "p\\xc3\\xa455\\xe2\\x82\\xac"),
            ("j%C3%BCrgen:p%c3%a455", "j\\xc3\\xbcrgen", "p\\xc3\\xa455"),
            ("u:\"'<>\\`{}|^[]", "u", "\\\"\\'<>\\\\`{}|^[]"),
            ("u.dot:80:x", "u.dot", "80:x"),
        ] {
            for (scheme, name) in [
                ("", "http"),
                ("http://", "http"),
                ("https://", "https"),
                ("socks5://", "socks5"),
                ("socks5h://", "socks5h"),
            ] {
                let text = format!("{scheme}{userinfo}@[::1]:9/");
                let expected = (format!("{name}://[::1]:9"), Some((user.to_owned(), password.to_owned())));
                assert_eq!(read(&text), expected, "{text}");
            }
        }
    }

    #[test]
    fn e6_the_sellers_form_is_read_where_it_has_one_meaning() {
        for (text, expected) in [
            ("203.0.113.7:8080:u:p", Ok(("http://203.0.113.7:8080", "u", "p"))),
            ("http://203.0.113.7:8080:u:p", Ok(("http://203.0.113.7:8080", "u", "p"))),
            ("socks5://h:1080:u:p", Ok(("socks5://h:1080", "u", "p"))),
            ("[::1]:8080:u:p", Ok(("http://[::1]:8080", "u", "p"))),
            ("h:8080:u:a:b/c?d#%41", Ok(("http://h:8080", "u", "a:b/c?d#%41"))),
            ("h:8080:u:123456", Ok(("http://h:8080", "u", "123456"))),
            ("u:1234:h:8080", Err(ExitUrlError::Ambiguous)),
            ("h:8080::p", Err(ExitUrlError::Ambiguous)),
            ("203.0.113.7:8080:u:p@ss", Err(ExitUrlError::Ambiguous)),
            ("[::1]:8080:u:p@ss.example", Err(ExitUrlError::Ambiguous)),
            ("u:secret:h:8080", Err(ExitUrlError::Port)),
        ] {
            let read = ExitUrl::parse(text);
            let shown = |bytes: &[u8]| String::from_utf8(bytes.to_owned()).unwrap();
            let found = read.map(|exit| {
                let (user, password) = exit.credentials().expect("credentials");
                (exit.name(), shown(user), shown(password))
            });
            let expected = expected.map(|(n, u, p)| (n.to_owned(), u.to_owned(), p.to_owned()));
            assert_eq!(found, expected, "{text}");
        }
    }

    #[test]
    fn e6_what_is_no_exit_is_refused_with_a_reason() {
        let long = format!("http://u:{}@h:1", "p".repeat(EXIT_URL_BYTES_MAX));
        let socks = |user: usize, password: usize| {
            format!("socks5://{}:{}@h:1", "u".repeat(user), "p".repeat(password))
        };
        for (text, error) in [
            ("", ExitUrlError::Empty),
            (" \r\n", ExitUrlError::Empty),
            ("socks4://h:1", ExitUrlError::Scheme),
            ("socks9://h:1", ExitUrlError::Scheme),
            ("ftp://u:p@h:1", ExitUrlError::Scheme),
            ("http://", ExitUrlError::Host),
            ("http://u:p@", ExitUrlError::Host),
            ("http://u:p@:80", ExitUrlError::Host),
            ("http://a b:80", ExitUrlError::Host),
            ("http://[::1:80", ExitUrlError::Host),
            ("2001:db8::1", ExitUrlError::Port),
            ("h:0", ExitUrlError::Port),
            ("h:65536", ExitUrlError::Port),
            ("h:+80", ExitUrlError::Port),
            ("h:80/path", ExitUrlError::Path),
            ("h:80//", ExitUrlError::Path),
            ("h:80?q", ExitUrlError::Path),
            ("h:80#f", ExitUrlError::Path),
            ("http://a%3Ab:p@h:1", ExitUrlError::Colon),
            (&long, ExitUrlError::TooLong),
            (&socks(256, 1), ExitUrlError::SocksLength),
            (&socks(1, 256), ExitUrlError::SocksLength),
        ] {
            assert_eq!(ExitUrl::parse(text), Err(error), "{text}");
        }
        assert!(ExitUrl::parse(&socks(255, 255)).is_ok());
        assert!(ExitUrl::parse("socks5://a%3Ab:p@h:1").is_ok(), "SOCKS sends the two apart");
        let scheme = ExitUrlError::Scheme.to_string();
        assert!(ExitScheme::ALL.iter().all(|s| scheme.contains(s.as_str())), "{scheme}");
    }

    #[test]
    fn s2_exits_that_differ_in_credentials_are_two() {
        let parse = |text| ExitUrl::parse(text).unwrap();
        let same = ["http://u:p%41@h:80", "HTTP://u:pA@H.", "u:pA@h", "h:80:u:pA"].map(parse);
        assert_eq!(HashSet::from(same).len(), 1);
        let two = ["h:80", "u@h:80", "u:p@h:80", "v:p@h:80", "u:q@h:80", "https://u:p@h:80", "u:p@h:81"];
        assert_eq!(HashSet::from(two.map(parse)).len(), two.len());
    }

    #[test]
    fn e4_a_session_token_goes_into_the_user_name() {
        let exit = ExitUrl::parse("http://me-sess-{session}:p{session}@h:1").unwrap();
        assert!(exit.has_session());
        let with = exit.with_session("a1b2");
        assert_eq!(with.credentials(), Some((&b"me-sess-a1b2"[..], &b"p{session}"[..])));
        assert!(!with.has_session() && with != exit && with != exit.with_session("a1b3"));
        assert_eq!(with.name(), exit.name());
        let escaped = ExitUrl::parse("http://%7Bsession%7D-{session}@h:1").unwrap();
        assert_eq!(escaped.with_session("t").credentials().unwrap().0, b"t-t");
        let plain = ExitUrl::parse("http://u:{session}@h:1").unwrap();
        assert!(!plain.has_session());
        assert_eq!(plain.with_session("t"), plain);
        // The room in SOCKS is counted with the longest token.
        let socks = |fill: usize| ExitUrl::parse(&format!("socks5://{}{{session}}@h:1", "u".repeat(fill)));
        let full = socks(SOCKS_BYTES_MAX - SESSION_BYTES_MAX).unwrap().with_session(&"t".repeat(99));
        assert_eq!(full.credentials().unwrap().0.len(), SOCKS_BYTES_MAX);
        assert_eq!(socks(SOCKS_BYTES_MAX - SESSION_BYTES_MAX + 1), Err(ExitUrlError::SocksLength));
    }

    #[test]
    fn k1_an_exit_is_printed_without_its_credentials() {
        let exit = ExitUrl::parse("http://us3r:S3cr3t@h:1").unwrap();
        let shown = format!("{exit} {exit:?} {exit:#?} {}", exit.name());
        assert!(!shown.contains("us3r") && !shown.contains("S3cr3t"), "{shown}");
        assert_eq!(format!("{exit:?}"), "ExitUrl(http://h:1, ***)");
    }

    proptest! {
        #[test]
        fn e6_any_bytes_written_as_escapes_arrive(user in prop::collection::vec(any::<u8>(), 1..40),
                                                  password in prop::collection::vec(any::<u8>(), 0..40)) {
            let escaped = |bytes: &[u8]| bytes.iter().map(|b| format!("%{b:02x}")).collect::<String>();
            let text = format!("socks5://{}:{}@h:1", escaped(&user), escaped(&password));
            let exit = ExitUrl::parse(&text).unwrap();
            prop_assume!(!exit.has_session());
            prop_assert_eq!(exit.credentials(), Some((&user[..], &password[..])));
        }

        #[test]
        fn e6_any_text_without_escapes_arrives(password in "[^%\u{0}-\u{1f}\u{7f}]{0,40}") {
            let exit = ExitUrl::parse(&format!("http://u:{password}@proxy.example:1")).unwrap();
            prop_assert_eq!(exit.credentials().unwrap().1, password.as_bytes());
        }

        #[test]
        fn e6_hostile_text_is_an_exit_or_an_error(text in ".{0,60}") {
            let _ = ExitUrl::parse(&text);
        }

        #[test]
        fn e6_hostile_parts_are_an_exit_or_an_error(text in "(http|socks5)?(://)?[a:0-9@\\[\\]/%é.]{0,24}") {
            let _ = ExitUrl::parse(&text);
        }
    }
}

//! The proxy variables of the environment (E6).
//!
//! Nobody has written these rules down; where tools differ, this is what most do (curl, Go, Python's requests). They hold
//! only where no exit is configured.

use std::{env, ffi::OsString, fmt, net::IpAddr};

use ipnet::IpNet;

use super::{ExitUrl, ExitUrlError};
use crate::client::{Host, Scheme, Target, parse_host, split_port};

/// What the proxy variables say, as it was found; nothing has been read from it yet.
///
/// Empty by default: a library reads no environment unless it is asked to.
#[derive(Clone, Default)]
pub struct Environment(Vec<(&'static str, OsString)>);

impl Environment {
    /// The proxy variables of this process.
    #[must_use]
    pub fn of_process() -> Environment {
        Environment::of(env::var_os)
    }

    /// The proxy variables as `find` has them.
    #[must_use]
    pub fn of(find: impl Fn(&'static str) -> Option<OsString>) -> Environment {
        let found = |name| Some((name, find(name).filter(|value| !value.is_empty())?));
        Environment(VARIABLES.into_iter().filter_map(found).collect())
    }

    /// The first of `names` that is set.
    fn first(&self, names: [&'static str; 2]) -> Result<Option<(&'static str, &str)>, EnvError> {
        let found = names.into_iter().find_map(|name| self.0.iter().find(|(n, _)| *n == name));
        let Some((variable, value)) = found else { return Ok(None) };
        let variable = *variable;
        let text = value.to_str().map(str::trim).ok_or(EnvError::NotUtf8 { variable })?;
        Ok(Some((variable, text)).filter(|_| !text.is_empty()))
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(n, _)| *n == name)
    }
}

impl fmt::Debug for Environment {
    /// Names only: a value may hold a password (K1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|(name, _)| name)).finish()
    }
}

/// Why a variable cannot be used. Never holds its value (K1).
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EnvError {
    /// It is set to what is no exit.
    #[error("{variable}: {source}")]
    Url {
        /// The variable's name.
        variable: &'static str,
        /// What is wrong.
        source: ExitUrlError,
    },
    /// It is set to what is no text.
    #[error("{variable}: not UTF-8")]
    NotUtf8 {
        /// The variable's name.
        variable: &'static str,
    },
}

/// The exits that the environment names.
///
/// ```
/// use forbear::{client::Target, exit::{EnvProxies, Environment}};
/// let environment = Environment::of(|name| match name {
///     "HTTPS_PROXY" => Some("http://me:pw@proxy.example:3128".into()),
///     "NO_PROXY" => Some("internal.example, 10.0.0.0/8".into()),
///     _ => None,
/// });
/// let proxies = EnvProxies::read(&environment)?;
/// let exit = |url| proxies.for_target(&Target::parse(url).unwrap()).map(|exit| exit.name());
/// assert_eq!(exit("https://example.com/").as_deref(), Some("http://proxy.example:3128"));
/// assert_eq!(exit("http://example.com/"), None);
/// assert_eq!(exit("https://api.internal.example/"), None);
/// # Ok::<(), forbear::exit::EnvError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct EnvProxies {
    /// For `http` URLs: `http_proxy`, else `all_proxy`.
    pub http: Option<ExitUrl>,
    /// For `https` URLs: `https_proxy`, else `all_proxy`.
    pub https: Option<ExitUrl>,
    no: NoProxy,
    /// The variables that `http` and `https` are from.
    names: [Option<&'static str>; 2],
    /// The variable that `no` is from.
    no_name: Option<&'static str>,
}

impl EnvProxies {
    /// Reads the variables. Of two spellings the one in small letters counts, and an empty one is not set.
    ///
    /// `HTTP_PROXY` in capitals does not count where `REQUEST_METHOD` is set: in a CGI program it is a request's header
    /// `Proxy`, so anybody could choose where requests go ([CVE-2016-5385]).
    ///
    /// [CVE-2016-5385]: https://httpoxy.org/
    ///
    /// # Errors
    /// The first variable that cannot be used.
    pub fn read(environment: &Environment) -> Result<EnvProxies, EnvError> {
        let proxy = |names| {
            let Some((variable, text)) = environment.first(names)? else { return Ok(None) };
            let url = ExitUrl::parse(text).map_err(|source| EnvError::Url { variable, source })?;
            Ok(Some((url, variable)))
        };
        let of_http =
            if environment.has(CGI) { ["http_proxy", "http_proxy"] } else { ["http_proxy", "HTTP_PROXY"] };
        let (http, https) = (proxy(of_http)?, proxy(["https_proxy", "HTTPS_PROXY"])?);
        let all = proxy(["all_proxy", "ALL_PROXY"])?;
        let no = environment.first(["no_proxy", "NO_PROXY"])?;
        let (http, http_name) = http.or_else(|| all.clone()).unzip();
        let (https, https_name) = https.or(all).unzip();
        let (no_name, no) = no.map(|(variable, text)| (variable, NoProxy::parse(text))).unzip();
        Ok(EnvProxies { http, https, no: no.unwrap_or_default(), names: [http_name, https_name], no_name })
    }

    /// Whether all requests go directly.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.http.is_none() && self.https.is_none()
    }

    /// The exit for a request to `target`; `None` is the direct way.
    #[must_use]
    pub fn for_target(&self, target: &Target) -> Option<&ExitUrl> {
        let exit = match target.scheme() {
            Scheme::Http => self.http.as_ref(),
            Scheme::Https => self.https.as_ref(),
        };
        exit.filter(|_| !self.no.contains(target.host(), target.port()))
    }

    /// Scheme of URL, exit, and the variable that names it.
    pub(crate) fn shown(&self) -> impl Iterator<Item = (&'static str, &ExitUrl, &'static str)> {
        let each = [("http", &self.http, self.names[0]), ("https", &self.https, self.names[1])];
        each.into_iter().filter_map(|(scheme, exit, name)| Some((scheme, exit.as_ref()?, name?)))
    }

    /// What is asked for directly, as it was understood, and the variable that says so. None where everything is.
    pub(crate) fn directly(&self) -> Option<(String, &'static str)> {
        let variable = self.no_name.filter(|_| !self.is_empty())?;
        let mut words: Vec<String> = self.no.0.iter().take(SHOWN_MAX).map(shown).collect();
        if let Some(more) = self.no.0.len().checked_sub(SHOWN_MAX).filter(|more| *more > 0) {
            words.push(format!("{more} more"));
        }
        Some((if words.is_empty() { "nothing".to_owned() } else { words.join(", ") }, variable))
    }
}

/// An entry of `no_proxy`.
fn shown((hosts, port): &(Hosts, Option<u16>)) -> String {
    let hosts = match hosts {
        Hosts::All => "*".to_owned(),
        Hosts::Net(net) if net.prefix_len() < net.max_prefix_len() => net.to_string(),
        Hosts::Net(net) => match (net.addr(), port) {
            (IpAddr::V6(address), Some(_)) => format!("[{address}]"),
            (address, _) => address.to_string(),
        },
        Hosts::Name(name) => name.to_string(),
    };
    port.map_or(hosts.clone(), |port| format!("{hosts}:{port}"))
}

/// What is asked for directly.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
struct NoProxy(Vec<(Hosts, Option<u16>)>);

#[derive(Clone, Debug, Eq, PartialEq)]
enum Hosts {
    All,
    Net(IpNet),
    /// This name and all below it, lower-case, without the dot in front.
    Name(Box<str>),
}

impl NoProxy {
    /// Entries with commas or white space between. One that makes no sense names no host, so it matches none.
    fn parse(text: &str) -> NoProxy {
        let entries = text.split(|c: char| c == ',' || c.is_whitespace()).filter(|entry| !entry.is_empty());
        NoProxy(entries.filter_map(NoProxy::entry).take(ENTRIES_MAX).collect())
    }

    fn entry(text: &str) -> Option<(Hosts, Option<u16>)> {
        if text == "*" {
            return Some((Hosts::All, None));
        }
        if let Ok(net) = text.parse::<IpNet>() {
            return Some((Hosts::Net(net), None));
        }
        // A bare IPv6 address has colons, and none of them is before a port.
        if let Ok(address) = text.parse::<IpAddr>() {
            return Some((Hosts::Net(address.to_canonical().into()), None));
        }
        let (host, port) = split_port(text.as_bytes()).ok()?;
        if host == b"*" {
            return Some((Hosts::All, port));
        }
        let name = host.strip_prefix(b"*").unwrap_or(host);
        match parse_host(name.strip_prefix(b".").unwrap_or(name)).ok()? {
            Host::Name(name) => Some((Hosts::Name(name), port)),
            Host::Address(address) => Some((Hosts::Net(address.to_canonical().into()), port)),
        }
    }

    fn contains(&self, host: &Host, port: u16) -> bool {
        self.0.iter().any(|(hosts, of_port)| {
            of_port.is_none_or(|of_port| of_port == port)
                && match (hosts, host) {
                    (Hosts::All, _) => true,
                    (Hosts::Net(net), Host::Address(address)) => net.contains(&address.to_canonical()),
                    (Hosts::Name(suffix), Host::Name(name)) => name
                        .strip_suffix(&**suffix)
                        .is_some_and(|before| before.is_empty() || before.ends_with('.')),
                    _ => false,
                }
        })
    }
}

/// Set where a program is called by a web server ([RFC 3875 section 4.1.12]).
///
/// [RFC 3875 section 4.1.12]: https://www.rfc-editor.org/rfc/rfc3875#section-4.1.12
const CGI: &str = "REQUEST_METHOD";

const VARIABLES: [&str; 9] = [
    "http_proxy",
    "HTTP_PROXY",
    "https_proxy",
    "HTTPS_PROXY",
    "all_proxy",
    "ALL_PROXY",
    "no_proxy",
    "NO_PROXY",
    CGI,
];

/// Each origin is compared with every entry, once.
const ENTRIES_MAX: usize = 10_000;
/// So many of them are shown one by one.
const SHOWN_MAX: usize = 20;

#[cfg(test)]
mod tests {
    use super::*;

    type Set<'a> = &'a [(&'a str, &'a str)];

    fn environment(set: Set<'_>) -> Environment {
        let find = |name: &str| set.iter().find(|(n, _)| *n == name).map(|(_, value)| value.into());
        Environment::of(find)
    }

    fn read(set: Set<'_>) -> EnvProxies {
        EnvProxies::read(&environment(set)).unwrap_or_else(|e| panic!("{set:?}: {e}"))
    }

    #[test]
    fn e6_both_spellings_of_a_variable_count() {
        for (set, http, https) in [
            (&[][..], "", ""),
            (&[("http_proxy", "a:1")], "http://a:1", ""),
            (&[("HTTP_PROXY", "a:1")], "http://a:1", ""),
            (&[("https_proxy", "a:1")], "", "http://a:1"),
            (&[("HTTPS_PROXY", "a:1")], "", "http://a:1"),
            (&[("all_proxy", "socks5h://a")], "socks5h://a:1080", "socks5h://a:1080"),
            (&[("ALL_PROXY", "socks5h://a")], "socks5h://a:1080", "socks5h://a:1080"),
            (&[("ALL_PROXY", "a:1"), ("HTTPS_PROXY", "b:2")], "http://a:1", "http://b:2"),
            (&[("http_proxy", "a:1"), ("HTTP_PROXY", "b:2")], "http://a:1", ""),
            (&[("http_proxy", ""), ("HTTP_PROXY", "b:2")], "http://b:2", ""),
            (&[("http_proxy", " \t")], "", ""),
            // In a CGI program the capitals are the client's.
            (&[("HTTP_PROXY", "a:1"), ("REQUEST_METHOD", "GET")], "", ""),
            (&[("http_proxy", "a:1"), ("REQUEST_METHOD", "GET")], "http://a:1", ""),
            (&[("HTTPS_PROXY", "a:1"), ("REQUEST_METHOD", "GET")], "", "http://a:1"),
        ] {
            let found = read(set);
            let name = |exit: &Option<ExitUrl>| exit.as_ref().map(ExitUrl::name).unwrap_or_default();
            assert_eq!(
                (name(&found.http), name(&found.https)),
                (http.to_owned(), https.to_owned()),
                "{set:?}"
            );
            assert_eq!(found.is_empty(), http.is_empty() && https.is_empty());
        }
    }

    #[test]
    fn c4_no_proxy_is_shown_as_it_was_understood() {
        let shown = |no| read(&[("http_proxy", "p:1"), ("NO_PROXY", no)]).directly();
        let many: String = (0..22).map(|n| format!("h{n} ")).collect();
        for (no, expected) in [
            ("localhost, .Foo.example:81", "localhost, foo.example:81"),
            ("10.1.2.3,10.0.0.0/8 ::1,[::1]:80", "10.1.2.3, 10.0.0.0/8, ::1, [::1]:80"),
            ("*", "*"),
            ("10.0.0.0/33", "nothing"),
        ] {
            assert_eq!(shown(no), Some((expected.to_owned(), "NO_PROXY")));
        }
        assert!(shown(&many).unwrap().0.ends_with("h18, h19, 2 more"));
        assert_eq!(read(&[("NO_PROXY", "a")]).directly(), None, "everything goes directly");
    }

    #[test]
    fn e6_no_proxy_names_what_is_asked_for_directly() {
        for (no, url, direct) in [
            ("", "http://a.example/", false),
            ("*", "http://a.example/", true),
            ("*", "http://127.0.0.1/", true),
            ("x.example, *", "http://[::1]/", true),
            ("example.com", "http://example.com/", true),
            ("example.com", "http://www.example.com/", true),
            ("example.com", "http://notexample.com/", false),
            ("example.com", "http://example.com.evil.example/", false),
            (".example.com", "http://example.com/", true),
            (".example.com", "https://a.b.example.com/", true),
            (".example.com", "http://notexample.com/", false),
            ("*.example.com", "http://www.example.com/", true),
            ("EXAMPLE.com.", "http://www.example.COM./", true),
            ("bücher.example", "http://xn--bcher-kva.example/", true),
            ("a.example,b.example", "http://b.example/", true),
            (" a.example ,\tb.example ", "http://b.example/", true),
            ("a.example b.example", "http://b.example/", true),
            ("localhost", "http://localhost:8080/", true),
            ("localhost", "http://127.0.0.1/", false),
            ("10.1.2.3", "http://10.1.2.3/", true),
            ("10.1.2.3", "http://10.1.2.30/", false),
            ("10.1", "http://10.0.0.1/", true),
            ("10.0.0.0/8", "http://10.255.0.1:81/", true),
            ("10.0.0.0/8", "http://11.0.0.1/", false),
            ("10.9.9.9/8", "http://10.0.0.1/", true),
            ("10.0.0.0/8", "http://10.example/", false),
            ("0.0.0.0/0", "http://9.9.9.9/", true),
            ("0.0.0.0/0", "http://[2001:db8::1]/", false),
            ("::1", "http://[::1]/", true),
            ("[::1]", "http://[0:0::1]/", true),
            ("2001:db8::/32", "http://[2001:db8:ffff::1]/", true),
            ("2001:db8::/32", "http://[2001:db9::1]/", false),
            ("127.0.0.0/8", "http://[::ffff:127.0.0.1]/", true),
            ("a.example:8080", "http://a.example:8080/", true),
            ("a.example:8080", "http://a.example/", false),
            ("a.example:80", "http://a.example/", true),
            ("a.example:443", "https://www.a.example/", true),
            ("[::1]:8080", "http://[::1]:8080/", true),
            ("127.0.0.1:8080", "http://127.0.0.1:8081/", false),
            ("*:8080", "http://a.example:8080/", true),
            ("*:8080", "http://a.example/", false),
            ("<local>, 10.*, a..b, :80, %%%, 10.0.0.0/99", "http://10.0.0.1/", false),
        ] {
            let proxies = read(&[("all_proxy", "p:1"), ("no_proxy", no)]);
            let target = Target::parse(url).unwrap();
            assert_eq!(proxies.for_target(&target).is_none(), direct, "{no} {url}");
            let capitals = read(&[("all_proxy", "p:1"), ("NO_PROXY", no)]);
            assert_eq!(capitals.for_target(&target), proxies.for_target(&target));
        }
    }

    #[test]
    fn k1_a_bad_variable_is_named_and_its_value_is_not() {
        for variable in &VARIABLES[..6] {
            for value in ["socks4://u:S3cr3t@h", "http://u:S3cr3t@", "http://u:S3cr3t@h/S3cr3t"] {
                let environment = environment(&[(variable, value)]);
                let error = EnvProxies::read(&environment).unwrap_err();
                assert!(error.to_string().starts_with(&format!("{variable}: ")), "{error}");
                assert!(!format!("{error} {error:?} {environment:?}").contains("S3cr3t"), "{error:?}");
            }
        }
        let good = read(&[("http_proxy", "http://us3r:S3cr3t@h")]);
        assert!(!format!("{good:?}").contains("S3cr3t") && !format!("{good:?}").contains("us3r"));
    }

    #[cfg(unix)]
    #[test]
    fn e6_a_variable_that_is_no_text_is_refused() {
        use std::os::unix::ffi::OsStringExt;
        let find = |name| (name == "http_proxy").then(|| OsString::from_vec(b"http://u:p\xff@h".to_vec()));
        let error = EnvProxies::read(&Environment::of(find)).unwrap_err();
        assert_eq!(error, EnvError::NotUtf8 { variable: "http_proxy" });
    }
}

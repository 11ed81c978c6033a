//! Cookies, where they are switched on: a jar for each exit, and one for the direct way.

use cookie_store::{Cookie, CookieDomain, CookieError, CookieStore};
use http::{HeaderMap, HeaderValue, header};
use parking_lot::Mutex;
use url::Url;

use crate::client::Target;

/// Keeps what servers set, and sends it back where it belongs ([RFC 6265](https://www.rfc-editor.org/rfc/rfc6265)).
/// Cookies tell no accounts apart, and die with the run.
pub(super) struct Cookies(Option<Mutex<CookieStore>>);

impl Cookies {
    /// A jar, or none: without it nothing is kept or sent but what an item brings along.
    pub(super) fn new(on: bool) -> Cookies {
        Cookies(on.then(Mutex::default))
    }

    /// Takes in the `Set-Cookie` fields of an answer.
    pub(super) fn store(&self, from: &Target, headers: &HeaderMap) {
        let Some(jar) = &self.0 else { return };
        let Ok(url) = Url::parse(from.as_str()) else { return };
        let mut jar = jar.lock();
        for field in headers.get_all(header::SET_COOKIE) {
            let Ok(text) = field.to_str() else { continue };
            if jar.iter_any().count() < COOKIES_MAX
                && let Err(error) = parse(text, &url).and_then(|cookie| jar.insert(cookie, &url))
            {
                tracing::debug!(%error, "a cookie is not kept");
            }
        }
    }

    /// Throws away what would be sent to an origin: its exit is left there (E4).
    pub(super) fn forget(&self, origin: &str) {
        let Some(jar) = &self.0 else { return };
        let Ok(url) = Url::parse(origin) else { return };
        let mut jar = jar.lock();
        let gone: Vec<(String, String, String)> = jar
            .iter_any()
            .filter(|cookie| cookie.domain.matches(&url))
            .filter_map(|cookie| {
                let domain = cookie.domain.as_cow()?.into_owned();
                Some((domain, String::from(&cookie.path), cookie.name().to_owned()))
            })
            .collect();
        for (domain, path, name) in gone {
            jar.remove(&domain, &path, &name);
        }
    }

    /// Adds the cookies that belong to a target, unless the request brings its own.
    pub(super) fn add(&self, to: &Target, headers: &mut HeaderMap) {
        let Some(jar) = &self.0 else { return };
        if headers.contains_key(header::COOKIE) {
            return;
        }
        let Ok(url) = Url::parse(to.as_str()) else { return };
        let pairs: Vec<String> =
            jar.lock().get_request_values(&url).map(|(name, value)| format!("{name}={value}")).collect();
        if let Ok(mut value) = HeaderValue::from_str(&pairs.join("; "))
            && !pairs.is_empty()
        {
            value.set_sensitive(true);
            headers.insert(header::COOKIE, value);
        }
    }
}

/// A cookie of `from`. A domain of one label belongs to nobody, as all of `com`: refused, but where it is the host itself,
/// which then keeps it alone ([RFC 6265 section 5.3](https://www.rfc-editor.org/rfc/rfc6265#section-5.3), 5). Longer
/// public suffixes are not known: no list comes along.
fn parse(text: &str, from: &Url) -> Result<Cookie<'static>, CookieError> {
    let mut cookie = Cookie::parse(text, from)?.into_owned();
    if matches!(&cookie.domain, CookieDomain::Suffix(domain) if !domain.contains('.')) {
        if !cookie.domain.host_is_identical(from) {
            return Err(CookieError::DomainMismatch);
        }
        cookie.domain = CookieDomain::host_only(from)?;
    }
    Ok(cookie)
}

/// Cookies of all sites together (K4).
const COOKIES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip(on: bool, from: &str, set: &str, to: &str) -> Option<String> {
        let cookies = Cookies::new(on);
        let from = Target::parse(from).unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(header::SET_COOKIE, set.parse().unwrap());
        cookies.store(&from, &headers);
        let mut sent = HeaderMap::new();
        cookies.add(&Target::parse(to).unwrap(), &mut sent);
        sent.get(header::COOKIE).map(|value| value.to_str().unwrap().to_owned())
    }

    #[test]
    fn k2_cookies_go_back_where_they_belong_and_nowhere_else() {
        for (from, set, to, expected) in [
            ("http://a.example/x", "k=v", "http://a.example/y", Some("k=v")),
            ("http://a.example/x", "k=v", "http://b.example/y", None),
            ("http://a.example/x", "k=v", "http://sub.a.example/y", None),
            ("http://a.example/x", "k=v; Secure", "http://a.example/y", None),
            ("http://a.example/x", "k=v; Path=/deep", "http://a.example/y", None),
            ("http://a.example/x", "k=v; Domain=a.example", "http://sub.a.example/", Some("k=v")),
            ("http://a.example/x", "k=v; Domain=b.example", "http://b.example/", None),
            ("http://a.example/x", "k=v; Domain=example", "http://a.example/", None),
            ("http://a.example/x", "k=v; Domain=example", "http://b.example/", None),
            ("http://a.example/x", "k=v; Domain=.EXAMPLE", "http://b.example/", None),
            ("http://intranet/x", "k=v; Domain=intranet", "http://intranet/", Some("k=v")),
            ("http://intranet/x", "k=v; Domain=intranet", "http://wiki.intranet/", None),
        ] {
            assert_eq!(round_trip(true, from, set, to).as_deref(), expected, "{from}: {set} -> {to}");
        }
        let off = round_trip(false, "http://a.example/x", "k=v", "http://a.example/y");
        assert_eq!(off, None, "switched off");
    }
}

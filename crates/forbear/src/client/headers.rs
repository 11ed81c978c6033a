//! The header fields of a request: ours, the item's, and those that neither may set.

use base64::Engine as _;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderName, HeaderValue};
use http::uri::Authority;
use http::{Method, Uri};

use super::fault::{FaultKind, Phase};
use super::target::Target;
use super::{Fault, dial::not_sent};

/// Codings that [`super::Body`] undoes.
const ACCEPT_ENCODING: HeaderValue = HeaderValue::from_static("gzip, br, zstd, deflate");

/// The fields that go out: `Host`, `User-Agent` (unless ours is empty), `Accept` and `Accept-Encoding` by default, the
/// item's own instead of and beside them, credentials of the URL unless the item has an `Authorization`, and our own
/// framing.
pub(super) fn assemble(
    method: &Method,
    target: &Target,
    own: HeaderMap,
    body: &Bytes,
    user_agent: &HeaderValue,
) -> Result<HeaderMap, Fault> {
    let mut headers = HeaderMap::with_capacity(own.len() + 6);
    let host = match own.get(header::HOST) {
        Some(host) => host.clone(),
        None => target
            .host_value()
            .map_err(|error| not_sent(FaultKind::InvalidRequest, Phase::Send).because(error))?,
    };
    headers.insert(header::HOST, host); // first, as RFC 9110 section 7.2 asks
    let defaults = [
        (header::USER_AGENT, user_agent.clone()),
        (header::ACCEPT, HeaderValue::from_static("*/*")),
        (header::ACCEPT_ENCODING, ACCEPT_ENCODING),
    ];
    for (name, value) in defaults {
        if !value.is_empty() && !own.contains_key(&name) {
            headers.insert(name, value);
        }
    }
    if let Some(value) = target.authorization().filter(|_| !own.contains_key(header::AUTHORIZATION)) {
        headers.insert(header::AUTHORIZATION, value.clone());
    }
    let mut last = None;
    let mut skip = false;
    for (name, mut value) in own {
        if let Some(name) = name {
            skip = name == header::HOST || is_ours(&name) || name == header::TE && value != "trailers";
            last = Some(name);
        }
        if let (Some(name), false) = (&last, skip) {
            if is_secret(name) {
                value.set_sensitive(true);
            }
            headers.append(name, value);
        }
    }
    // A body of zero bytes is said to be one where the method is made for bodies (RFC 9110 section 8.6).
    if !body.is_empty() || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(body.len()));
    }
    Ok(headers)
}

/// The same request in the form of HTTP/2: the host is part of the target ([RFC 9113 section 8.3.1]).
///
/// [RFC 9113 section 8.3.1]: https://www.rfc-editor.org/rfc/rfc9113#section-8.3.1
pub(super) fn for_h2<B>(request: &http::Request<B>, target: &Target) -> Result<http::Request<()>, Fault> {
    let invalid = |error: http::Error| not_sent(FaultKind::InvalidRequest, Phase::Send).because(error);
    let mut headers = request.headers().clone();
    let authority = match headers.remove(header::HOST) {
        Some(host) => Authority::try_from(host.as_bytes()).map_err(|error| invalid(error.into()))?,
        None => target.uri_authority().map_err(|error| invalid(error.into()))?,
    };
    let uri = Uri::builder().scheme(target.scheme().as_str()).authority(authority);
    let uri = uri.path_and_query(target.path_and_query()).build().map_err(invalid)?;
    let mut same = http::Request::new(());
    *same.method_mut() = request.method().clone();
    *same.uri_mut() = uri;
    *same.version_mut() = http::Version::HTTP_2;
    *same.headers_mut() = headers;
    Ok(same)
}

/// The same request for a proxy that forwards it: the whole target, and who asks.
pub(super) fn for_exit<B>(
    request: &mut http::Request<B>,
    target: &Target,
    authorization: Option<&HeaderValue>,
) -> Result<(), Fault> {
    let uri = target.absolute_uri();
    *request.uri_mut() =
        uri.map_err(|error| not_sent(FaultKind::InvalidRequest, Phase::Send).because(error))?;
    if let Some(value) = authorization {
        request.headers_mut().insert(header::PROXY_AUTHORIZATION, value.clone());
    }
    Ok(())
}

/// Basic credentials of any bytes ([RFC 7617](https://www.rfc-editor.org/rfc/rfc7617)).
pub(super) fn basic(user: &[u8], password: &[u8]) -> Option<HeaderValue> {
    let encoded = base64::engine::general_purpose::STANDARD.encode([user, password].join(&b':'));
    let mut value = HeaderValue::try_from(format!("Basic {encoded}")).ok()?;
    value.set_sensitive(true);
    Some(value)
}

/// Fields that belong to the connection, to the framing or to an exit. An item that carries them by mistake is sent
/// without them.
fn is_ours(name: &HeaderName) -> bool {
    matches!(
        *name,
        header::CONNECTION
            | header::CONTENT_LENGTH
            | header::EXPECT
            | header::PROXY_AUTHENTICATE
            | header::PROXY_AUTHORIZATION
            | header::TRAILER
            | header::TRANSFER_ENCODING
            | header::UPGRADE
    ) || matches!(name.as_str(), "keep-alive" | "proxy-connection" | "http2-settings")
}

/// Whether a field's value is a secret by its name alone (K1). Better one too many.
pub fn is_secret(name: &HeaderName) -> bool {
    const PARTS: [&str; 9] = [
        "authorization",
        "cookie",
        "token",
        "secret",
        "password",
        "api-key",
        "apikey",
        "signature",
        "credential",
    ];
    PARTS.iter().any(|part| name.as_str().contains(part))
}

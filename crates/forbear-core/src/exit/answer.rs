//! Whose answer it is: the origin's, which came through an exit, or the exit's own.
//!
//! To `CONNECT`, and in SOCKS, only the exit answers, and what it says stands in [`of_connect`] and [`of_socks_reply`]. A
//! request that an HTTP proxy forwards without a tunnel is answered by either, in the same form. [`answered_by`] knows the
//! exit's own answers by marks that the proxies in use leave in the head. Where nothing tells, it is the origin's.
//!
//! A cache or a gateway in front of an origin can leave the same marks. So an answer is only read as one of these:
//!
//! - [`ExitFault::NoWay`] or [`ExitFault::Forbidden`]: another exit settles whose it was.
//! - [`ExitFault::Silent`]: the exit had passed the request on and got no answer. Alone of these it leaves open whether the
//!   origin has acted (V2).
//! - [`ExitFault::Rejected`]: for 407, which is about proxies alone (RFC 9110 section 15.5.8).
//! - [`ExitFault::Broken`]: for what the exit says of itself.

use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::{
    hint::{self, Response},
    outcome::ExitFault,
    time::Timestamp,
};

/// Who answered.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Answerer {
    /// The origin, as far as anybody can tell.
    Origin,
    /// The exit itself: the origin has no part in it.
    Exit(ExitFault),
}

/// Whose answer the head of a response is that came from an HTTP proxy without a tunnel.
///
/// ```
/// use forbear_core::{exit::{Answerer, answered_by}, outcome::ExitFault};
/// let mut headers = http::HeaderMap::new();
/// assert_eq!(answered_by(503, &headers), Answerer::Origin);
/// headers.insert("x-squid-error", "ERR_CONNECT_FAIL 111".parse()?);
/// assert_eq!(answered_by(503, &headers), Answerer::Exit(ExitFault::NoWay));
/// assert_eq!(answered_by(200, &headers), Answerer::Origin);
/// # Ok::<(), http::header::InvalidHeaderValue>(())
/// ```
#[must_use]
pub fn answered_by(status: u16, headers: &HeaderMap) -> Answerer {
    let mark = match status {
        407 => Some(ExitFault::Rejected),
        403 | 404 | 500..=599 => squid(status, headers)
            .or_else(|| proxy_status(status, headers))
            .or_else(|| named(status, headers)),
        _ => None,
    };
    mark.map_or(Answerer::Origin, Answerer::Exit)
}

/// What an answer to `CONNECT` means that opens no tunnel, any but 2xx. `now` is the client's own clock at receipt.
///
/// Marks come before the status: squid says 503 and tinyproxy 500 where they cannot reach the origin.
#[must_use]
pub fn of_connect(status: u16, headers: &HeaderMap, now: Timestamp) -> ExitFault {
    match (answered_by(status, headers), status) {
        (Answerer::Exit(fault), _) => fault,
        (_, 401) => ExitFault::Rejected, // the wrong status for it, and in use
        (_, 429 | 503) => {
            let response = Response { status, headers, body: None };
            ExitFault::Limited { wait: hint::read(&response, None, now).wait }
        }
        (_, 502 | 504) => ExitFault::NoWay,
        (_, 400..=499) => ExitFault::Forbidden,
        _ => ExitFault::Broken,
    }
}

/// What a SOCKS reply other than 0 means ([RFC 1928 section 6]).
///
/// [RFC 1928 section 6]: https://www.rfc-editor.org/rfc/rfc1928#section-6
#[must_use]
pub fn of_socks_reply(reply: u8) -> ExitFault {
    match reply {
        // General failure; network, then host unreachable; connection refused; TTL expired.
        // Type of address not supported: one for which another exit may do.
        1 | 3..=6 | 8 => ExitFault::NoWay,
        2 => ExitFault::Forbidden, // not allowed by the ruleset
        _ => ExitFault::Broken,    // command not supported, or no reply at all
    }
}

const X_SQUID_ERROR: HeaderName = HeaderName::from_static("x-squid-error");
const PROXY_STATUS: HeaderName = HeaderName::from_static("proxy-status");

/// What squid's own pages are called, in `X-Squid-Error`; the names of its error pages (`/usr/share/squid/errors`), seen from
/// squid 5.7. `ERR_CANNOT_FORWARD` is also what it says to `CONNECT` with a name that does not exist.
const SQUID: [(&str, ExitFault); 15] = [
    ("ERR_ACCESS_DENIED", ExitFault::Forbidden),
    ("ERR_CACHE_ACCESS_DENIED", ExitFault::Rejected),
    ("ERR_CANNOT_FORWARD", ExitFault::NoWay),
    ("ERR_CONNECT_FAIL", ExitFault::NoWay),
    ("ERR_DNS_FAIL", ExitFault::NoWay),
    ("ERR_FORWARDING_DENIED", ExitFault::Forbidden),
    ("ERR_GATEWAY_FAILURE", ExitFault::Broken),
    ("ERR_LIFETIME_EXP", ExitFault::Silent),
    ("ERR_READ_ERROR", ExitFault::Silent),
    ("ERR_READ_TIMEOUT", ExitFault::Silent),
    ("ERR_SECURE_CONNECT_FAIL", ExitFault::NoWay),
    ("ERR_SHUTTING_DOWN", ExitFault::Broken),
    ("ERR_SOCKET_FAILURE", ExitFault::Broken),
    ("ERR_WRITE_ERROR", ExitFault::Silent),
    ("ERR_ZERO_SIZE_OBJECT", ExitFault::Silent), // the origin closed without a byte
];

/// Errors of `Proxy-Status` that say how far a request came
/// ([RFC 9209 section 2.3](https://www.rfc-editor.org/rfc/rfc9209#section-2.3)). Absent, and so the origin's: what it answered
/// badly, its certificate, and the limit on connections to it.
const PROXY_ERRORS: [(&str, ExitFault); 11] = [
    ("connection_read_timeout", ExitFault::Silent),
    ("connection_refused", ExitFault::NoWay),
    ("connection_terminated", ExitFault::Silent),
    ("connection_timeout", ExitFault::NoWay),
    ("connection_write_timeout", ExitFault::Silent),
    ("destination_ip_prohibited", ExitFault::Forbidden),
    ("destination_ip_unroutable", ExitFault::NoWay),
    ("destination_unavailable", ExitFault::NoWay),
    ("dns_error", ExitFault::NoWay),
    ("dns_timeout", ExitFault::NoWay),
    ("http_response_timeout", ExitFault::Silent),
];

/// Fields that proxies put into pages of their own, and what the status of such a page means.
struct Mark {
    field: HeaderName,
    /// What its value begins with.
    begins: &'static str,
    means: &'static [(u16, ExitFault)],
}

const MARKS: [Mark; 3] = [
    // tinyproxy 1.11: "Unable to connect", names included; "Filtered", "Access violation", "Access denied"; "Unable to
    // retrieve and process headers from the remote web server" (`src/reqs.c`).
    Mark {
        field: header::SERVER,
        begins: "tinyproxy/",
        means: &[(403, ExitFault::Forbidden), (500, ExitFault::NoWay), (503, ExitFault::Silent)],
    },
    // Privoxy 3.0: its own pages say that they are from 1955 (`cgi.c`). "Request blocked", "No such domain", "No data
    // received", "Connect failed" and "Forwarding failure", "Connection timeout".
    Mark {
        field: header::LAST_MODIFIED,
        begins: "Wed, 08 Jun 1955 12:00:00 GMT",
        means: &[
            (403, ExitFault::Forbidden),
            (404, ExitFault::NoWay),
            (500, ExitFault::Broken),
            (502, ExitFault::Silent),
            (503, ExitFault::NoWay),
            (504, ExitFault::Silent),
        ],
    },
    // mitmproxy: a 502 of its own comes before the request is passed on.
    Mark { field: header::SERVER, begins: "mitmproxy ", means: &[(502, ExitFault::NoWay)] },
];

fn squid(status: u16, headers: &HeaderMap) -> Option<ExitFault> {
    let page = headers.get(X_SQUID_ERROR).filter(|_| status != 404)?.as_bytes();
    let page = page.split(|&b| b == b' ').next()?;
    SQUID.iter().find(|(name, _)| name.as_bytes() == page).map(|(_, fault)| *fault)
}

/// The last member of the list is nearest to us; the others are none of our exit.
fn proxy_status(status: u16, headers: &HeaderMap) -> Option<ExitFault> {
    let field = headers.get_all(PROXY_STATUS).iter().next_back().filter(|_| status != 404)?;
    let nearest = split(field.as_bytes(), b',').last()?;
    let error = split(nearest, b';').skip(1).find_map(|parameter| {
        let (name, value) = parameter.split_at_checked(parameter.iter().position(|&b| b == b'=')?)?;
        (name.trim_ascii() == b"error").then(|| value[1..].trim_ascii())
    })?;
    PROXY_ERRORS.iter().find(|(name, _)| name.as_bytes() == error).map(|(_, fault)| *fault)
}

fn named(status: u16, headers: &HeaderMap) -> Option<ExitFault> {
    let begins = |value: &HeaderValue, mark: &Mark| value.as_bytes().starts_with(mark.begins.as_bytes());
    let mark = MARKS.iter().find(|mark| headers.get(&mark.field).is_some_and(|value| begins(value, mark)))?;
    mark.means.iter().find(|(known, _)| *known == status).map(|(_, fault)| *fault)
}

/// The parts between separators that stand outside of quotes ([RFC 8941 section 3](https://www.rfc-editor.org/rfc/rfc8941#section-3)).
fn split(text: &[u8], separator: u8) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    text.split(move |&byte| {
        let outside = !quoted;
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ => return outside && byte == separator,
        }
        false
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn heads(fields: &[(&str, &str)]) -> HeaderMap {
        let field = |(name, value): &(&str, &str)| {
            (name.parse::<HeaderName>().unwrap(), HeaderValue::from_str(value).unwrap())
        };
        fields.iter().map(field).collect()
    }

    #[test]
    fn e1_an_exits_own_answer_is_told_from_the_origins() {
        use ExitFault::{Broken, Forbidden, NoWay, Rejected, Silent};
        let own = |fault| Answerer::Exit(fault);
        for (status, fields, expected) in [
            (407, &[][..], own(Rejected)),
            (407, &[("server", "nginx")], own(Rejected)),
            (403, &[], Answerer::Origin),
            (502, &[("server", "nginx"), ("via", "1.1 px (squid/5.7)")], Answerer::Origin),
            // squid
            (403, &[("x-squid-error", "ERR_ACCESS_DENIED 0")], own(Forbidden)),
            (403, &[("x-squid-error", "ERR_CACHE_ACCESS_DENIED 0")], own(Rejected)),
            (503, &[("x-squid-error", "ERR_CONNECT_FAIL 111")], own(NoWay)),
            (503, &[("x-squid-error", "ERR_DNS_FAIL 0")], own(NoWay)),
            (500, &[("x-squid-error", "ERR_CANNOT_FORWARD 0")], own(NoWay)),
            (504, &[("x-squid-error", "ERR_READ_TIMEOUT 0")], own(Silent)),
            (502, &[("x-squid-error", "ERR_ZERO_SIZE_OBJECT 0")], own(Silent)),
            (503, &[("x-squid-error", "ERR_SHUTTING_DOWN 0")], own(Broken)),
            (200, &[("x-squid-error", "ERR_CONNECT_FAIL 111")], Answerer::Origin),
            (404, &[("x-squid-error", "ERR_CONNECT_FAIL 111")], Answerer::Origin),
            (502, &[("x-squid-error", "ERR_INVALID_RESP 0")], Answerer::Origin),
            (502, &[("x-squid-error", "")], Answerer::Origin),
            // RFC 9209
            (502, &[("proxy-status", "exit; error=connection_refused")], own(NoWay)),
            (504, &[("proxy-status", "exit;error=dns_timeout;details=\"a, b; c\"")], own(NoWay)),
            (
                504,
                &[("proxy-status", "cdn; error=dns_error, exit; error=http_response_timeout")],
                own(Silent),
            ),
            (504, &[("proxy-status", "cdn; error=dns_error"), ("proxy-status", "exit")], Answerer::Origin),
            (502, &[("proxy-status", "cdn; error=dns_error, exit")], Answerer::Origin),
            (502, &[("proxy-status", "\"a\\\", b\"; error=dns_error")], own(NoWay)),
            (502, &[("proxy-status", "exit; details=\"; error=dns_error\"")], Answerer::Origin),
            (502, &[("proxy-status", "error=dns_error")], Answerer::Origin),
            (502, &[("proxy-status", "exit; error")], Answerer::Origin),
            (502, &[("proxy-status", "exit; error=")], Answerer::Origin),
            (502, &[("proxy-status", "exit; error=tls_certificate_error")], Answerer::Origin),
            (503, &[("proxy-status", "exit; error=connection_limit_reached")], Answerer::Origin),
            (429, &[("proxy-status", "exit; error=connection_refused")], Answerer::Origin),
            (200, &[("proxy-status", "exit; error=connection_refused")], Answerer::Origin),
            // tinyproxy
            (500, &[("server", "tinyproxy/1.11.1")], own(NoWay)),
            (403, &[("server", "tinyproxy/1.11.1")], own(Forbidden)),
            (503, &[("server", "tinyproxy/1.11.1")], own(Silent)),
            (400, &[("server", "tinyproxy/1.11.1")], Answerer::Origin),
            (200, &[("server", "tinyproxy/1.11.1")], Answerer::Origin),
            // Privoxy
            (503, &[("last-modified", "Wed, 08 Jun 1955 12:00:00 GMT")], own(NoWay)),
            (404, &[("last-modified", "Wed, 08 Jun 1955 12:00:00 GMT")], own(NoWay)),
            (404, &[("last-modified", "Wed, 08 Jun 2022 12:00:00 GMT")], Answerer::Origin),
            (502, &[("server", "mitmproxy 10.1.5")], own(NoWay)),
        ] {
            assert_eq!(answered_by(status, &heads(fields)), expected, "{status} {fields:?}");
        }
    }

    #[test]
    fn e1_what_an_exit_says_to_connect() {
        use ExitFault::{Broken, Forbidden, Limited, NoWay, Rejected};
        let limited = |s| Limited { wait: Some(Duration::from_secs(s)) };
        for (status, fields, expected) in [
            (407, &[][..], Rejected),
            (401, &[], Rejected),
            (429, &[("retry-after", "3")], limited(3)),
            (
                503,
                &[
                    ("retry-after", "Wed, 21 Oct 2026 07:28:20 GMT"),
                    ("date", "Wed, 21 Oct 2026 07:28:00 GMT"),
                ],
                limited(20),
            ),
            (429, &[("retry-after", "soon")], Limited { wait: None }),
            (503, &[], Limited { wait: None }),
            (503, &[("x-squid-error", "ERR_CONNECT_FAIL 111")], NoWay),
            (500, &[("server", "tinyproxy/1.11.1")], NoWay),
            (403, &[("server", "tinyproxy/1.11.1")], Forbidden),
            (502, &[], NoWay),
            (504, &[], NoWay),
            (403, &[], Forbidden),
            (404, &[], Forbidden),
            (405, &[], Forbidden),
            (500, &[], Broken),
            (501, &[], Broken),
            (302, &[("location", "http://portal.example/")], Broken),
            (101, &[], Broken),
        ] {
            let now = Timestamp::from_secs(1_700_000_000);
            assert_eq!(of_connect(status, &heads(fields), now), expected, "{status} {fields:?}");
        }
    }

    #[test]
    fn e1_socks_replies() {
        use ExitFault::{Broken, Forbidden, NoWay};
        let expected = [Broken, NoWay, Forbidden, NoWay, NoWay, NoWay, NoWay, Broken, NoWay, Broken];
        for (reply, fault) in expected.into_iter().enumerate().skip(1) {
            assert_eq!(of_socks_reply(reply as u8), fault, "{reply}");
        }
        assert_eq!(of_socks_reply(255), Broken);
    }
}

//! `forbear explain`: what a response says about limits, and what would be done.

mod head;
mod jsonl;
mod people;
mod scope;

use std::{
    io::{self, IsTerminal, Read},
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};

use forbear_core::{
    hint::{
        Profile, Response,
        value::{Clock, Unit, When},
    },
    time::Timestamp,
};
use http::{HeaderMap, Uri};

use crate::{
    args::{ExplainArgs, sources},
    exit::{Exit, Failure, written},
    shell::say,
};

/// Explains one response to people, or many to a program; or what is believed of an origin.
///
/// # Errors
/// A response that cannot be read, and a configuration that cannot be used; an origin of which nothing is known.
pub(crate) async fn run(args: &ExplainArgs) -> Result<Exit, Failure> {
    if let Some(name) = &args.scope {
        return scope::run(args, name).await;
    }
    if args.jsonl {
        return written(jsonl::answer_all(io::stdin().lock(), &mut io::stdout().lock()));
    }
    let settings = sources(args.config.as_deref(), args.policy.as_deref(), Path::new(".")).load()?.settings;
    let (host, port) = args.url.as_deref().map(host_of).transpose()?.unzip();
    let service = match (&args.service, &host) {
        (Some(name), _) => Some(name.clone()),
        (None, Some(host)) => settings.for_host(host, port.unwrap_or(443)).service,
        (None, None) => None,
    };
    let profile = match &service {
        Some(name) => Some(Profile::by_name(name).ok_or_else(|| no_profile(name))?),
        None => host.as_deref().and_then(Profile::for_host),
    };

    let mut printed = Vec::new();
    let from_flags = !args.headers.is_empty() || args.status.is_some();
    if !from_flags {
        printed = read_stdin()?;
    }
    let (status, headers, body) = if from_flags {
        (args.status, from_lines(&args.headers)?, &[][..])
    } else {
        let head = head::read(&printed);
        if !head.unreadable.is_empty() {
            say(format_args!("no header line, and left out: line {}", numbers(&head.unreadable)));
        }
        if head.status.is_none() && head.headers.is_empty() {
            return Err(Failure::usage(
                "no response on stdin: give one as `curl -i` prints it, or -H and --status",
            ));
        }
        (head.status, head.headers, head.body)
    };
    let status = status.unwrap_or(429);
    let body = Some(body).filter(|b| !b.is_empty());
    let now = now();
    let reading = forbear_core::hint::read(&Response { status, headers: &headers, body }, profile, now);
    let explained = people::Explained { status, reading: &reading, profile, settings: &settings, now };
    written(explained.print(&mut io::stdout().lock()))
}

/// Reads `-H` lines. A bad one is named by its number; what stands in it may be a secret.
fn from_lines(lines: &[String]) -> Result<HeaderMap, Failure> {
    let mut headers = HeaderMap::new();
    for (i, line) in lines.iter().enumerate() {
        let field = head::field(line.as_bytes());
        let (name, value) = field.ok_or_else(|| {
            Failure::usage(format!("-H number {}: expected 'Name: value', like 'Retry-After: 120'", i + 1))
        })?;
        if headers.try_append(name, value).is_err() {
            return Err(Failure::usage("too many headers"));
        }
    }
    Ok(headers)
}

fn read_stdin() -> Result<Vec<u8>, Failure> {
    let stdin = io::stdin().lock();
    if stdin.is_terminal() {
        return Err(Failure::usage(
            "nothing to explain: give -H and --status, or pipe in what `curl -i` prints",
        ));
    }
    let mut printed = Vec::new();
    let result = stdin.take(STDIN_MAX).read_to_end(&mut printed);
    result.map_err(|e| Failure::internal(format!("cannot read stdin: {e}")))?;
    Ok(printed)
}

/// The host and port of a URL, or of a bare host name. Its text is not repeated: it may hold a password.
fn host_of(url: &str) -> Result<(String, u16), Failure> {
    let bad = || Failure::usage("--url: expected a URL like https://api.example.com/v1, or a host");
    let uri: Uri = url.parse().map_err(|_| bad())?;
    let host = uri.host().ok_or_else(bad)?.to_owned();
    let usual = if uri.scheme_str() == Some("http") { 80 } else { 443 };
    Ok((host, uri.port_u16().unwrap_or(usual)))
}

fn no_profile(name: &str) -> Failure {
    let all: Vec<_> = Profile::all().iter().map(|p| p.name()).collect();
    Failure::usage(format!("--service: there is no profile `{name}`; there are {}", all.join(", ")))
}

fn numbers(lines: &[usize]) -> String {
    lines.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The real clock.
fn now() -> Timestamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

/// Reads a moment as RFC 3339 writes it, with its zone.
pub(crate) fn instant(text: &str) -> Option<Timestamp> {
    let bytes = text.as_bytes();
    let is_date_time = bytes.get(4) == Some(&b'-') && matches!(bytes.get(10), Some(b'T' | b't' | b' '));
    let has_zone = matches!(bytes.last(), Some(b'Z' | b'z'))
        || bytes.get(11..)?.iter().any(|b| matches!(b, b'+' | b'-'));
    if !is_date_time || !has_zone {
        return None;
    }
    match forbear_core::hint::value::read(bytes, Unit::Seconds, &Clock::local(Timestamp::ZERO))?.when {
        When::At(at) => Some(at),
        When::Delay(_) => None,
    }
}

/// A head and the prefix of a body that is looked at are far shorter.
const STDIN_MAX: u64 = 4 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_as_rfc_3339_writes_them() {
        for (text, expected) in [
            ("2026-11-29T13:00:00Z", Some(1_795_957_200_000_000)),
            ("2026-11-29T13:00:00.5Z", Some(1_795_957_200_500_000)),
            ("2026-11-29T14:00:00+01:00", Some(1_795_957_200_000_000)),
            ("2026-11-29", None),
            ("2026-11-29T13:00:00", None),
            ("120", None),
            ("Sun, 29 Nov 2026 13:00:00 GMT", None),
            ("", None),
        ] {
            assert_eq!(instant(text).map(Timestamp::as_micros), expected, "{text}");
        }
    }
}

//! A response as `curl -i` prints it, with every head that a redirect or a proxy put before it.

use http::{HeaderMap, HeaderName, HeaderValue};

/// The last head of what was printed, and what follows it.
#[derive(Debug)]
pub(crate) struct Printed<'a> {
    /// `None` if there was no status line, only header lines.
    pub(crate) status: Option<u16>,
    pub(crate) headers: HeaderMap,
    pub(crate) body: &'a [u8],
    /// Lines that are no header line, by their number from 1. What stands in them is not kept: it may be a secret.
    pub(crate) unreadable: Vec<usize>,
}

/// Reads heads until one that no other follows: 1xx, redirects, calls for credentials, and a proxy's `200 Connection
/// established` are followed by the next.
pub(crate) fn read(printed: &[u8]) -> Printed<'_> {
    let mut rest = printed.strip_prefix(b"\xef\xbb\xbf").unwrap_or(printed);
    let mut line_number = 0;
    loop {
        let (head, after) = one(rest, &mut line_number);
        if !leads_on(&head) || status_line(first_line(after)).is_none() {
            return Printed { body: after, ..head };
        }
        rest = after;
    }
}

/// Reads one head, up to and including its empty line.
fn one<'a>(mut rest: &'a [u8], line_number: &mut usize) -> (Printed<'a>, &'a [u8]) {
    let mut head = Printed { status: None, headers: HeaderMap::new(), body: &[], unreadable: Vec::new() };
    let mut last: Option<HeaderName> = None;
    let mut is_first = true;
    while !rest.is_empty() {
        let line = first_line(rest);
        rest = rest.get(line.len() + 1..).unwrap_or(&[]);
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        *line_number += 1;
        if line.is_empty() {
            if is_first {
                continue; // an empty line in front of everything
            }
            break;
        }
        if is_first && let Some(status) = status_line(line) {
            head.status = Some(status);
        } else if line[0] == b' ' || line[0] == b'\t' {
            // RFC 9112 section 5.2: a folded line continues the value before it.
            if !fold(&mut head.headers, last.as_ref(), line) {
                head.unreadable.push(*line_number);
            }
        } else if let Some((name, value)) = field(line) {
            head.headers.append(&name, value);
            last = Some(name);
        } else {
            head.unreadable.push(*line_number);
            last = None;
        }
        is_first = false;
    }
    (head, rest)
}

/// Whether another head may follow this one.
fn leads_on(head: &Printed<'_>) -> bool {
    let tunnel =
        !head.headers.contains_key("content-length") && !head.headers.contains_key("transfer-encoding");
    match head.status {
        Some(100..=199 | 300..=399 | 401 | 407) => true,
        Some(200) => tunnel,
        _ => false,
    }
}

/// `HTTP/1.1 429 Too Many Requests`, `HTTP/2 429`.
fn status_line(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/")?;
    let mut words = rest.split(|b| matches!(b, b' ' | b'\r'));
    let version = words.next()?;
    let code = words.next()?;
    if version.is_empty() || !version.iter().all(|b| b.is_ascii_digit() || *b == b'.') || code.len() != 3 {
        return None;
    }
    std::str::from_utf8(code).ok()?.parse().ok().filter(|n| *n >= 100)
}

/// Reads `Name: value`.
pub(crate) fn field(line: &[u8]) -> Option<(HeaderName, HeaderValue)> {
    let colon = line.iter().position(|b| *b == b':')?;
    let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii());
    Some((HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value).ok()?))
}

fn fold(headers: &mut HeaderMap, last: Option<&HeaderName>, line: &[u8]) -> bool {
    let Some(name) = last else { return false };
    // The line belongs to the value that was appended last.
    let mut values: Vec<HeaderValue> = headers.get_all(name).iter().cloned().collect();
    let Some(value) = values.last_mut() else { return false };
    let joined = [value.as_bytes(), b" ", line.trim_ascii()].concat();
    let Ok(joined) = HeaderValue::from_bytes(&joined) else { return false };
    *value = joined;
    headers.remove(name);
    for value in values {
        headers.append(name, value);
    }
    true
}

/// Up to the line feed, without it.
fn first_line(rest: &[u8]) -> &[u8] {
    rest.split(|b| *b == b'\n').next().unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_head_counts() {
        for (printed, status, retry_after, body) in [
            (
                "HTTP/1.1 429 Too Many Requests\r\nRetry-After: 5\r\n\r\nslow down",
                Some(429),
                Some("5"),
                "slow down",
            ),
            ("HTTP/2 503 \r\nretry-after: 7\r\n\r\n", Some(503), Some("7"), ""),
            ("HTTP/1.1 429\nRetry-After:   6  \n\n", Some(429), Some("6"), ""),
            (
                "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 429 X\r\nRetry-After: 1\r\n\r\nb",
                Some(429),
                Some("1"),
                "b",
            ),
            (
                "HTTP/1.1 301 Moved\r\nLocation: /x\r\nRetry-After: 9\r\n\r\nHTTP/1.1 429 X\r\n\r\n",
                Some(429),
                None,
                "",
            ),
            (
                "HTTP/1.1 200 Connection established\r\n\r\nHTTP/2 429\r\nretry-after: 2\r\n\r\n",
                Some(429),
                Some("2"),
                "",
            ),
            // A body that looks like a head is a body.
            (
                "HTTP/1.1 429 X\r\nRetry-After: 3\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
                Some(429),
                Some("3"),
                "HTTP/1.1 200 OK\r\n\r\n",
            ),
            (
                "HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\nHTTP/1.1 429 X\r\n\r\n",
                Some(200),
                None,
                "HTTP/1.1 429 X\r\n\r\n",
            ),
            ("Retry-After: 4\n", None, Some("4"), ""),
            ("\nHTTP/1.1 429 X\n\n", Some(429), None, ""),
            ("HTTP/1.1 429 X", Some(429), None, ""),
            ("", None, None, ""),
        ] {
            let found = read(printed.as_bytes());
            let told = found.headers.get("retry-after").map(|v| v.to_str().unwrap());
            assert_eq!((found.status, told, found.body), (status, retry_after, body.as_bytes()), "{printed}");
            assert!(found.unreadable.is_empty());
        }
    }

    #[test]
    fn folded_lines_belong_to_the_value_before_and_junk_is_counted() {
        let found = read(
            b"HTTP/1.1 429 X\r\nA: 1\r\nA: 2\r\n  3\r\nno colon\r\n folded onto nothing\r\nB: 4\r\n\r\n",
        );
        let values: Vec<_> = found.headers.get_all("a").iter().collect();
        assert_eq!(values, ["1", "2 3"]);
        assert_eq!(found.headers["b"], "4");
        assert_eq!(found.unreadable, [5, 6]);
    }

    #[test]
    fn status_lines_are_read_strictly() {
        for (line, expected) in [
            ("HTTP/1.1 200 OK", Some(200)),
            ("HTTP/2 429", Some(429)),
            ("HTTP/3 429 ", Some(429)),
            ("HTTP/1.1 42", None),
            ("HTTP/1.1 4299", None),
            ("HTTP/1.1 099", None),
            ("HTTP/ 200", None),
            ("HTTP/x 200", None),
            ("http/1.1 200", None),
        ] {
            assert_eq!(status_line(line.as_bytes()), expected, "{line}");
        }
    }
}

//! `CONNECT` ([RFC 9110 section 9.3.6]).
//!
//! [RFC 9110 section 9.3.6]: https://www.rfc-editor.org/rfc/rfc9110#section-9.3.6

use std::io;

use bytes::{Buf as _, BytesMut};
use forbear_core::{exit::of_connect, outcome::ExitFault};
use http::{HeaderMap, HeaderName, HeaderValue};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

use super::super::clock::wall;
use super::super::dial::not_sent;
use super::super::fault::{Fault, FaultKind, Phase};

/// Fields that are accepted, as in the head of any answer.
const FIELDS_MAX: usize = 100;

/// Asks for a tunnel to `to` (host and port). Tells whether the 2xx came with fields that promise data of the exit's own,
/// which no answer to `CONNECT` may have.
///
/// The answer's head is bounded, with all its 1xx together; its body is not read at all, for the connection of a refused
/// tunnel is of no further use. Nothing of either goes into an error: it may repeat what we sent (K1).
///
/// # Errors
/// What the exit did. Faults without a word on the exit are the exit's own failing.
pub(super) async fn open(
    stream: &mut (impl AsyncRead + AsyncWrite + Unpin),
    to: &str,
    authorization: Option<&HeaderValue>,
    head_bytes_max: usize,
) -> Result<bool, Fault> {
    let mut request = format!("CONNECT {to} HTTP/1.1\r\nHost: {to}\r\n").into_bytes();
    if let Some(value) = authorization {
        request.extend_from_slice(b"Proxy-Authorization: ");
        request.extend_from_slice(value.as_bytes());
        request.extend_from_slice(b"\r\n");
    }
    request.extend_from_slice(b"\r\n");
    stream.write_all(&request).await.map_err(broken_off)?;
    stream.flush().await.map_err(broken_off)?;

    let mut answer = BytesMut::with_capacity(1024);
    let mut room = head_bytes_max;
    loop {
        let (status, headers) = read_head(stream, &mut answer, &mut room).await?;
        match status {
            101 | 300.. => {
                let exit = of_connect(status, &headers, wall());
                return Err(not_sent(FaultKind::ConnectStatus { status }, Phase::Tunnel).by_exit(exit));
            }
            ..200 => {}
            // It waits for us to speak first, as TLS does. Who speaks now is not the origin.
            200.. if !answer.is_empty() => {
                return Err(not_sent(FaultKind::TunnelPolluted, Phase::Tunnel).by_exit(ExitFault::Broken));
            }
            200.. => return Ok(promises_data(&headers)),
        }
    }
}

/// Reads one head, and leaves what follows it in `answer`. `room` is what all heads together may still have.
async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    answer: &mut BytesMut,
    room: &mut usize,
) -> Result<(u16, HeaderMap), Fault> {
    let mut searched = 0;
    let end = loop {
        // What is not HTTP is told by its first bytes, not by the lack of an empty line.
        let start = &answer[..answer.len().min(START.len())];
        if !START.starts_with(start) {
            return Err(not_sent(FaultKind::HeadMalformed, Phase::Tunnel));
        }
        if let Some(end) = end_of_head(answer, searched) {
            break end;
        }
        if answer.len() >= *room {
            return Err(not_sent(FaultKind::HeadTooLarge, Phase::Tunnel));
        }
        searched = answer.len();
        if stream.read_buf(answer).await.map_err(broken_off)? == 0 {
            return Err(not_sent(FaultKind::Closed, Phase::Tunnel));
        }
    };
    *room = room.checked_sub(end).ok_or_else(|| not_sent(FaultKind::HeadTooLarge, Phase::Tunnel))?;
    let read = parse(&answer[..end]);
    answer.advance(end);
    read.map_err(|kind| not_sent(kind, Phase::Tunnel))
}

const START: &[u8] = b"HTTP/1.";

/// Where a head ends: behind its first empty line. `searched` bytes have been looked at before.
fn end_of_head(answer: &[u8], searched: usize) -> Option<usize> {
    let from = searched.saturating_sub(3);
    answer[from..].iter().enumerate().filter(|(_, byte)| **byte == b'\n').find_map(|(at, _)| {
        let after = &answer[from + at + 1..];
        match after {
            [b'\n', ..] => Some(from + at + 2),
            [b'\r', b'\n', ..] => Some(from + at + 3),
            _ => None,
        }
    })
}

fn parse(head: &[u8]) -> Result<(u16, HeaderMap), FaultKind> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut response = httparse::Response::new(&mut fields);
    let mut config = httparse::ParserConfig::default();
    config.allow_obsolete_multiline_headers_in_responses(true); // a must: RFC 9112 section 5.2
    match config.parse_response(&mut response, head) {
        Ok(httparse::Status::Complete(_)) => {}
        Err(httparse::Error::TooManyHeaders) => return Err(FaultKind::HeadTooLarge),
        Ok(httparse::Status::Partial) | Err(_) => return Err(FaultKind::HeadMalformed),
    }
    let status = response.code.ok_or(FaultKind::HeadMalformed)?;
    let mut headers = HeaderMap::with_capacity(response.headers.len());
    for field in response.headers.iter() {
        let name = HeaderName::from_bytes(field.name.as_bytes());
        if let (Ok(name), Ok(value)) = (name, HeaderValue::from_bytes(field.value)) {
            headers.append(name, value);
        }
    }
    Ok((status, headers))
}

/// `Content-Length` above zero, or `Transfer-Encoding`: to be ignored, as the RFC says, and a sign all the same.
fn promises_data(headers: &HeaderMap) -> bool {
    let length = headers.get(http::header::CONTENT_LENGTH);
    length.is_some_and(|value| value.as_bytes().trim_ascii() != b"0")
        || headers.contains_key(http::header::TRANSFER_ENCODING)
}

pub(super) fn broken_off(error: io::Error) -> Fault {
    let kind = match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::ConnectionAborted | io::ErrorKind::BrokenPipe => {
            FaultKind::Reset
        }
        _ => FaultKind::Closed,
    };
    not_sent(kind, Phase::Tunnel).because(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the pieces in which it comes.
    #[tokio::test]
    async fn e6_answers_to_connect() {
        let status = |status| FaultKind::ConnectStatus { status };
        let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "a: b\r\n".repeat(FIELDS_MAX + 1));
        let endless = format!("HTTP/1.1 200 {}", "x".repeat(5000));
        let flood = "HTTP/1.1 103 Early Hints\r\n\r\n".repeat(500);
        for (answer, expected) in [
            ("HTTP/1.1 200 OK\r\n\r\n", Ok(false)),
            ("HTTP/1.0 200 Connection established\r\nProxy-Agent: x\r\n\r\n", Ok(false)),
            ("HTTP/1.1 200\n\n", Ok(false)),
            ("HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n", Ok(false)),
            ("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n", Ok(true)),
            ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", Ok(true)),
            ("HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", Ok(false)),
            ("HTTP/1.1 200 OK\r\nX: folded\r\n line\r\n\r\n", Ok(false)),
            ("HTTP/1.1 407 No\r\n\r\n<html>", Err(status(407))),
            ("HTTP/1.1 101 Switching\r\n\r\n", Err(status(101))),
            ("HTTP/1.1 302 Found\r\nLocation: /\r\n\r\n", Err(status(302))),
            ("HTTP/1.1 999 What\r\n\r\n", Err(status(999))),
            ("", Err(FaultKind::Closed)),
            ("HTTP/1.1 200 O", Err(FaultKind::Closed)),
            ("HTTP/1.1 200 OK\r\nbad field\r\n\r\n", Err(FaultKind::HeadMalformed)),
            ("HTTP/1.1 abc\r\n\r\n", Err(FaultKind::HeadMalformed)),
            ("HTTP/2 200 OK\r\n\r\n", Err(FaultKind::HeadMalformed)),
            ("SSH-2.0-OpenSSH_9.2\r\n", Err(FaultKind::HeadMalformed)),
            ("\r\n\r\n\r\n", Err(FaultKind::HeadMalformed)),
            ("\u{5}\u{0}", Err(FaultKind::HeadMalformed)),
            (&many, Err(FaultKind::HeadTooLarge)),
            (&endless, Err(FaultKind::HeadTooLarge)),
            (&flood, Err(FaultKind::HeadTooLarge)),
        ] {
            for pieces in [1, 7, usize::MAX] {
                let (mut ours, theirs) = tokio::io::duplex(1 << 20);
                let (mut read, mut write) = tokio::io::split(theirs);
                for piece in answer.as_bytes().chunks(pieces.min(1 << 20)) {
                    write.write_all(piece).await.unwrap();
                }
                write.shutdown().await.unwrap();
                let authorization = HeaderValue::from_static("Basic eA==");
                let result = open(&mut ours, "[::1]:443", Some(&authorization), 4096).await;
                let what = format!("{:?} in pieces of {pieces}", &answer[..answer.len().min(60)]);
                assert_eq!(result.map_err(|fault| fault.kind), expected, "{what}");
                drop(ours);
                let mut request = String::new();
                read.read_to_string(&mut request).await.unwrap();
                assert_eq!(
                    request,
                    "CONNECT [::1]:443 HTTP/1.1\r\nHost: [::1]:443\r\nProxy-Authorization: Basic eA==\r\n\r\n"
                );
            }
        }
    }

    #[tokio::test]
    async fn e1_data_before_the_origin_could_have_spoken_is_the_exits() {
        let (mut ours, mut theirs) = tokio::io::duplex(1 << 20);
        theirs.write_all(b"HTTP/1.1 200 OK\r\n\r\n<html>suspended</html>").await.unwrap();
        let fault = open(&mut ours, "a.test:443", None, 4096).await.unwrap_err();
        assert_eq!((fault.kind, fault.exit), (FaultKind::TunnelPolluted, Some(ExitFault::Broken)));
    }
}

//! What can go wrong with one attempt, told apart as finely as a verdict needs it.

use std::error::Error as StdError;
use std::fmt;
use std::net::IpAddr;

use forbear_core::outcome::ExitFault;

/// How far an attempt had come.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Phase {
    /// The name was being looked up.
    Resolve,
    /// A connection was being made, or waited for.
    Connect,
    /// The way to the exit: its name, the connection to it, TLS with it.
    Exit,
    /// The exit was being asked for a way to the origin, by `CONNECT` or SOCKS.
    Tunnel,
    /// The TLS handshake with the origin.
    Tls,
    /// The request was being written.
    Send,
    /// The request was out, the answer's head not yet in.
    Head,
    /// The head was in, the body not yet whole.
    Body,
}

impl Phase {
    /// One word, for records and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            Phase::Resolve => "resolve",
            Phase::Connect => "connect",
            Phase::Exit => "exit",
            Phase::Tunnel => "tunnel",
            Phase::Tls => "tls",
            Phase::Send => "send",
            Phase::Head => "head",
            Phase::Body => "body",
        }
    }
}

/// Whether the server may have acted on the request (V2).
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Processed {
    /// Certainly not, and there is evidence: nothing was written, or the server said so.
    No,
    /// Nobody can know.
    Unknown,
}

/// What went wrong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum FaultKind {
    /// The name does not exist, or has no address.
    NameNotFound,
    /// The resolver failed or did not answer; the name may well exist.
    ResolverFailed,
    /// The address refused the connection.
    ConnectRefused,
    /// No way to the address.
    Unreachable,
    /// The connection could not be made, for another reason.
    ConnectFailed,
    /// The name leads only to addresses that this request must not reach.
    AddressForbidden {
        /// The first of them.
        address: IpAddr,
    },
    /// The certificate is not to be trusted. Final: it will not be right next time (V1).
    Certificate,
    /// The TLS handshake broke. This may pass.
    Handshake,
    /// No trusted root certificates could be loaded on this machine.
    NoRoots,
    /// The deadline passed.
    TimedOut,
    /// The connection was reset.
    Reset,
    /// The connection was closed.
    Closed,
    /// The head of the answer has more bytes or more fields than are accepted.
    HeadTooLarge,
    /// The head of the answer is not HTTP.
    HeadMalformed,
    /// The body ended before it was whole, by its framing or by its coding.
    BodyShort,
    /// The body's framing is broken, as a chunk size that is no number.
    BodyMalformed,
    /// The body is not what its `Content-Encoding` says.
    Decode,
    /// The decoded body is larger than allowed.
    BodyTooLarge {
        /// What is allowed, in bytes.
        limit: u64,
        /// What the server announced, or else what had come when it was too much.
        size: u64,
    },
    /// The body expands too far for its size on the wire.
    RatioExceeded {
        /// What is allowed.
        limit: u32,
    },
    /// The server refused the stream without looking at it (HTTP/2 `REFUSED_STREAM`).
    StreamRefused,
    /// The server left the connection before it came to this request (HTTP/2 `GOAWAY`).
    GoneAway,
    /// The server says that we ask too much (HTTP/2 `ENHANCE_YOUR_CALM`). A limit, not a fault.
    EnhanceYourCalm,
    /// The server broke HTTP/2, or ended the stream with an error of its own.
    StreamBroken,
    /// The answer switches to a protocol that nobody asked for.
    UnsupportedProtocol,
    /// The request cannot be sent as it is.
    InvalidRequest,
    /// The exit answered `CONNECT` with another status than 2xx.
    ConnectStatus {
        /// The status.
        status: u16,
    },
    /// The exit gave a SOCKS reply other than "succeeded" (RFC 1928 section 6).
    SocksReply {
        /// The reply.
        reply: u8,
    },
    /// The exit turned down our user name and password, or wants one.
    SocksAuth,
    /// The exit does not speak SOCKS 5.
    SocksMalformed,
    /// The exit said that the way was open, and then sent data of its own.
    TunnelPolluted,
}

impl FaultKind {
    /// A short name that does not change, for records and metrics.
    pub fn as_str(self) -> &'static str {
        match self {
            FaultKind::NameNotFound => "name-not-found",
            FaultKind::ResolverFailed => "resolver-failed",
            FaultKind::ConnectRefused => "connect-refused",
            FaultKind::Unreachable => "unreachable",
            FaultKind::ConnectFailed => "connect-failed",
            FaultKind::AddressForbidden { .. } => "address-forbidden",
            FaultKind::Certificate => "certificate",
            FaultKind::Handshake => "tls-handshake",
            FaultKind::NoRoots => "no-roots",
            FaultKind::TimedOut => "timed-out",
            FaultKind::Reset => "reset",
            FaultKind::Closed => "closed",
            FaultKind::HeadTooLarge => "head-too-large",
            FaultKind::HeadMalformed => "head-malformed",
            FaultKind::BodyShort => "body-short",
            FaultKind::BodyMalformed => "body-malformed",
            FaultKind::Decode => "decode",
            FaultKind::BodyTooLarge { .. } => "body-too-large",
            FaultKind::RatioExceeded { .. } => "ratio-exceeded",
            FaultKind::StreamRefused => "stream-refused",
            FaultKind::GoneAway => "gone-away",
            FaultKind::EnhanceYourCalm => "enhance-your-calm",
            FaultKind::StreamBroken => "stream-broken",
            FaultKind::UnsupportedProtocol => "unsupported-protocol",
            FaultKind::InvalidRequest => "invalid-request",
            FaultKind::ConnectStatus { .. } => "connect-status",
            FaultKind::SocksReply { .. } => "socks-reply",
            FaultKind::SocksAuth => "socks-auth",
            FaultKind::SocksMalformed => "socks-malformed",
            FaultKind::TunnelPolluted => "tunnel-polluted",
        }
    }
}

impl fmt::Display for FaultKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FaultKind::NameNotFound => f.write_str("the name does not exist or has no address"),
            FaultKind::ResolverFailed => f.write_str("the name could not be looked up"),
            FaultKind::ConnectRefused => f.write_str("connection refused"),
            FaultKind::Unreachable => f.write_str("address unreachable"),
            FaultKind::ConnectFailed => f.write_str("cannot connect"),
            FaultKind::AddressForbidden { address } => {
                write!(f, "the address {address} is not to be reached")
            }
            FaultKind::Certificate => f.write_str("the certificate is not valid"),
            FaultKind::Handshake => f.write_str("the TLS handshake broke"),
            FaultKind::NoRoots => f.write_str("no trusted root certificates found"),
            FaultKind::TimedOut => f.write_str("timed out"),
            FaultKind::Reset => f.write_str("connection reset"),
            FaultKind::Closed => f.write_str("connection closed"),
            FaultKind::HeadTooLarge => f.write_str("the head of the answer is too large"),
            FaultKind::HeadMalformed => f.write_str("the head of the answer is malformed"),
            FaultKind::BodyShort => f.write_str("the body ended early"),
            FaultKind::BodyMalformed => f.write_str("the framing of the body is broken"),
            FaultKind::Decode => f.write_str("the body does not decode"),
            FaultKind::BodyTooLarge { limit, size } => {
                write!(f, "the body is too large: {size} bytes, the limit is {limit}")
            }
            FaultKind::RatioExceeded { limit } => {
                write!(f, "the body expands more than {limit} times its size, over the limit")
            }
            FaultKind::StreamRefused => f.write_str("the server refused the stream"),
            FaultKind::GoneAway => f.write_str("the server left the connection before this request"),
            FaultKind::EnhanceYourCalm => f.write_str("the server asks for calm"),
            FaultKind::StreamBroken => f.write_str("the HTTP/2 stream broke"),
            FaultKind::UnsupportedProtocol => {
                f.write_str("the server switched to a protocol that was not asked for")
            }
            FaultKind::InvalidRequest => f.write_str("the request cannot be sent"),
            FaultKind::ConnectStatus { status } => write!(f, "CONNECT was answered with status {status}"),
            FaultKind::SocksReply { reply } => match socks_words(*reply) {
                Some(words) => write!(f, "{words} (SOCKS reply {reply})"),
                None => write!(f, "SOCKS reply {reply}"),
            },
            FaultKind::SocksAuth => f.write_str("SOCKS authentication failed"),
            FaultKind::SocksMalformed => f.write_str("the answer is not SOCKS 5"),
            FaultKind::TunnelPolluted => f.write_str("data that is not the origin's came out of the tunnel"),
        }
    }
}

/// [RFC 1928 section 6](https://www.rfc-editor.org/rfc/rfc1928#section-6).
fn socks_words(reply: u8) -> Option<&'static str> {
    Some(match reply {
        1 => "general failure",
        2 => "not allowed by the ruleset",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 => "command not supported",
        8 => "address type not supported",
        _ => return None,
    })
}

/// Why an attempt has no whole answer.
///
/// Neither its text nor its source ever holds a header value or the URL (K1).
#[derive(Debug)]
pub struct Fault {
    /// What went wrong.
    pub kind: FaultKind,
    /// Where.
    pub at: Phase,
    /// Whether the server may have acted on the request.
    pub processed: Processed,
    /// The connection had served before, and ended without one byte of an answer to this request: most likely the
    /// server had closed it while it was idle. `processed` is still what the evidence says.
    pub stale_connection: bool,
    /// What the exit did, where the fault is its own and not the origin's (E1). `None` for the direct way, for all that
    /// happens once a tunnel is up, and wherever nothing tells.
    pub exit: Option<ExitFault>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

impl Fault {
    /// A fault without a cause of its own.
    pub fn new(kind: FaultKind, at: Phase, processed: Processed) -> Fault {
        Fault { kind, at, processed, stale_connection: false, exit: None, source: None }
    }

    /// The same, laid at the exit's door.
    #[must_use]
    pub(super) fn by_exit(mut self, exit: ExitFault) -> Fault {
        self.exit = Some(exit);
        self
    }

    /// Nothing was said, as far as the kind tells.
    pub(super) fn is_silence(&self) -> bool {
        matches!(self.kind, FaultKind::TimedOut | FaultKind::Reset | FaultKind::Closed)
    }

    /// The same with what caused it.
    #[must_use]
    pub fn because(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Fault {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.exit.is_some() {
            f.write_str("exit: ")?;
        }
        match self.kind {
            FaultKind::TimedOut => write!(f, "timed out ({})", self.at.as_str()),
            kind => kind.fmt(f),
        }
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as &(dyn StdError + 'static))
    }
}

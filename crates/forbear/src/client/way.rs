//! How a request goes out: directly, or by an exit.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use http::HeaderValue;

use super::headers::basic;
use crate::exit::{ExitScheme, ExitUrl};

/// The way that one request takes. It is chosen by the caller, for each request, and never changed (E5).
///
/// What an exit changes:
///
/// - *Addresses*. Whom to reach is judged ([`super::ClientOptions::public_only`], [`super::Hop::Redirect`]) where the
///   address is known: with `socks5` the name is looked up here, and with the other three a target that is an address,
///   or a `localhost`. Any other name is looked up by the exit, and only the exit can keep us from an address. An exit
///   itself may have any address: somebody chose it.
/// - *`Host`*. Without a tunnel (an `http` target by an `http` or `https` exit) a proxy goes by the target, and a `Host`
///   that the item brought is replaced ([RFC 9112 section 3.2.2]).
///
/// [RFC 9112 section 3.2.2]: https://www.rfc-editor.org/rfc/rfc9112#section-3.2.2
#[derive(Clone, Debug, Default)]
pub enum Way {
    /// From this machine to the origin.
    #[default]
    Direct,
    /// By an exit.
    Exit(Arc<ExitSession>),
}

/// One exit with one session: whatever connections and TLS tickets are kept for it belong to it alone, and go with it
/// ([`super::Client::leave`], E4).
///
/// ```
/// use forbear::{client::ExitSession, exit::ExitUrl};
/// let exit = ExitUrl::parse("http://me-sess-{session}:secret@proxy.example:8080").unwrap();
/// let (one, other) = (ExitSession::new(exit.with_session("a1")), ExitSession::new(exit.with_session("a2")));
/// assert_ne!(one.id(), other.id());
/// ```
pub struct ExitSession {
    id: u64,
    exit: ExitUrl,
    authorization: Option<HeaderValue>,
    left: AtomicBool,
}

impl ExitSession {
    /// A session of `exit`, which has its session token already.
    #[must_use]
    pub fn new(exit: ExitUrl) -> ExitSession {
        static LAST: AtomicU64 = AtomicU64::new(0);
        let id = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let authorization = exit.credentials().and_then(|(user, password)| basic(user, password));
        ExitSession { id, exit, authorization, left: AtomicBool::new(false) }
    }

    /// Which one: a number that comes once in a process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.id
    }

    /// By which exit.
    #[must_use]
    pub fn exit(&self) -> &ExitUrl {
        &self.exit
    }

    /// What goes to an HTTP proxy, unasked; marked sensitive.
    pub(super) fn authorization(&self) -> Option<&HeaderValue> {
        self.authorization.as_ref()
    }

    /// From now on nothing of it is kept.
    pub(super) fn leave(&self) {
        self.left.store(true, Ordering::Relaxed); // whoever keeps something looks under the lock that clears it
    }

    pub(super) fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

impl fmt::Debug for ExitSession {
    /// The exit's own `Debug` shows no credentials (K1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExitSession").field("id", &self.id).field("exit", &self.exit).finish_non_exhaustive()
    }
}

impl Way {
    /// The exit, if there is one.
    pub(super) fn session(&self) -> Option<&Arc<ExitSession>> {
        match self {
            Way::Direct => None,
            Way::Exit(session) => Some(session),
        }
    }
}

/// The exit that forwards requests to `http` targets without a tunnel.
pub(super) fn forwards(session: &ExitSession) -> bool {
    matches!(session.exit.scheme(), ExitScheme::Http | ExitScheme::Https)
}

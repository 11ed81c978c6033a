//! TLS sessions to be resumed, apart for each exit session: a ticket that is shown through another exit, or through the
//! same with another session, would tell the origin that both are one client (E4).

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rustls::NamedGroup;
use rustls::client::{ClientSessionStore, Resumption, Tls12ClientSessionValue, Tls13ClientSessionValue};
use rustls::pki_types::ServerName;

use super::way::ExitSession;

/// Servers in all, over all exit sessions; the ones longest unasked go first. One takes up to some 10 KiB: two tickets and
/// the certificates that came with them.
const SERVERS_MAX: usize = 1024;

/// Tickets kept of one server. Each serves once, and common servers send two at a time.
const TICKETS_MAX: usize = 2;

/// What all exit sessions of one client may resume.
#[derive(Default)]
pub(super) struct Tickets {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    servers: HashMap<(u64, ServerName<'static>), Server, foldhash::fast::RandomState>,
    asked: u64,
}

#[derive(Default)]
struct Server {
    group: Option<NamedGroup>,
    tls12: Option<Tls12ClientSessionValue>,
    tls13: Vec<Tls13ClientSessionValue>,
    /// When it was last asked for, in askings.
    at: u64,
}

/// The part of one exit session.
struct Part {
    tickets: Arc<Tickets>,
    session: Arc<ExitSession>,
}

impl Tickets {
    /// What a handshake through this exit session may resume.
    pub(super) fn of(self: &Arc<Tickets>, session: &Arc<ExitSession>) -> Resumption {
        Resumption::store(Arc::new(Part { tickets: Arc::clone(self), session: Arc::clone(session) }))
    }

    /// Throws away what is kept of an exit session.
    pub(super) fn leave(&self, session: u64) {
        self.state.lock().servers.retain(|(of, _), _| *of != session);
    }
}

impl Part {
    fn key(&self, name: &ServerName<'_>) -> (u64, ServerName<'static>) {
        (self.session.id(), name.to_owned())
    }

    fn read<T>(&self, name: &ServerName<'_>, read: impl FnOnce(&mut Server) -> Option<T>) -> Option<T> {
        let mut state = self.tickets.state.lock();
        state.asked += 1;
        let at = state.asked;
        let server = state.servers.get_mut(&self.key(name))?;
        server.at = at;
        read(server)
    }

    /// Tickets come while a connection is in use, so perhaps after its session was left.
    fn write(&self, name: &ServerName<'_>, write: impl FnOnce(&mut Server)) {
        let mut state = self.tickets.state.lock();
        if self.session.is_left() {
            return;
        }
        state.asked += 1;
        let at = state.asked;
        let server = state.servers.entry(self.key(name)).or_default();
        server.at = at;
        write(server);
        if state.servers.len() > SERVERS_MAX {
            // A quarter goes at a time, so the sort is rare.
            let mut ages: Vec<u64> = state.servers.values().map(|server| server.at).collect();
            ages.sort_unstable();
            let cut = ages[SERVERS_MAX / 4];
            state.servers.retain(|_, server| server.at > cut);
        }
    }
}

impl ClientSessionStore for Part {
    fn set_kx_hint(&self, name: ServerName<'static>, group: NamedGroup) {
        self.write(&name, |server| server.group = Some(group));
    }

    fn kx_hint(&self, name: &ServerName<'_>) -> Option<NamedGroup> {
        self.read(name, |server| server.group)
    }

    fn set_tls12_session(&self, name: ServerName<'static>, value: Tls12ClientSessionValue) {
        self.write(&name, |server| server.tls12 = Some(value));
    }

    fn tls12_session(&self, name: &ServerName<'_>) -> Option<Tls12ClientSessionValue> {
        self.read(name, |server| server.tls12.clone())
    }

    fn remove_tls12_session(&self, name: &ServerName<'static>) {
        self.read(name, |server| server.tls12.take());
    }

    fn insert_tls13_ticket(&self, name: ServerName<'static>, value: Tls13ClientSessionValue) {
        self.write(&name, |server| {
            if server.tls13.len() >= TICKETS_MAX {
                server.tls13.remove(0);
            }
            server.tls13.push(value);
        });
    }

    fn take_tls13_ticket(&self, name: &ServerName<'static>) -> Option<Tls13ClientSessionValue> {
        self.read(name, |server| server.tls13.pop())
    }
}

impl fmt::Debug for Tickets {
    /// Who was visited is nobody's business, and a ticket is a secret (K1).
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tickets").finish_non_exhaustive()
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Part").field("session", &self.session.id()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::ExitUrl;

    fn part(tickets: &Arc<Tickets>) -> Part {
        let exit = ExitUrl::parse("proxy.example:1").unwrap();
        Part { tickets: Arc::clone(tickets), session: Arc::new(ExitSession::new(exit)) }
    }

    fn name(text: &str) -> ServerName<'static> {
        ServerName::try_from(text.to_owned()).unwrap()
    }

    #[test]
    fn e4_what_may_be_resumed_belongs_to_one_session_and_goes_with_it() {
        let tickets = Arc::new(Tickets::default());
        let (one, other) = (part(&tickets), part(&tickets));
        one.set_kx_hint(name("a.test"), NamedGroup::X25519);
        assert_eq!(one.kx_hint(&name("a.test")), Some(NamedGroup::X25519));
        assert_eq!(other.kx_hint(&name("a.test")), None);
        other.set_kx_hint(name("a.test"), NamedGroup::secp256r1);
        one.session.leave();
        tickets.leave(one.session.id());
        assert_eq!(one.kx_hint(&name("a.test")), None);
        one.set_kx_hint(name("a.test"), NamedGroup::X25519);
        assert_eq!(one.kx_hint(&name("a.test")), None, "it came too late");
        assert_eq!(other.kx_hint(&name("a.test")), Some(NamedGroup::secp256r1));
    }

    #[test]
    fn e4_memory_is_bounded_whatever_the_number_of_sessions() {
        let tickets = Arc::new(Tickets::default());
        let asked = part(&tickets);
        asked.set_kx_hint(name("a.test"), NamedGroup::X25519);
        for _ in 0..3 * SERVERS_MAX {
            part(&tickets).set_kx_hint(name("a.test"), NamedGroup::X25519);
            assert!(asked.kx_hint(&name("a.test")).is_some(), "in use, and gone");
            assert!(tickets.state.lock().servers.len() <= SERVERS_MAX);
        }
    }
}

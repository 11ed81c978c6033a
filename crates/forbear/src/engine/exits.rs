//! The exits of a run, with what the client keeps for each exit session.

use std::{borrow::Cow, collections::HashMap, sync::Arc};

use forbear_core::{
    exit::{ExitId, ExitPolicy, Pick, Usable},
    scope::ScopeKey,
};
use parking_lot::Mutex;

use super::{cookies::Cookies, summary::ExitCount};
use crate::{
    client::{Client, ExitSession, Target, Way},
    config::Settings,
    exit::{EnvProxies, ExitRow, ExitSecrets, ExitUrl, Members, Names},
};

/// By which exits the origins of a run are reached.
pub(super) enum Pools {
    /// By none.
    Direct,
    /// All by these.
    All(Arc<Pool>),
    /// As the environment says: each by the one proxy for it, or by none.
    Environment { proxies: EnvProxies, pools: Vec<(ExitUrl, Arc<Pool>)> },
}

impl Pools {
    pub(super) fn new(settings: &Settings, client: &Client) -> Pools {
        let exits = &settings.exits;
        let policy = ExitPolicy {
            rotate: exits.rotate,
            sticky: exits.sticky,
            min_success: exits.min_success,
            ..ExitPolicy::default()
        };
        let mut names = Names::default();
        let mut pool = |entries| {
            let members = Members::new(entries, policy.clone(), &mut names);
            Arc::new(Pool::new(members, settings.cookies, client.clone()))
        };
        if !exits.list.is_empty() {
            return Pools::All(pool(exits.list.clone()));
        }
        let proxies = &exits.environment;
        let mut pools: Vec<(ExitUrl, Arc<Pool>)> = Vec::new();
        for url in [&proxies.http, &proxies.https].into_iter().flatten() {
            if pools.iter().all(|(known, _)| known != url) {
                pools.push((url.clone(), pool(vec![url.clone().into()])));
            }
        }
        if pools.is_empty() { Pools::Direct } else { Pools::Environment { proxies: proxies.clone(), pools } }
    }

    /// The exits for an origin; none for the direct way.
    pub(super) fn of(&self, origin: &str) -> Option<Arc<Pool>> {
        match self {
            Pools::Direct => None,
            Pools::All(pool) => Some(pool.clone()),
            Pools::Environment { proxies, pools } => {
                let target = Target::parse(origin).ok()?;
                let url = proxies.for_target(&target)?;
                pools.iter().find(|(known, _)| known == url).map(|(_, pool)| pool.clone())
            }
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Pool>> {
        let (one, several) = match self {
            Pools::Direct => (None, &[][..]),
            Pools::All(pool) => (Some(pool), &[][..]),
            Pools::Environment { pools, .. } => (None, &pools[..]),
        };
        one.into_iter().chain(several.iter().map(|(_, pool)| pool))
    }

    /// When no exit of a pool can be used: how many it has, and what there is to wait for (E5).
    pub(super) fn unusable(&self) -> Option<(usize, Usable)> {
        self.iter()
            .map(|pool| (pool.members.len(), pool.members.usable()))
            .find(|(_, usable)| *usable != Usable::Yes)
    }
}

/// Exits that stand in for one another, with what our client keeps for each.
pub(super) struct Pool {
    pub(super) members: Members,
    sessions: Mutex<HashMap<(ExitId, u64), Arc<Session>, foldhash::fast::RandomState>>,
    /// One for each exit that has set a cookie.
    jars: Mutex<HashMap<ExitId, Arc<Cookies>, foldhash::fast::RandomState>>,
    cookies: bool,
    client: Client,
}

/// What belongs to one exit and one session, and dies with it (E4).
pub(super) struct Session {
    pub(super) way: Way,
    pub(super) cookies: Arc<Cookies>,
    /// What whatever came by it must not show (K1).
    pub(super) secrets: Option<ExitSecrets>,
    id: u64,
}

/// The exit of one request.
pub(super) struct Out {
    pub(super) pool: Arc<Pool>,
    pub(super) pick: Pick,
    pub(super) session: Arc<Session>,
}

impl Pool {
    fn new(members: Members, cookies: bool, client: Client) -> Pool {
        let (sessions, jars) = (Mutex::default(), Mutex::default());
        Pool { members, sessions, jars, cookies, client }
    }

    /// The session of a pick: connections, TLS tickets and cookies of that exit at that origin.
    pub(super) fn session(&self, pick: &Pick) -> Arc<Session> {
        let key = (pick.exit, pick.session);
        if let Some(session) = self.sessions.lock().get(&key) {
            return session.clone();
        }
        let url = self.members.url(pick);
        let (secrets, cookies) = (ExitSecrets::of(&url), self.jar(pick.exit));
        let exit = Arc::new(ExitSession::new(url));
        let session = Arc::new(Session { id: exit.id(), way: Way::Exit(exit), cookies, secrets });
        let mut sessions = self.sessions.lock();
        if sessions.len() >= SESSIONS_MAX {
            // Whoever is on the wire keeps what it has; the others dial again.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        sessions.entry(key).or_insert(session).clone()
    }

    /// How many there are, and how many can be used.
    pub(super) fn count(&self) -> ExitCount {
        ExitCount { usable: self.members.usable_count(), all: self.members.len() }
    }

    /// A row for each exit, in the order of the list.
    pub(super) fn rows(&self) -> Vec<ExitRow> {
        self.members.rows()
    }

    /// Throws away what belongs to the session at this origin (E4).
    pub(super) fn leave(&self, out: &Out) {
        self.client.leave(out.session.id);
        self.sessions.lock().remove(&(out.pick.exit, out.pick.session));
        out.session.cookies.forget(out.pick.origin());
    }

    fn jar(&self, exit: ExitId) -> Arc<Cookies> {
        if !self.cookies {
            return Arc::new(Cookies::new(false));
        }
        self.jars.lock().entry(exit).or_insert_with(|| Arc::new(Cookies::new(true))).clone()
    }
}

impl Out {
    /// The text without what only the exit may know (K1).
    pub(super) fn hide(&self, text: String) -> String {
        match self.session.secrets.as_ref().map(|secrets| secrets.hide(&text)) {
            Some(Cow::Owned(shown)) => shown,
            _ => text,
        }
    }
}

/// Where lanes wait that found no exit free at their origin.
pub(super) fn waits_for_exits(origin: &str) -> ScopeKey {
    ScopeKey::from_text(&format!("exits for {origin}"))
}

/// Sessions at hand; each holds some kilobytes of TLS tickets and a connection or two.
const SESSIONS_MAX: usize = 8192;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Environment;

    #[test]
    fn s2_two_variables_that_differ_in_their_credentials_are_two_exits() {
        let environment = Environment::of(|name| match name {
            "http_proxy" => Some("http://one:x@proxy.example:8080".into()),
            "https_proxy" => Some("http://two:x@proxy.example:8080".into()),
            _ => None,
        });
        let mut settings = Settings::default();
        settings.exits.environment = EnvProxies::read(&environment).unwrap();
        let pools = Pools::new(&settings, &Client::default());
        let names: Vec<String> = pools.iter().map(|pool| pool.members.name(ExitId(0)).to_string()).collect();
        assert_eq!(names, ["http://proxy.example:8080", "http://proxy.example:8080#2"]);
    }
}

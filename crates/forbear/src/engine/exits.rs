//! The exits of a run: the core's machine, with what belongs to each exit session.

use std::{collections::HashMap, sync::Arc};

use forbear_core::{
    exit::{Ask, Choice, ExitId, ExitPolicy, Exits, Judged, Pick, Tally, Traits, Usable},
    outcome::Outcome,
    policy::BoundScope,
    scope::ScopeKey,
    time::Timestamp,
};
use parking_lot::Mutex;

use super::cookies::Cookies;
use crate::{
    client::{Client, ExitSession, Target, Way},
    config::Settings,
    exit::{Entry, EnvProxies, ExitUrl},
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
        let pool = |members| Arc::new(Pool::new(members, policy.clone(), settings.cookies, client.clone()));
        if !exits.list.is_empty() {
            return Pools::All(pool(exits.list.iter().map(Member::of_entry).collect()));
        }
        let proxies = &exits.environment;
        let mut pools: Vec<(ExitUrl, Arc<Pool>)> = Vec::new();
        for url in [&proxies.http, &proxies.https].into_iter().flatten() {
            if pools.iter().all(|(known, _)| known != url) {
                pools.push((url.clone(), pool(vec![Member::of_url(url.clone())])));
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
        self.iter().map(|pool| (pool.names.len(), pool.usable())).find(|(_, usable)| *usable != Usable::Yes)
    }
}

/// Exits that stand in for one another.
pub(super) struct Pool {
    machine: Mutex<Exits>,
    members: Vec<Member>,
    /// What records and scopes call them: no credentials, and no two alike.
    names: Vec<Arc<str>>,
    sessions: Mutex<HashMap<(ExitId, u64), Arc<Session>, foldhash::fast::RandomState>>,
    /// One for each exit that has set a cookie.
    jars: Mutex<HashMap<ExitId, Arc<Cookies>, foldhash::fast::RandomState>>,
    cookies: bool,
    /// Chance: what session tokens are made of.
    seed: [u8; 32],
    client: Client,
}

/// One exit.
struct Member {
    url: ExitUrl,
    gateway: bool,
    price_per_request: Option<f64>,
    price_per_gb: Option<f64>,
}

/// What belongs to one exit and one session, and dies with it (E4).
pub(super) struct Session {
    pub(super) way: Way,
    pub(super) cookies: Arc<Cookies>,
    id: u64,
}

/// The exit of one request.
pub(super) struct Out {
    pub(super) pool: Arc<Pool>,
    pub(super) pick: Pick,
    pub(super) session: Arc<Session>,
}

/// A row of the table at the end.
#[derive(Clone, Debug)]
pub struct ExitRow {
    /// The exit's name, without credentials.
    pub name: String,
    /// Its state at the end: `ok`, `unproven`, `failing` or `out`.
    pub state: &'static str,
    /// What went through it.
    pub tally: Tally,
    /// What that cost, where a price is known.
    pub cost: Option<f64>,
}

impl Member {
    fn of_entry(entry: &Entry) -> Member {
        let Entry { url, gateway, price_per_request, price_per_gb, .. } = entry.clone();
        Member { url, gateway, price_per_request, price_per_gb }
    }

    fn of_url(url: ExitUrl) -> Member {
        Member { url, gateway: false, price_per_request: None, price_per_gb: None }
    }
}

impl Pool {
    fn new(members: Vec<Member>, policy: ExitPolicy, cookies: bool, client: Client) -> Pool {
        let traits = members.iter().map(|member| Traits {
            gateway: member.gateway,
            price_per_request: member.price_per_request.unwrap_or(0.0),
            price_per_byte: member.price_per_gb.unwrap_or(0.0) / 1e9,
        });
        let machine = Mutex::new(Exits::new(policy, traits, fastrand::u64(..)));
        let mut seen: HashMap<String, u32> = HashMap::new();
        let names = members.iter().map(|member| {
            let name = member.url.name();
            let nth = seen.entry(name.clone()).or_insert(0);
            *nth += 1;
            // Two that share host and port are two (S2): the second of them is named as the second.
            if *nth == 1 { name.into() } else { format!("{name}#{nth}").into() }
        });
        let names = names.collect();
        let (sessions, jars) = (Mutex::default(), Mutex::default());
        let seed = std::array::from_fn(|_| fastrand::u8(..));
        Pool { machine, members, names, sessions, jars, cookies, seed, client }
    }

    /// An exit for a request, if one may be asked.
    pub(super) fn choose(&self, origin: &str, ask: Ask, now: Timestamp) -> Choice {
        self.machine.lock().choose(origin, ask, now)
    }

    /// The session of a pick: connections, TLS tickets and cookies of that exit at that origin.
    pub(super) fn session(&self, pick: &Pick) -> Arc<Session> {
        let key = (pick.exit, pick.session);
        if let Some(session) = self.sessions.lock().get(&key) {
            return session.clone();
        }
        let member = &self.members[pick.exit.0 as usize];
        let url = match member.url.has_session() {
            true => member.url.with_session(&self.token(pick)),
            false => member.url.clone(),
        };
        let exit = Arc::new(ExitSession::new(url));
        let session = Arc::new(Session { id: exit.id(), way: Way::Exit(exit), cookies: self.jar(pick.exit) });
        let mut sessions = self.sessions.lock();
        if sessions.len() >= SESSIONS_MAX {
            // Whoever is on the wire keeps what it has; the others dial again.
            sessions.retain(|_, session| Arc::strong_count(session) > 1);
        }
        sessions.entry(key).or_insert(session).clone()
    }

    /// What the exits make of an attempt, before its gates hear of it.
    pub(super) fn judge(
        &self,
        out: &Out,
        outcome: &Outcome,
        bytes: u64,
        now: Timestamp,
        roll: f64,
    ) -> Judged {
        let judged = self.machine.lock().judge(&out.pick, outcome, bytes, now, roll);
        if judged.left {
            self.leave(out);
        }
        judged
    }

    /// The gate of the pair has closed until then.
    pub(super) fn rests(&self, out: &Out, until: Timestamp) {
        self.machine.lock().rests(&out.pick, until);
        self.leave(out);
    }

    /// The gate of the pair, or of the exit, may admit again before it had said.
    pub(super) fn recall(&self, pick: &Pick, by: &BoundScope) {
        let mut machine = self.machine.lock();
        match by.by.is_some_and(|by| by.origin) {
            true => machine.recall(pick),
            false => machine.recall_everywhere(pick.exit),
        }
    }

    pub(super) fn put_off(&self, pick: &Pick, until: Timestamp) -> Vec<Arc<str>> {
        self.machine.lock().put_off(pick, until)
    }

    pub(super) fn full(&self, pick: &Pick) -> Vec<Arc<str>> {
        self.machine.lock().full(pick)
    }

    pub(super) fn undo(&self, pick: &Pick) -> Vec<Arc<str>> {
        self.machine.lock().undo(pick)
    }

    pub(super) fn usable(&self) -> Usable {
        self.machine.lock().usable()
    }

    pub(super) fn name(&self, exit: ExitId) -> &Arc<str> {
        &self.names[exit.0 as usize]
    }

    /// What counts as one address: an exit, or a session of a gateway (E4).
    pub(super) fn address(&self, pick: &Pick) -> (ExitId, u64) {
        (pick.exit, if self.members[pick.exit.0 as usize].gateway { pick.session } else { 0 })
    }

    /// What the exit is called in scopes: a session of a gateway is an address of its own (E4).
    pub(super) fn scope_name(&self, pick: &Pick) -> String {
        let name = self.name(pick.exit);
        if self.members[pick.exit.0 as usize].gateway {
            format!("{name}~{}", pick.session)
        } else {
            name.to_string()
        }
    }

    /// A row for each exit, in the order of the list.
    pub(super) fn rows(&self) -> Vec<ExitRow> {
        let machine = self.machine.lock();
        let rows = self.names.iter().zip(&self.members).zip(0..).map(|((name, member), n)| {
            let tally = machine.tally(ExitId(n));
            let (per_request, per_gb) = (member.price_per_request, member.price_per_gb);
            let cost = (per_request.is_some() || per_gb.is_some()).then(|| {
                tally.requests as f64 * per_request.unwrap_or(0.0)
                    + tally.bytes as f64 / 1e9 * per_gb.unwrap_or(0.0)
            });
            ExitRow { name: name.to_string(), state: machine.state(ExitId(n)), tally, cost }
        });
        rows.collect()
    }

    fn jar(&self, exit: ExitId) -> Arc<Cookies> {
        if !self.cookies {
            return Arc::new(Cookies::new(false));
        }
        self.jars.lock().entry(exit).or_insert_with(|| Arc::new(Cookies::new(true))).clone()
    }

    /// Throws away what belongs to the session at this origin.
    fn leave(&self, out: &Out) {
        self.client.leave(out.session.id);
        self.sessions.lock().remove(&(out.pick.exit, out.pick.session));
        out.session.cookies.forget(out.pick.origin());
    }

    /// Letters and digits that no two sessions share, and that nobody can guess.
    fn token(&self, pick: &Pick) -> String {
        let mut hash = blake3::Hasher::new_keyed(&self.seed);
        hash.update(&pick.exit.0.to_le_bytes());
        hash.update(&pick.session.to_le_bytes());
        hash.finalize().to_hex()[..TOKEN_LEN].to_owned()
    }
}

/// Where lanes wait that found no exit free at their origin.
pub(super) fn waits_for_exits(origin: &str) -> ScopeKey {
    ScopeKey::from_text(&format!("exits for {origin}"))
}

/// Sessions at hand; each holds some kilobytes of TLS tickets and a connection or two.
const SESSIONS_MAX: usize = 8192;
/// Sixty-four bits: sellers of exits take 8 to 16 characters.
const TOKEN_LEN: usize = 16;
